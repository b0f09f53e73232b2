// `luna check`, `luna plugins ...`: exit statuses and what they print.
#include "core/app/command_check.hpp"
#include "core/app/command_new.hpp"
#include "core/app/command_plugins.hpp"

#include <luna/plugin.h>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <unistd.h>

namespace luna::app {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

struct Ran {
  int status = 0;
  std::string out;
  std::string err;
};

template <typename Command>
Ran run(const Command& command) {
  std::istringstream in;
  std::ostringstream out, err;
  const int status = command(CommandStreams{in, out, err});
  return {status, out.str(), err.str()};
}

const fs::path kZoo = LUNA_ZOO_DIR;

PluginsOptions folders(std::vector<fs::path> list, bool json = false) {
  return {std::move(list), json};
}

TEST(PluginsCommand, ListShowsUsableAndRefusedFiles) {
  const Ran ran = run([](const CommandStreams& s) {
    return run_plugins_list(folders({kZoo / "none", kZoo / "other_major"}), s);
  });
  EXPECT_EQ(ran.status, 0);
  EXPECT_THAT(ran.out, HasSubstr("scheduler  zoo            org.luna.test.zoo"));
  EXPECT_THAT(ran.out, HasSubstr("refused    " + (kZoo / "other_major").string()));
  EXPECT_THAT(ran.out, HasSubstr("built for plugin ABI 99"));
}

TEST(PluginsCommand, ListAsJsonIsOneArray) {
  const Ran ran = run(
      [](const CommandStreams& s) { return run_plugins_list(folders({kZoo / "none"}, true), s); });
  EXPECT_THAT(ran.out, testing::StartsWith("[{"));
  EXPECT_THAT(ran.out, HasSubstr(R"("id":"org.luna.test.zoo","kinds":["luna.scheduler/1"])"));
}

TEST(PluginsCommand, InfoTellsTheSettings) {
  const Ran ran = run(
      [](const CommandStreams& s) { return run_plugins_info("zoo", folders({kZoo / "none"}), s); });
  EXPECT_EQ(ran.status, 0);
  EXPECT_THAT(ran.out, HasSubstr("scheduler 'zoo' 0.1.0: A plugin with one fault."));
  EXPECT_THAT(ran.out, HasSubstr("a whole number in 1..60000; default \"200\""));
  EXPECT_THAT(ran.out, HasSubstr("a text among fifo|lifo"));
}

TEST(PluginsCommand, InfoOfAnUnknownNameFailsAndShowsWhatThereIs) {
  const Ran ran = run([](const CommandStreams& s) {
    return run_plugins_info("nothing", folders({kZoo / "none"}), s);
  });
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("'nothing'"));
  EXPECT_THAT(ran.err, HasSubstr("zoo_none.so"));
}

TEST(PluginsCommand, WhyOfANameThatIsThereTwiceFailsAndNamesBothFiles) {
  const Ran ran = run([](const CommandStreams& s) {
    return run_plugins_why("zoo", folders({kZoo / "none", kZoo / "other_major"}), s);
  });
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("is there twice"));
  EXPECT_THAT(ran.err, HasSubstr("zoo_none.so"));
  EXPECT_THAT(ran.err, HasSubstr("zoo_other_major.so"));
}

TEST(PluginsCommand, WhyOfAFileTellsTheTrueReason) {
  const auto why = [](const std::string& file) {
    return run([&](const CommandStreams& s) { return run_plugins_why(file, {}, s); });
  };
  EXPECT_EQ(why((kZoo / "none" / "zoo_none.so").string()).status, 0);
  const Ran gone = why("/nowhere/gone.so");
  EXPECT_EQ(gone.status, 1);
  EXPECT_THAT(gone.err, HasSubstr("/nowhere/gone.so: No such file"));
  EXPECT_THAT(why((kZoo / "undefined_symbol" / "zoo_undefined_symbol.so").string()).err,
              HasSubstr("luna_zoo_missing_symbol"));
  EXPECT_THAT(why((kZoo / "no_note" / "zoo_no_note.so").string()).err, HasSubstr(".note.luna"));
}

class NewCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("luna-new-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  Ran make(const std::string& kind, const std::string& name, const std::string& id = "") {
    return run([&](const CommandStreams& s) {
      return run_plugins_new(
          {kind, name, id, folder_, fs::path(LUNA_SOURCE_DIR) / "sdk" / "templates"}, s);
    });
  }
  fs::path folder_;
};

TEST_F(NewCommand, FillsInNameClassAndIdInEveryFile) {
  for (const char* const kind : {"scheduler", "role", "quant", "transport", "backend"}) {
    EXPECT_EQ(make(kind, "two_words", "com.example.two").status, 0) << kind;
    std::string all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      EXPECT_THAT(entry.path().string(), Not(HasSubstr("@")));
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path());
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    EXPECT_THAT(all, HasSubstr("TwoWords"));
    EXPECT_THAT(all, HasSubstr("com.example.two"));
    for (const char* const word : {"@NAME@", "@CLASS@", "@ID@", "@KIND@"})
      EXPECT_THAT(all, Not(HasSubstr(word)));
    EXPECT_TRUE(fs::exists(folder_ / "src" / "two_words.cpp"));
    EXPECT_NE(fs::status(folder_ / "ci.sh").permissions() & fs::perms::owner_exec, fs::perms::none);
    fs::remove_all(folder_);
  }
}

TEST_F(NewCommand, RefusesWhatCannotBeANameAKindOrAnId) {
  EXPECT_THAT(make("policy", "mine").err, HasSubstr("there are: scheduler role"));
  for (const char* const name : {"", "Mine", "2nd", "a-b", "mine_", "../x"})
    EXPECT_THAT(make("role", name).err, HasSubstr("must be small letters")) << name;
  EXPECT_THAT(make("role", std::string(32, 'a')).err, HasSubstr("fewer than 32"));
  EXPECT_THAT(make("role", "mine", "no dots").err, HasSubstr("reverse DNS"));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(NewCommand, WritesOverNothing) {
  EXPECT_EQ(make("role", "mine").status, 0);
  const Ran again = make("role", "mine");
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, HasSubstr("is there and not empty"));
}

class CheckCommand : public testing::Test {
 protected:
  void SetUp() override {
    file_ = fs::temp_directory_path() / ("luna-check-" + std::to_string(::getpid()) + ".toml");
  }
  void TearDown() override { fs::remove(file_); }

  Ran check(const std::string& text, bool json = false) {
    std::ofstream(file_) << text;
    const NamedModels models{{"small"}, [](const std::string& name) { return name == "cached"; }};
    return run([&](const CommandStreams& s) {
      return run_check({file_, {kZoo / "none"}, models, json, {}, {}}, s);
    });
  }

  // Right but for the backend, which the zoo does not have.
  static std::string with_path(const std::string& path) {
    return "[[device]]\nname = \"a0\"\nbackend = \"cpu-zoo\"\nmemory = \"1 GiB\"\n[[model]]\n"
           "name = \"main\"\npath = \"" +
           path +
           "\"\ndevices = [\"a0\"]\n[[stage]]\nrole = \"generate-zoo\"\nmodel = \"main\"\n"
           "[scheduler]\npolicy = \"zoo\"\n";
  }

  fs::path file_;
};

TEST_F(CheckCommand, KnownModelThatIsNotPulledIsAWarning) {
  const Ran ran = check(with_path("small"));
  EXPECT_THAT(ran.err, HasSubstr("warning: model 'main': path = \"small\": not here yet"));
  EXPECT_THAT(ran.err, Not(HasSubstr("error: model")));
}

TEST_F(CheckCommand, ModelInTheCacheIsFine) {
  EXPECT_THAT(check(with_path("cached")).err, Not(HasSubstr("model 'main'")));
}

TEST_F(CheckCommand, UnknownModelAndMissingPathAreErrorsWithTheirPlace) {
  EXPECT_THAT(check(with_path("smal")).err, HasSubstr("the nearest known one is 'small'"));
  const Ran ran = check(with_path("none.gguf"));
  EXPECT_THAT(ran.err, HasSubstr("error: model 'main'"));
  EXPECT_THAT(ran.err, HasSubstr("none.gguf does not exist (" + file_.string() + ":7:8)"));
}

