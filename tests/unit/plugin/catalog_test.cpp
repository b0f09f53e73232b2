#include "core/plugin/catalog.hpp"

#include "core/base/clock.hpp"
#include "core/config/settings_reader.hpp"
#include "core/plugin/settings_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace luna::plugin {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const fs::path kGood = fs::path(LUNA_ZOO_DIR) / "none";

class CatalogTest : public testing::Test {
 protected:
  std::unique_ptr<Catalog> scan(std::vector<fs::path> folders) {
    return Catalog::scan({std::move(folders), &services_, std::chrono::minutes(10)});
  }

  const RealClock clock_{};
  HostServices services_{{&clock_, 1, {}}};
  const config::RawGroup no_settings_{"t.toml", "scheduler.zoo", {1, 1}, {}, {}};
};

TEST_F(CatalogTest, FindsByShortNameAndByFullId) {
  const auto catalog = scan({kGood});
  EXPECT_THAT(catalog->names(LUNA_KIND_SCHEDULER), ElementsAre("zoo"));
  EXPECT_THAT(catalog->names(LUNA_KIND_BACKEND), IsEmpty());
  const auto by_name = catalog->load(LUNA_KIND_SCHEDULER, "zoo");
  const auto by_id = catalog->load(LUNA_KIND_SCHEDULER, "org.luna.test.zoo");
  ASSERT_TRUE(by_name && by_id);
  EXPECT_EQ(*by_name, *by_id);
  EXPECT_STREQ((*by_name)->descriptor().version, "0.1.0");
}

TEST_F(CatalogTest, NameOfAnotherKindIsNotFound) {
  const auto catalog = scan({kGood});
  const auto library = catalog->load(LUNA_KIND_BACKEND, "zoo");
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code(), Code::not_found);
}

TEST_F(CatalogTest, MisspeltNameBringsTheNearestOne) {
  const auto catalog = scan({kGood});
  const auto library = catalog->load(LUNA_KIND_SCHEDULER, "zoom");
  ASSERT_FALSE(library);
  EXPECT_THAT(library.error().message(), HasSubstr("the nearest known one is 'zoo'"));
  EXPECT_THAT(library.error().message(), HasSubstr("zoo_none.so"));
}

TEST_F(CatalogTest, TwoInstancesShareALibraryAndStartItOnce) {
  const auto catalog = scan({kGood});
  auto first = catalog->create<luna_scheduler_if>("zoo", no_settings_);
  auto second = catalog->create<luna_scheduler_if>("zoo", no_settings_);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->self(), second->self());
  EXPECT_EQ(&first->table(), &second->table());
  EXPECT_EQ(first->name(), "zoo");
}

TEST_F(CatalogTest, SettingsReachTheInstanceTyped) {
  const auto catalog = scan({kGood});
  config::RawGroup settings = no_settings_;
  settings.rows.push_back({"interval_ms", std::int64_t{17}, {2, 1}, {2, 15}});
  const auto made = catalog->create<luna_scheduler_if>("zoo", settings);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(*static_cast<std::int64_t*>(made->self()), 17);
}

TEST_F(CatalogTest, WrongSettingsStopCreationWithTheirPlaces) {
  const auto catalog = scan({kGood});
  config::RawGroup settings = no_settings_;
  settings.rows.push_back({"interval_s", std::int64_t{1}, {2, 1}, {2, 14}});
  settings.rows.push_back({"low", 1.5, {3, 1}, {3, 7}});
  const auto made = catalog->create<luna_scheduler_if>("zoo", settings);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr("(t.toml:2:1)"));
  EXPECT_THAT(made.error().message(), HasSubstr("'interval_ms'"));
  EXPECT_THAT(made.error().message(),
              HasSubstr("low = 1.5: must be a number in 0..1 (t.toml:3:7)"));
}

TEST_F(CatalogTest, FileThatIsNamedIsLoadedWhereverItLies) {
  const auto catalog = scan({});
  EXPECT_TRUE(catalog->load_file(kGood / "zoo_none.so"));
  const auto missing = catalog->load_file("/nowhere/gone.so");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message(), "/nowhere/gone.so: No such file or directory");
}

TEST_F(CatalogTest, PluginsAreSearchedInTheStatedOrder) {
  ASSERT_EQ(::setenv("LUNA_PLUGIN_PATH", "/env/a::relative:/env/b", 1), 0);
  const auto folders = search_folders({"/line"}, {"/settings", "/line"});
  ::unsetenv("LUNA_PLUGIN_PATH");
  ASSERT_EQ(folders.size(), 6u);
  EXPECT_EQ(folders[0], "/line");
  EXPECT_EQ(folders[1], "/settings");
  EXPECT_EQ(folders[2], "/env/a");
  EXPECT_EQ(folders[4], "/env/b");
  EXPECT_THAT(folders[5].string(), testing::EndsWith("/lib/luna/plugins"));
}

const std::string kBase = R"([[device]]
name = "a0"
backend = "cpu"
memory = "1 GiB"
[[model]]
name = "main"
path = "small"
devices = ["a0"]
[[stage]]
role = "generate"
[scheduler]
policy = "zoo"
)";

std::string check(const std::string& text, Catalog& catalog) {
  const auto reading = config::read_settings_text(text, "t.toml", "/conf");
  EXPECT_TRUE(reading.errors.empty()) << config::join_errors(reading.errors).message();
  return config::join_errors(check_settings(reading.settings, catalog)).message();
}

TEST_F(CatalogTest, CheckNamesEveryPluginThatIsNotThere) {
  const auto catalog = scan({kGood});
  const std::string message = check(kBase, *catalog);
  EXPECT_THAT(message, HasSubstr("device[0].backend = \"cpu\" (t.toml:3:11): plugin 'cpu'"));
  EXPECT_THAT(message, HasSubstr("stage[0].role = \"generate\" (t.toml:10:8)"));
  EXPECT_THAT(message, testing::Not(HasSubstr("scheduler.policy")));
}

TEST_F(CatalogTest, CheckHoldsATableAgainstTheParametersOfItsPolicy) {
  const auto catalog = scan({kGood});
  const std::string message =
      check(kBase + "[scheduler.zoo]\nintervall_ms = 3\nlow = -1\norder = \"x\"\ndynamic = 1\n",
            *catalog);
  EXPECT_THAT(message,
              HasSubstr("unknown key 'intervall_ms' in scheduler.zoo; the nearest known one is "
                        "'interval_ms' (t.toml:14:1)"));
  EXPECT_THAT(message, HasSubstr("scheduler.zoo.low = -1: must be a number in 0..1 (t.toml:15:7)"));
  EXPECT_THAT(message, HasSubstr("must be a text among fifo|lifo (t.toml:16:9)"));
  EXPECT_THAT(message, HasSubstr("must be true or false (t.toml:17:11)"));
}

TEST_F(CatalogTest, TableOfAPolicyThatIsNotInstalledIsAnError) {
  const auto catalog = scan({kGood});
  EXPECT_THAT(check(kBase + "[scheduler.zooo]\nlow = 1\n", *catalog),
              HasSubstr("table [scheduler.zooo] (t.toml:13:1)"));
}

}  // namespace
}  // namespace luna::plugin
