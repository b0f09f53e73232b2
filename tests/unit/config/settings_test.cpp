#include "core/config/settings.hpp"

#include "core/config/nearest_key.hpp"
#include "core/config/settings_reader.hpp"
#include "core/config/settings_schema.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace luna::config {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

// The least that a configuration must say, in lines 1 to 13.
const std::string kLeast = R"([[device]]
name = "a0"
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
)";

SettingsReading read(const std::string& text) {
  return read_settings_text(text, "t.toml", "/conf");
}

std::string messages(const SettingsReading& reading) {
  return reading.errors.empty() ? "" : join_errors(reading.errors).message();
}

TEST(Settings, ShippedConfigurationsAreRight) {
  for (const char* name : {"luna.toml", "sol.toml"}) {
    const auto path = std::filesystem::path(LUNA_SOURCE_DIR) / "configs" / name;
    const auto settings = read_settings(path);
    ASSERT_TRUE(settings) << settings.error().message();
    EXPECT_EQ(settings->models.size(), 1u);
  }
}

TEST(Settings, AbsentKeysTakeTheDefaultsOfTheSchema) {
  const SettingsReading reading = read(kLeast);
  ASSERT_EQ(messages(reading), "");
  const Settings& s = reading.settings;
  EXPECT_EQ(s.server.host, "127.0.0.1");
  EXPECT_EQ(s.server.port, 8080);
  EXPECT_EQ(s.server.header_bytes_max, 16u * 1024);
  EXPECT_EQ(s.server.body_bytes_max, 8u * 1024 * 1024);
  EXPECT_EQ(s.server.header_timeout, milliseconds(10000));
  EXPECT_FALSE(s.server.api_keys_file);
  EXPECT_EQ(s.devices[0].memory_bytes, std::uint64_t{1} << 30);
  EXPECT_EQ(s.devices[0].n_threads, 0u);
  EXPECT_EQ(s.models[0].kv_cache, KvCacheType::bf16);
  EXPECT_EQ(s.models[0].numerics, Numerics::i12);
  EXPECT_EQ(s.models[0].kv_block_tokens, 32u);
  EXPECT_EQ(s.models[0].prune_keep_percent, 100u);
  EXPECT_EQ(s.models[0].n_micro_batches, 0u);
  EXPECT_EQ(s.models[0].checked_percent, 0u);
  EXPECT_TRUE(s.models[0].prefix_cache);
  EXPECT_EQ(s.models[0].prefix_cache_scope, PrefixCacheScope::all);
  EXPECT_FALSE(s.models[0].layers);
  EXPECT_FALSE(s.models[0].context_tokens_max);
  EXPECT_FALSE(s.models[0].kv_tokens_max);
  EXPECT_EQ(s.transport.data, "auto");
  EXPECT_EQ(s.log.level, LogLevel::info);
}

TEST(Settings, WrittenKeysReachTheirFields) {
  std::string text = kLeast;
  text.replace(text.find("devices = "),
               17,
               "devices = [\"a0\"]\nkv_cache = \"int8\"\nnumerics = \"bf16\"\nlayers = [30]\n"
               "context_tokens_max = 4096\nkv_tokens_max = 16384\nkv_block_tokens = 128\n"
               "prefix_cache = false\nprefix_cache_scope = \"tenant\"\nprobe = false\n"
               "validate_output_consistency = 20\n"
               "expected = {prompt = 50, reused = 0, users = 7}\n");
  const SettingsReading reading =
      read(text +
           "[server]\nport = 0\nidle_timeout_ms = 7\nbody_bytes_max = \"1MiB\"\n"
           "api_keys_file = \"keys\"\n[log]\nlevel = \"warn\"\n"
           "[plugins]\npaths = [\"more\", \"/abs\"]\n");
  ASSERT_EQ(messages(reading), "");
  const Settings& s = reading.settings;
  EXPECT_EQ(s.models[0].kv_cache, KvCacheType::int8);
  EXPECT_EQ(s.models[0].numerics, Numerics::bf16);
  EXPECT_THAT(*s.models[0].layers, ElementsAre(LayerRange{0, 30}));
  EXPECT_EQ(s.models[0].context_tokens_max, 4096u);
  EXPECT_EQ(s.models[0].kv_tokens_max, 16384u);
  EXPECT_EQ(s.models[0].kv_block_tokens, 128u);
  EXPECT_FALSE(s.models[0].prefix_cache);
  EXPECT_EQ(s.models[0].checked_percent, 20u);
  EXPECT_FALSE(s.models[0].probe);
  EXPECT_EQ(s.models[0].expected.prompt, 50u);
  EXPECT_EQ(s.models[0].expected.reused, 0u);
  EXPECT_EQ(s.models[0].expected.output, 128u);
  EXPECT_EQ(s.models[0].expected.users, 7u);
  EXPECT_EQ(s.models[0].prefix_cache_scope, PrefixCacheScope::tenant);
  EXPECT_EQ(s.server.port, 0);
  EXPECT_EQ(s.server.idle_timeout, milliseconds(7));
  EXPECT_EQ(s.server.body_bytes_max, 1u << 20);
  EXPECT_EQ(s.server.api_keys_file, "/conf/keys");
  EXPECT_EQ(s.log.level, LogLevel::warn);
  EXPECT_THAT(s.plugins.paths, ElementsAre("/conf/more", "/abs"));
}

