// `--set KEY=VALUE`: what it changes, how it is typed, and what it refuses.
#include "core/config/settings_override.hpp"
#include "core/config/settings_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace luna::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kFile = R"([[device]]
name = "a0"
backend = "cpu"
memory = "1 GiB"
[[device]]
name = "a1"
backend = "cpu"
memory = "1 GiB"
[[model]]
name = "main"
path = "small"
devices = ["a0"]
[[stage]]
role = "generate"
model = "main"
[scheduler]
policy = "static"
[scheduler.flowsplit]
low = 0.6
)";

SettingsReading read(const std::vector<std::string>& overrides) {
  return read_settings_text(kFile, "t.toml", "/conf", overrides);
}

Settings settings(const std::vector<std::string>& overrides) {
  SettingsReading reading = read(overrides);
  EXPECT_TRUE(reading.errors.empty()) << join_errors(reading.errors).message();
  return std::move(reading.settings);
}

std::string error(const std::string& text) {
  const SettingsReading reading = read({text});
  EXPECT_EQ(reading.errors.size(), 1U) << text;
  return reading.errors.empty() ? "" : join_errors(reading.errors).message();
}

const RawSetting& own_key(const Settings& from, const std::string& policy, const std::string& key) {
  for (const RawSetting& row : from.scheduler.policies.at(policy).rows)
    if (row.key == key) return row;
  throw std::out_of_range(key);
}

TEST(Override, TakesThePlaceOfWhatTheFileSays) {
  const Settings s = settings({"scheduler.policy=srf"});
  EXPECT_EQ(s.scheduler.policy, "srf");
  EXPECT_EQ(locate(s.file, s.scheduler.policy_at), "--set");
  EXPECT_EQ(settings({"scheduler.policy=\"srf\""}).scheduler.policy, "srf");
  EXPECT_EQ(settings({}).scheduler.policy, "static");
}

TEST(Override, SetsWhatTheFileDoesNotSay) {
  const Settings s = settings({"server.port=9000",
                               "server.body_bytes_max=2 MiB",
                               "log.level=debug",
                               "plugins.require_checked=true",
                               "scheduler.fallback=[\"fair\", \"static\"]"});
  EXPECT_EQ(s.server.port, 9000);
  EXPECT_EQ(s.server.body_bytes_max, 2U << 20U);
  EXPECT_EQ(s.log.level, LogLevel::debug);
  EXPECT_TRUE(s.plugins.require_checked);
  EXPECT_THAT(s.scheduler.fallback, ElementsAre("fair", "static"));
}

TEST(Override, NamesOneOfTheTablesThatRepeat) {
  const Settings s = settings({"device[1].threads=3", "model[0].devices=[\"a0\",\"a1\"]"});
  EXPECT_EQ(s.devices[0].n_threads, 0U);
  EXPECT_EQ(s.devices[1].n_threads, 3U);
  EXPECT_THAT(s.models[0].devices, ElementsAre("a0", "a1"));
}

TEST(Override, KeysOfPluginsKeepTheTypeThatTomlGivesThem) {
  const Settings s = settings({"scheduler.flowsplit.low=0.5",
                               "scheduler.flowsplit.max_queue=7",
                               "scheduler.\"com.example.x\".on=true",
                               "scheduler.srf.word=soon"});
  EXPECT_EQ(std::get<double>(own_key(s, "flowsplit", "low").value), 0.5);
  EXPECT_EQ(std::get<std::int64_t>(own_key(s, "flowsplit", "max_queue").value), 7);
  EXPECT_EQ(std::get<bool>(own_key(s, "com.example.x", "on").value), true);
  EXPECT_EQ(std::get<std::string>(own_key(s, "srf", "word").value), "soon");
}

TEST(Override, ATextKeyTakesTheTextAsItStands) {
  // As TOML these were a number, a truth and a number.
  EXPECT_EQ(settings({"scheduler.policy=42"}).scheduler.policy, "42");
  EXPECT_EQ(settings({"scheduler.policy=true"}).scheduler.policy, "true");
  const std::string digits(64, '7');
  const Settings s = settings({"plugins.sha256.srf=" + digits});
  EXPECT_THAT(s.plugins.pins, ElementsAre(PluginPin{"srf", digits}));
}

TEST(Override, TheLastOneOfAKeyHolds) {
  EXPECT_EQ(settings({"server.port=1", "server.port=2"}).server.port, 2);
}

TEST(Override, WrongValuesAreNamedWithTheirKey) {
  EXPECT_THAT(error("server.port=70000"),
              AllOf(HasSubstr("server.port = 70000: must be a whole number in 0..65535"),
                    HasSubstr("(--set)")));
  EXPECT_THAT(error("server.port=http"), HasSubstr("server.port = \"http\": must be a whole"));
  EXPECT_THAT(error("model[0].kv_cache=fp4"),
              HasSubstr("model[0].kv_cache = \"fp4\": must be one"));
  EXPECT_THAT(error("scheduler.polcy=srf"),
              AllOf(HasSubstr("unknown key 'polcy' in scheduler"), HasSubstr("'policy'")));
  EXPECT_THAT(error("servr.port=1"), HasSubstr("unknown table 'servr'"));
  EXPECT_THAT(error("scheduler.policy=\"\""), HasSubstr("scheduler.policy = \"\": must be a text"));
  EXPECT_THAT(error("plugins.sha256.srf=abc"), HasSubstr("plugins.sha256 = a table: must be"));
}

