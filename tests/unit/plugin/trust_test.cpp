// Pins and records: what is refused before any code of a plugin runs.
#include "core/plugin/trust.hpp"

#include "core/base/clock.hpp"
#include "core/config/settings_reader.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/check_record.hpp"
#include "core/plugin/settings_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <unistd.h>

namespace luna::plugin {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string digest_of(const fs::path& file) {
  const std::string bytes = bytes_of(file);
  return sha256_text(std::as_bytes(std::span(bytes)));
}

CheckRecord good_record(const std::string& sha256) {
  CheckRecord record;
  record.sha256 = sha256;
  record.id = "org.luna.test.zoo";
  record.checker = program_version();
  record.abi_major = LUNA_ABI_MAJOR;
  record.abi_minor = LUNA_ABI_MINOR;
  record.verdict = kCheckPassed;
  record.n_cases = 12;
  record.seed = 1;
  record.n_seeds = 1;
  return record;
}

/// A plugin whose constructor ends the process: whoever loads it is seen.
class TrustTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("luna-trust-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    take("none");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void take(const std::string& fault) {
    plugin_ = folder_ / "scheduler_zoo.so";
    fs::copy_file(fs::path(LUNA_ZOO_DIR) / fault / ("zoo_" + fault + ".so"),
                  plugin_,
                  fs::copy_options::overwrite_existing);
  }
  void write_record(const std::string& text) {
    std::ofstream(record_path(plugin_), std::ios::binary) << text;
  }
  /// What speaks against loading it; empty: it was loaded.
  std::string load(Trust trust) {
    Catalog::Options options;
    options.folders = {folder_};
    options.services = &services_;
    options.trust = std::move(trust);
    const auto catalog = Catalog::scan(std::move(options));
    const auto library = catalog->load(LUNA_KIND_SCHEDULER, "zoo");
    return library ? "" : library.error().message();
  }

  const RealClock clock_{};
  HostServices services_{{&clock_, 1, {}}};
  fs::path folder_;
  fs::path plugin_;
};

TEST_F(TrustTest, APinThatHoldsLoads) {
  EXPECT_EQ(load({false, {{"zoo", digest_of(plugin_)}}}), "");
  EXPECT_EQ(load({false, {{"org.luna.test.zoo", digest_of(plugin_)}}}), "");
}

TEST_F(TrustTest, PinsOfOthersSayNothing) {
  EXPECT_EQ(load({false, {{"other", std::string(64, '0')}}}), "");
}

TEST_F(TrustTest, AnotherFileIsRefusedBeforeItsCodeRuns) {
  const std::string pinned = digest_of(plugin_);
  take("exits_in_constructor");
  const std::string reason = load({false, {{"zoo", pinned}}});
  EXPECT_THAT(
      reason,
      HasSubstr("plugins.sha256.zoo = \"" + pinned + "\", the file has " + digest_of(plugin_)));
  EXPECT_THAT(reason, HasSubstr("put back the file that was pinned"));
  EXPECT_THAT(reason, HasSubstr(plugin_.string()));
}

TEST_F(TrustTest, OneByteMoreIsAnotherFile) {
  const std::string pinned = digest_of(plugin_);
  std::ofstream(plugin_, std::ios::app | std::ios::binary) << '\0';
  EXPECT_THAT(load({false, {{"zoo", pinned}}}), HasSubstr("plugins.sha256.zoo"));
}

TEST_F(TrustTest, TwoPinsOfOnePluginMustBothHold) {
  EXPECT_THAT(
      load({false, {{"zoo", digest_of(plugin_)}, {"org.luna.test.zoo", std::string(64, '0')}}}),
      HasSubstr("plugins.sha256.org.luna.test.zoo"));
}

TEST_F(TrustTest, ARecordThatPassedLoads) {
  write_record(print_record(good_record(digest_of(plugin_))));
  EXPECT_EQ(load({true, {}}), "");
}

TEST_F(TrustTest, WithoutARecordItIsRefusedBeforeItsCodeRuns) {
  take("exits_in_constructor");
  const std::string reason = load({true, {}});
  EXPECT_THAT(reason,
              HasSubstr("plugins.require_checked = true: there is no record " +
                        record_path(plugin_).string()));
  EXPECT_THAT(reason, HasSubstr("`luna plugins check --record " + plugin_.string() + "`"));
}

TEST_F(TrustTest, EveryFieldOfARecordBinds) {
  const CheckRecord good = good_record(digest_of(plugin_));
  const auto with = [&](auto change) {
    CheckRecord record = good;
    change(record);
    write_record(print_record(record));
    return load({true, {}});
  };
  EXPECT_THAT(with([](CheckRecord& r) { r.sha256 = std::string(64, '0'); }),
              HasSubstr("is of another file"));
  EXPECT_THAT(with([](CheckRecord& r) { r.id = "org.other"; }),
              HasSubstr("is of the plugin org.other"));
  EXPECT_THAT(with([](CheckRecord& r) { r.checker = "0.0.1"; }),
              HasSubstr("was written by version 0.0.1, this is version"));
  EXPECT_THAT(with([](CheckRecord& r) { ++r.abi_minor; }), HasSubstr("is about ABI"));
  EXPECT_THAT(with([](CheckRecord& r) { ++r.abi_major; }), HasSubstr("is about ABI"));
  EXPECT_THAT(with([](CheckRecord& r) { r.verdict = "broken"; }),
              HasSubstr("says that the check was broken"));
  EXPECT_THAT(with([](CheckRecord& r) { r.verdict = "skipped"; }),
              HasSubstr("says that the check was skipped"));
  EXPECT_EQ(with([](CheckRecord&) {}), "");
}

TEST_F(TrustTest, ARecordIsNoRecordWhenAnyByteOfItDiffers) {
  const std::string good = print_record(good_record(digest_of(plugin_)));
  ASSERT_TRUE(parse_record(good));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = bad[i] == '1' ? '2' : '1';
    EXPECT_FALSE(parse_record(bad)) << "byte " << i;
    EXPECT_FALSE(parse_record(good.substr(0, i))) << "cut at " << i;
  }
  for (const std::string& bad : {std::string(),
                                 good + "\n",
                                 good + good,
                                 "\n" + good,
                                 std::string(1 << 20, 'x'),
                                 std::string(200, '\0')})
    EXPECT_FALSE(parse_record(bad));
}

TEST_F(TrustTest, WhatIsNoFileIsNoRecord) {
  for (const bool is_pipe : {false, true}) {
    fs::remove_all(record_path(plugin_));
    if (is_pipe)
      ASSERT_EQ(::mkfifo(record_path(plugin_).c_str(), 0600), 0);
    else
      fs::create_directory(record_path(plugin_));
    EXPECT_THAT(load({true, {}}), HasSubstr("plugins.require_checked = true: "));
  }
}

TEST_F(TrustTest, APinOfAPluginThatIsNotThereIsAnError) {
  const auto catalog = Catalog::scan({{folder_}, &services_});
  config::PluginSettings settings;
  settings.pins = {{"zoo", std::string(64, '0')}, {"zooo", std::string(64, '0')}};
  settings.pins_at = {7, 1};
  const auto errors = check_pins(settings, "t.toml", *catalog);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_THAT(errors[0].message(), HasSubstr("plugins.sha256.zooo (t.toml:7:1): no plugin"));
  EXPECT_THAT(errors[0].message(), HasSubstr("the nearest known one is 'zoo'"));
}

}  // namespace
}  // namespace luna::plugin