TEST(Settings, AnExpectedLoadHasKnownCountsOnly) {
  for (const char* load : {"5",
                           "{}x",
                           "{prompt = 0}",
                           "{users = 0}",
                           "{prompt = 1.5}",
                           "{prompts = 5}",
                           "{output = 9999999}",
                           "{reused = -1}"}) {
    std::string text = kLeast;
    text.replace(
        text.find("devices = "), 17, "devices = [\"a0\"]\nexpected = " + std::string(load) + "\n");
    EXPECT_NE(messages(read(text)), "") << load;
  }
}

TEST(Settings, LayersAreCountsOrRanges) {
  const std::string two_devices =
      "[[device]]\nname = \"a1\"\nbackend = \"cpu\"\nmemory = 9999999\n";
  for (const char* layers : {"[18, 12]", "[\"0..17\", \"18..29\"]"}) {
    std::string text = kLeast;
    text.replace(text.find("devices = "),
                 17,
                 std::string("devices = [\"a0\", \"a1\"]\nlayers = ") + layers + "\n");
    const SettingsReading reading = read(text + two_devices);
    ASSERT_EQ(messages(reading), "") << layers;
    EXPECT_THAT(*reading.settings.models[0].layers,
                ElementsAre(LayerRange{0, 18}, LayerRange{18, 12}));
  }
}

/// A model on four devices, with more keys.
SettingsReading read_groups(const std::string& keys) {
  std::string text = kLeast;
  text.replace(
      text.find("devices = "), 17, "devices = [\"a0\", \"a1\", \"a2\", \"a3\"]\n" + keys + "\n");
  for (const char* name : {"a1", "a2", "a3"})
    text +=
        std::string("[[device]]\nname = \"") + name + "\"\nbackend = \"cpu\"\nmemory = 9999999\n";
  return read(text);
}

TEST(Settings, GroupsOfDevicesEachHoldACopy) {
  const auto groups_of = [](const std::string& keys) {
    const SettingsReading reading = read_groups(keys);
    EXPECT_EQ(messages(reading), "") << keys;
    return reading.settings.models[0].device_groups();
  };
  using Names = std::vector<std::string>;
  EXPECT_THAT(groups_of(""), ElementsAre(Names{"a0", "a1", "a2", "a3"}));
  EXPECT_THAT(groups_of("layout = \"pipeline\""), ElementsAre(Names{"a0", "a1", "a2", "a3"}));
  EXPECT_THAT(groups_of("layout = \"replicas\""),
              ElementsAre(Names{"a0"}, Names{"a1"}, Names{"a2"}, Names{"a3"}));
  EXPECT_THAT(groups_of("groups = [[\"a0\", \"a1\"], [\"a3\", \"a2\"]]\nlayers = [18, 12]"),
              ElementsAre(Names{"a0", "a1"}, Names{"a3", "a2"}));
}