TEST(Override, WhatIsNoOverrideIsRefusedWithWhatItMustBe) {
  for (const char* text : {"",
                           "=",
                           "scheduler",
                           "scheduler.policy",
                           ".policy=x",
                           "a..b=x",
                           "scheduler.=x",
                           "a b.c=x",
                           "\"\".x=1",
                           "\"open.x=1",
                           "model[0.path=x",
                           "model[].path=x",
                           "model[-1].path=x",
                           "model[99999999999999999999].path=x",
                           "a.b.c.d.e.f.g.h.i=1"})
    EXPECT_THAT(error(text), AllOf(StartsWith("--set"), HasSubstr("must be KEY=VALUE"))) << text;
  EXPECT_THAT(error("log.level="), HasSubstr("has no value"));
  EXPECT_THAT(error("port=1"), HasSubstr("must name a table and a key of it"));
  EXPECT_THAT(error("model[7].path=x"), HasSubstr("there are 1 [[model]], the last is model[0]"));
  EXPECT_THAT(error("device.threads=1"), HasSubstr("there are 2 [[device]]: say which"));
  EXPECT_THAT(error("server[0].port=1"), HasSubstr("server is no table that repeats"));
  EXPECT_THAT(error("scheduler.policy.x=1"), HasSubstr("policy is \"static\", not a table"));
  EXPECT_THAT(error("model[0].devices[0]=x"), HasSubstr("sets a whole list only"));
}

TEST(Override, CannotSmuggleASecondKeyIn) {
  // As TOML text behind "value = " this would be two keys.
  EXPECT_THAT(error("log.level=1\n[server]\nport = 1"), HasSubstr("control characters"));
  EXPECT_THAT(error(std::string("log.level=\0x", 12)), HasSubstr("control characters"));
  EXPECT_THAT(error("log.level=\x1b[31m"), HasSubstr("control characters"));
  EXPECT_THAT(error("log.level=\xff"), HasSubstr("not UTF-8"));
  EXPECT_THAT(error("log.level=debug # quiet"), HasSubstr("log.level = \"debug # quiet\""));
  EXPECT_THAT(error("server.host=" + std::string(kOverrideBytesMax, 'x')),
              HasSubstr("bytes, at most 65536 are allowed"));
  EXPECT_THAT(error("model[0].layers=" + std::string(2000, '[')), HasSubstr("model[0].layers = "));
}

TEST(Override, EveryWrongOneIsTold) {
  const SettingsReading reading = read({"nonsense", "server.port=-1", "log.level=loud"});
  EXPECT_EQ(reading.errors.size(), 3U);
}

TEST(Override, AWorkerTakesWhatItReads) {
  const auto read = read_worker_settings(
      {"plugins.require_checked=true", "transport.tcp.port=7171", "log.level=warn"});
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(read->plugins.require_checked);
  EXPECT_EQ(read->log.level, LogLevel::warn);
  EXPECT_EQ(read->transport.transports.at("tcp").rows.size(), 1U);
  const auto none = read_worker_settings({});
  ASSERT_TRUE(none) << none.error().message();
  EXPECT_FALSE(none->plugins.require_checked);
}

TEST(Override, AWorkerRefusesWhatTheServerSays) {
  const auto policy = read_worker_settings({"scheduler.policy=srf"});
  ASSERT_FALSE(policy);
  EXPECT_THAT(policy.error().message(),
              HasSubstr("scheduler: a worker reads [plugins], [transport] and [log] only"));
  const auto data = read_worker_settings({"transport.data=tcp"});
  ASSERT_FALSE(data);
  EXPECT_THAT(data.error().message(), HasSubstr("transport.data: the server says it"));
}

TEST(PluginPins, AreReadAndRefusedByTheirForm) {
  const std::string digest(64, 'a');
  const auto pinned = [&](const std::string& lines) {
    return read_settings_text(kFile + "[plugins.sha256]\n" + lines, "t.toml", "/conf");
  };
  const SettingsReading good =
      pinned("srf = \"" + digest + "\"\n\"org.luna.backend.cpu\" = \"" + digest + "\"\n");
  ASSERT_TRUE(good.errors.empty()) << join_errors(good.errors).message();
  EXPECT_THAT(good.settings.plugins.pins,
              ElementsAre(PluginPin{"srf", digest}, PluginPin{"org.luna.backend.cpu", digest}));
  for (const std::string& wrong : {std::string("srf = 7"),
                                   std::string("srf = \"\""),
                                   "srf = \"" + digest + "a\"",
                                   "srf = \"" + std::string(64, 'A') + '"',
                                   std::string("srf = [\"a\"]"),
                                   std::string("")})
    EXPECT_FALSE(pinned(wrong + "\n").errors.empty()) << wrong;
}

TEST(PolicyFaults, AreSettableWithinBounds) {
  EXPECT_EQ(settings({}).scheduler.plan_budget, std::chrono::milliseconds(50));
  EXPECT_EQ(settings({}).scheduler.n_plan_faults_max, 8U);
  EXPECT_TRUE(settings({}).scheduler.fallback.empty());
  EXPECT_EQ(settings({"scheduler.plan_faults_max=64"}).scheduler.n_plan_faults_max, 64U);
  for (const char* wrong : {"scheduler.plan_faults_max=0",
                            "scheduler.plan_faults_max=65",
                            "scheduler.plan_budget_ms=0",
                            "scheduler.plan_budget_ms=0.5",
                            "scheduler.fallback=[]",
                            "scheduler.fallback=static"})
    EXPECT_THAT(error(wrong), HasSubstr("scheduler.")) << wrong;
}

}  // namespace
}  // namespace luna::config
