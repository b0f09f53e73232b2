// What the validator says, and to whom.
#include "core/check/cases.hpp"
#include "core/check/check_command.hpp"
#include "core/check/checker.hpp"
#include "core/check/report.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace luna::check {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

std::string zoo(const std::string& fault) {
  return std::string(LUNA_ZOO_DIR) + "/" + fault + "/zoo_" + fault + ".so";
}

struct Ran {
  int status;
  std::string out;
  std::string err;
};

Ran check(const CheckCommand& command) {
  std::ostringstream out;
  std::ostringstream err;
  const int status = run_check(command, "luna-check", out, err);
  return {status, out.str(), err.str()};
}

CheckCommand command_for(const std::string& fault, const std::string& only) {
  CheckCommand command;
  command.options.input.file = zoo(fault);
  command.options.only = only;
  return command;
}

TEST(Cases, HaveNamesOfTheirOwnThatBeginWithTheirGroup) {
  std::set<std::string_view> names;
  for (const Case& one : all_cases()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    EXPECT_THAT(std::string("ABCDEF"), HasSubstr(std::string(1, one.name[0])));
    EXPECT_EQ(one.name[1], '.');
  }
}

TEST(CheckCommand, SaysRuleMessageAdviceAndHowToRunTheCaseAgain) {
  const Ran ran = check(command_for("names_no_row", "E.scheduler.legal"));
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.out, HasSubstr("rule S1: A plan names rows that may be named."));
  EXPECT_THAT(ran.out, HasSubstr("no such row"));
  EXPECT_THAT(ran.out, HasSubstr("Plan::take()"));
  EXPECT_THAT(ran.out, HasSubstr("--reproduce E.scheduler.legal_plans@1"));
}

TEST(CheckCommand, ReproducesACaseOfASeedInItsOwnProcess) {
  CheckCommand command = command_for("names_no_row", "");
  command.reproduce = "E.scheduler.legal_plans@7";
  const Ran ran = check(command);
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.out, HasSubstr("rule S1"));
  EXPECT_THAT(ran.out, HasSubstr("@7"));
  command.reproduce = "E.scheduler.legal_plans";
  EXPECT_THAT(check(command).err, HasSubstr("must be CASE@SEED"));
}

TEST(CheckCommand, OneSeedGivesOneReport) {
  CheckCommand command = command_for("too_many_blocks", "E.scheduler.legal");
  command.options.input.seed = 5;
  const auto message = [&] {
    const auto result = check_plugin(command.options, [](const CaseResult&) {});
    return result ? result->cases.front().findings.front().message : result.error().message();
  };
  EXPECT_EQ(message(), message());
}

TEST(CheckCommand, WritesJson) {
  CheckCommand command = command_for("stands_still", "E.scheduler.legal");
  command.json_file = "-";
  const Ran ran = check(command);
  EXPECT_EQ(ran.status, 1);
  const json::object report = json::parse(ran.out).as_object();
  EXPECT_EQ(report.at("id").as_string(), "org.luna.test.zoo");
  EXPECT_EQ(report.at("verdict").as_string(), "broken");
  const json::object& one = report.at("cases").as_array().at(0).as_object();
  EXPECT_EQ(one.at("findings").as_array().at(0).as_object().at("rule").as_string(), "S5");
}

TEST(CheckCommand, WritesJUnit) {
  CheckCommand command = command_for("stands_still", "E.scheduler.legal");
  command.junit_file = testing::TempDir() + "/luna_check.xml";
  EXPECT_EQ(check(command).status, 1);
  std::ifstream file(command.junit_file);
  const std::string xml((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(xml, HasSubstr("tests=\"1\" failures=\"1\" skipped=\"0\""));
  EXPECT_THAT(xml, HasSubstr("<failure type=\"S5\""));
}

TEST(CheckCommand, NamesWhatItCannotFind) {
  EXPECT_THAT(check(command_for("nobody", "")).err, HasSubstr("zoo_nobody.so"));
  EXPECT_THAT(check(command_for("good_policy", "X.none")).err,
              HasSubstr("E.scheduler.legal_plans"));
  CheckCommand command = command_for("good_policy", "C.several");
  command.settings = {"interval_ms"};
  EXPECT_THAT(check(command).err, HasSubstr("must be KEY=VALUE"));
}

TEST(CheckCommand, TakesSettingsAndSaysWhichAreWrong) {
  CheckCommand command = command_for("good_policy", "C.several");
  command.settings = {"interval_ms=300"};
  EXPECT_EQ(check(command).status, 0);
  command.settings = {"interval_ms=0"};
  const Ran wrong = check(command);
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.out, HasSubstr("must be a whole number in 1..60000"));
  EXPECT_THAT(wrong.out, HasSubstr("not every case could be tried"));
}

TEST(CheckPlugin, ATextIsNoSharedLibrary) {
  CheckOptions options;
  options.input.file = testing::TempDir() + "/luna_check_text.so";
  std::ofstream(options.input.file) << "I am no library.\n";
  const auto result = check_plugin(options, [](const CaseResult&) {});
  ASSERT_TRUE(result);
  ASSERT_FALSE(result->cases.front().findings.empty());
  EXPECT_EQ(result->cases.front().findings.front().rule, "B1");
}

TEST(CheckPlugin, AFileThatTheHostRefusesIsNotLoaded) {
  CheckOptions options;
  options.input.file = zoo("no_note");
  const auto result = check_plugin(options, [](const CaseResult&) {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->verdict(), Verdict::broken);
  for (const CaseResult& one : result->cases)
    EXPECT_EQ(one.checked.name[0], 'A');
}

}  // namespace
}  // namespace luna::check