TEST(Settings, GroupsThatAreNonsenseAreToldWithTheirPlace) {
  const auto wrong = [](const std::string& keys) { return messages(read_groups(keys)); };
  EXPECT_THAT(wrong("layout = \"star\""),
              HasSubstr("one of pipeline|replicas|tensor|auto (t.toml:9:10)"));
  EXPECT_THAT(wrong("groups = [\"a0\"]"), HasSubstr("must be a list of lists"));
  EXPECT_THAT(wrong("groups = [[\"a0\"], []]"), HasSubstr("must be a list of lists"));
  EXPECT_THAT(wrong("groups = [[\"a0\", \"a1\"], [\"a2\", \"a9\"]]"),
              HasSubstr("\"a9\" is not one of model[0].devices; the nearest"));
  EXPECT_THAT(wrong("groups = [[\"a0\", \"a1\"], [\"a2\", \"a3\", \"a0\"]]"),
              HasSubstr("\"a0\" stands there twice (t.toml:9:38)"));
  EXPECT_THAT(wrong("groups = [[\"a0\", \"a1\"], [\"a2\"]]"),
              HasSubstr("\"a3\" of model[0].devices is in none of them (t.toml:9:10)"));
  EXPECT_THAT(wrong("layout = \"replicas\"\ngroups = [[\"a0\", \"a1\"], [\"a2\", \"a3\"]]"),
              HasSubstr("model[0].layout: has no effect beside model[0].groups"));
  EXPECT_THAT(wrong("layout = \"replicas\"\nlayers = [18, 12]"),
              HasSubstr("must be one for each of the 1 devices of a group (t.toml:10:10)"));
  const std::string draft =
      "layout = \"replicas\"\n[[model]]\nname = \"small\"\npath = \"s\"\ndevices = [\"a0\"]\n"
      "kv_tokens_max = 64\n[speculation]\nmethod = \"draft\"\ndraft_model = \"small\"";
  EXPECT_THAT(wrong(draft), HasSubstr("model[0] is held by 4 groups of devices"));
}

TEST(Settings, ModelPathIsAPathOrAKnownName) {
  const auto path_of = [](const std::string& written) {
    std::string text = kLeast;
    text.replace(text.find("\"small\""), 7, '"' + written + '"');
    const SettingsReading reading = read(text);
    EXPECT_EQ(messages(reading), "");
    return reading.settings.models[0].path;
  };
  EXPECT_EQ(path_of("smollm2-135m-instruct"), std::nullopt);
  EXPECT_EQ(path_of("m.gguf"), "/conf/m.gguf");
  EXPECT_EQ(path_of("models/m"), "/conf/models/m");
  EXPECT_EQ(path_of("../m.gguf"), "/m.gguf");
  EXPECT_EQ(path_of("/m/x.gguf"), "/m/x.gguf");
}

TEST(Settings, KeysOfPluginsAreKeptWithTheirPlaces) {
  const SettingsReading reading = read(kLeast +
                                       "[scheduler.flowsplit]\nlow = 0.6\ninterval_ms = 200\n"
                                       "[[stage]]\nrole = \"intent\"\nlabels = [\"a\", \"b\"]\n"
                                       "limits = { code = \"512\", chat = \"64\" }\n");
  ASSERT_EQ(messages(reading), "");
  const RawGroup& policy = reading.settings.scheduler.policies.at("flowsplit");
  EXPECT_EQ(policy.table, "scheduler.flowsplit");
  ASSERT_EQ(policy.rows.size(), 2u);
  EXPECT_EQ(policy.rows[0].key, "low");
  EXPECT_EQ(std::get<double>(policy.rows[0].value), 0.6);
  EXPECT_EQ(policy.rows[0].value_at, (Position{15, 7}));
  EXPECT_EQ(std::get<std::int64_t>(policy.rows[1].value), 200);
  const RawGroup& stage = reading.settings.stages[1].own;
  EXPECT_EQ(stage.table, "stage[1]");
  ASSERT_EQ(stage.rows.size(), 2u);
  EXPECT_THAT(std::get<std::vector<std::string>>(stage.rows[0].value), ElementsAre("a", "b"));
  using Map = std::vector<std::pair<std::string, std::string>>;
  EXPECT_THAT(std::get<Map>(stage.rows[1].value),
              ElementsAre(testing::Pair("code", "512"), testing::Pair("chat", "64")));
  EXPECT_EQ(stage.rows[1].key_at, (Position{20, 1}));
}