TEST_F(CheckCommand, PluginThatIsMissingIsAnErrorWithItsPlace) {
  const Ran ran = check(with_path("small"));
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("device[0].backend = \"cpu-zoo\" (" + file_.string() + ":3:11)"));
  EXPECT_THAT(ran.err, Not(HasSubstr("scheduler.policy")));
}

TEST_F(CheckCommand, UnknownKeyIsNamedAndFails) {
  const Ran ran = check("zz_unknown_key = 1\n" + with_path("small"));
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("zz_unknown_key"));
}

TEST_F(CheckCommand, JsonHoldsEveryMessage) {
  const Ran ran = check(with_path("small"), true);
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.out, testing::StartsWith(R"({"ok":false,"errors":[)"));
  EXPECT_EQ(ran.err, "");
}

TEST_F(CheckCommand, TheTableSaysWhatServesEachPlace) {
  const Ran ran = check(with_path("small"));
  std::istringstream lines(ran.out);
  std::string head;
  std::getline(lines, head);
  EXPECT_THAT(head,
              testing::MatchesRegex("stage +plugin +file +version +needed +offered +verdict"));
  std::string rows((std::istreambuf_iterator<char>(lines)), {});
  const std::string kind = LUNA_KIND_SCHEDULER;
  EXPECT_THAT(rows, HasSubstr("device[0] a0      cpu-zoo"));
  EXPECT_THAT(rows, HasSubstr((kZoo / "none" / "zoo_none.so").string()));
  EXPECT_THAT(rows, HasSubstr(kind + ", ABI"));
  EXPECT_THAT(rows, HasSubstr("not found\n"));
  EXPECT_THAT(rows, HasSubstr("ok\n"));
}

TEST_F(CheckCommand, JsonHasTheTableWithReasons) {
  const Ran ran = check(with_path("small"), true);
  const auto rows = boost::json::parse(ran.out).at("pipeline").as_array();
  // Beside the formats of weights that are there: as many as are built.
  const auto row_of = [&](std::string_view stage) {
    for (const auto& row : rows)
      if (row.at("stage").as_string() == boost::json::string_view(stage.data(), stage.size()))
        return row.as_object();
    ADD_FAILURE() << "no row is called " << stage;
    return boost::json::object();
  };
  const boost::json::object device = row_of("device[0] a0");
  EXPECT_EQ(device.at("verdict"), "not found");
  EXPECT_THAT(std::string(device.at("reason").as_string()), HasSubstr("'cpu-zoo'"));
  EXPECT_EQ(device.at("file"), "-");
  const boost::json::object policy = row_of("scheduler.policy");
  EXPECT_EQ(policy.at("plugin"), "zoo");
  EXPECT_EQ(policy.at("version"), "0.1.0");
  EXPECT_EQ(policy.at("verdict"), "ok");
  EXPECT_EQ(policy.at("reason"), "");
}

TEST_F(CheckCommand, AFallbackIsAnotherPolicyThatIsThere) {
  const Ran twice = check(with_path("small") + "fallback = [\"org.luna.test.zoo\"]\n");
  EXPECT_THAT(twice.err,
              HasSubstr("scheduler.fallback = \"org.luna.test.zoo\" (" + file_.string() +
                        ":14:12)"
                        ": must be another policy than those before it"));
  const Ran none = check(with_path("small") + "fallback = [\"fifo\"]\n");
  EXPECT_THAT(none.err, HasSubstr("scheduler.fallback = \"fifo\" ("));
  EXPECT_THAT(none.out, HasSubstr("scheduler.fallback[0]"));
}

TEST_F(CheckCommand, WhatIsNotTrustedIsRefusedInTheTable) {
  const Ran ran = check(with_path("small") + "[plugins]\nrequire_checked = true\n", true);
  EXPECT_EQ(ran.status, 1);
  const auto rows = boost::json::parse(ran.out).at("pipeline").as_array();
  EXPECT_EQ(rows[2].at("verdict"), "refused");
  EXPECT_THAT(std::string(rows[2].at("reason").as_string()), HasSubstr("there is no record"));
  EXPECT_EQ(rows[2].at("version"), "-");
}

}  // namespace
}  // namespace luna::app