TEST(Settings, AllMistakesOfAFileAreReportedInItsOrder) {
  const SettingsReading reading =
      read("[server]\nprot = 1\nport = -1\n" + kLeast + "[log]\nlevel = 3\n");
  ASSERT_EQ(reading.errors.size(), 3u) << messages(reading);
  EXPECT_THAT(reading.errors[0].message(), HasSubstr("'prot'"));
  EXPECT_THAT(reading.errors[1].message(), HasSubstr("t.toml:3:8"));
  EXPECT_THAT(reading.errors[2].message(), HasSubstr("log.level"));
}

TEST(Settings, LineEndsAndAMarkAtTheStartChangeNothing) {
  const std::string bad = kLeast + "[log]\nlevel = 3\n";
  const std::string expected = messages(read(bad));
  std::string crlf;
  for (const char c : bad)
    crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(messages(read(crlf)), expected);
  EXPECT_EQ(messages(read(bad.substr(0, bad.size() - 1))), expected);
  EXPECT_EQ(messages(read("\xEF\xBB\xBF" + bad)), expected);
}

TEST(Settings, LettersOfEveryScriptMayStandInTextsAndComments) {
  for (const char* letters : {"é", "в", "\u0499", "日本", "😀"}) {
    std::string text = kLeast;
    text.replace(text.find("\"main\""), 6, '"' + std::string(letters) + '"');
    text.replace(text.rfind("\"main\""), 6, '"' + std::string(letters) + '"');
    const SettingsReading reading = read("# " + std::string(letters) + "\n" + text);
    ASSERT_EQ(messages(reading), "");
    EXPECT_EQ(reading.settings.models[0].name, letters);
    EXPECT_THAT(messages(read(kLeast + letters + " = 1\n")), HasSubstr("t.toml:14:1"));
  }
}

TEST(Settings, FilesThatCannotBeReadSayWhy) {
  const auto message = [](const std::filesystem::path& path) {
    const auto settings = read_settings(path);
    return settings ? "" : settings.error().message();
  };
  EXPECT_THAT(message("/nowhere/none.toml"), HasSubstr("/nowhere/none.toml: No such file"));
  EXPECT_THAT(message("/tmp"), HasSubstr("not a regular file"));
  EXPECT_THAT(messages(read(std::string(kSettingsBytesMax + 1, '#'))), HasSubstr("at most"));
}

TEST(Settings, HostileTextOfAMegabyteIsRefusedAndDoesNotCrash) {
  const std::size_t n = kSettingsBytesMax - 16;
  for (const std::string unit : {"[", "{a=", "a.", "[a.a", "\"", "'''", "a=[\n{a.a.a=", "\n"}) {
    std::string text;
    while (text.size() + unit.size() < n)
      text += unit;
    EXPECT_NE(messages(read(text)), "") << unit;
  }
}

TEST(NearestKey, CountsSwappedLettersAsOneMistake) {
  const std::vector<std::string> known = {"path", "port", "host"};
  EXPECT_EQ(nearest_key("prot", known), "port");
  EXPECT_EQ(nearest_key("pth", known), "path");
  EXPECT_EQ(nearest_key(std::string(100000, 'x'), known), "path");
  EXPECT_EQ(nearest_key("x", {}), "");
}

TEST(Schema, EveryKeyBelongsToATableAndStandsThereOnce) {
  std::set<std::string> tables;
  for (const TableRow& row : schema_tables())
    EXPECT_TRUE(tables.insert(std::string(row.table)).second);
  std::set<std::string> keys;
  for (const KeyRow& row : schema_keys()) {
    EXPECT_TRUE(tables.contains(std::string(row.table))) << row.key;
    EXPECT_TRUE(keys.insert(std::string(row.table) + "." + std::string(row.key)).second) << row.key;
    EXPECT_FALSE(row.help.empty()) << row.key;
  }
}

}  // namespace
}  // namespace luna::config
