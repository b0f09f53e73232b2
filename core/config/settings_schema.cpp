#include "core/config/settings_schema.hpp"

#include "core/base/units.hpp"

#include <array>
#include <type_traits>

namespace luna::config {
namespace {

template <typename Member>
struct MemberTraits;
template <typename Record, typename Field>
struct MemberTraits<Field Record::*> {
  using RecordType = Record;
};

template <typename Field>
void assign(Field& field, const Value& value) {
  if constexpr (std::is_enum_v<Field> || std::is_integral_v<Field>) {
    field = static_cast<Field>(std::get<std::int64_t>(value));
  } else if constexpr (std::is_same_v<Field, std::chrono::milliseconds>) {
    field = std::chrono::milliseconds(std::get<std::int64_t>(value));
  } else {
    field = std::get<Field>(value);
  }
}

template <typename Field>
void assign(std::optional<Field>& field, const Value& value) {
  assign(field.emplace(), value);
}

/// Puts a value into the member it belongs to.
template <auto Member>
void store(void* record, const Value& value) {
  using Record = typename MemberTraits<decltype(Member)>::RecordType;
  assign(static_cast<Record*>(record)->*Member, value);
}

using enum ValueType;
constexpr std::int64_t kDayMs = std::int64_t{24} * 60 * 60 * 1000;
constexpr std::int64_t kLayersMax = 4096;
constexpr std::int64_t kNameBytesMax = 128;
constexpr std::optional<std::string_view> kRequired = std::nullopt;

// clang-format off
constexpr std::array kTables = {
  TableRow{"server", TableForm::single, OtherKeys::refused, false,
           "where clients connect, and what one client may take"},
  TableRow{"plugins", TableForm::single, OtherKeys::refused, false,
           "where plugins are searched"},
  TableRow{"device", TableForm::repeated, OtherKeys::of_plugin, true,
           "a device: a backend, its index and its memory budget"},
  TableRow{"model", TableForm::repeated, OtherKeys::refused, true,
           "a model and where its layers lie"},
  TableRow{"stage", TableForm::repeated, OtherKeys::of_plugin, true,
           "a stage of every request, in order"},
  TableRow{"scheduler", TableForm::single, OtherKeys::tables_of_plugins, true,
           "which policy plans the steps; its keys stand in [scheduler.<policy>]"},
  TableRow{"transport", TableForm::single, OtherKeys::tables_of_plugins, false,
           "what moves data between devices; its keys stand in [transport.<name>]"},
  TableRow{"cluster", TableForm::single, OtherKeys::refused, false,
           "where workers join with devices of other processes; absent: nobody joins"},
  TableRow{"speculation", TableForm::single, OtherKeys::refused, false,
           "how tokens are guessed ahead and verified together; answers stay the same"},
  TableRow{"log", TableForm::single, OtherKeys::refused, false,
           "what is written to standard error"},
};

constexpr std::array kKeys = {
  KeyRow{"server", "host", text, 1, 255, "", "127.0.0.1",
         "address to listen on", store<&ServerSettings::host>},
  KeyRow{"server", "port", integer, 0, 65535, "", "8080",
         "TCP port; 0 takes any free one", store<&ServerSettings::port>},
  KeyRow{"server", "api_keys_file", path, 0, 0, "", "",
         "file with one API key a line; empty: no keys, loopback only",
         store<&ServerSettings::api_keys_file>},
  KeyRow{"server", "io_threads", integer, 1, 64, "", "2",
         "threads that serve connections", store<&ServerSettings::n_io_threads>},
  KeyRow{"server", "connections_max", integer, 1, 65536, "", "1024",
         "open connections; further ones are answered 503", store<&ServerSettings::n_connections_max>},
  KeyRow{"server", "requests_max", integer, 1, 65536, "", "256",
         "requests waiting and running; further ones are answered 429",
         store<&ServerSettings::n_requests_max>},
  KeyRow{"server", "header_bytes_max", bytes, kKiB, kMiB, "", "16 KiB",
         "longest head of a request", store<&ServerSettings::header_bytes_max>},
  KeyRow{"server", "body_bytes_max", bytes, kKiB, kGiB, "", "8 MiB",
         "longest body of a request", store<&ServerSettings::body_bytes_max>},
  KeyRow{"server", "header_timeout_ms", integer, 1, kDayMs, "", "10000",
         "time for the head of a request", store<&ServerSettings::header_timeout>},
  KeyRow{"server", "body_timeout_ms", integer, 1, kDayMs, "", "30000",
         "time for the body of a request", store<&ServerSettings::body_timeout>},
  KeyRow{"server", "idle_timeout_ms", integer, 1, kDayMs, "", "60000",
         "time between two requests of a connection", store<&ServerSettings::idle_timeout>},
  KeyRow{"server", "write_timeout_ms", integer, 1, kDayMs, "", "30000",
         "time for a client to take what was written", store<&ServerSettings::write_timeout>},
  KeyRow{"server", "drain_timeout_ms", integer, 0, kDayMs, "", "30000",
         "time that running requests get at shutdown", store<&ServerSettings::drain_timeout>},
  KeyRow{"server", "recovery_timeout_ms", integer, 0, kDayMs, "", "30000",
         "time that requests wait for devices when those that could hold them have gone",
         store<&ServerSettings::recovery_timeout>},
  KeyRow{"server", "cors_origins", text_list, 0, 0, "", "",
         "origins whose pages may ask from a browser; [\"*\"]: any; absent: none",
         store<&ServerSettings::cors_origins>},

  KeyRow{"plugins", "paths", path_list, 0, 0, "", "",
         "further folders to search, before LUNA_PLUGIN_PATH and the installed plugins",
         store<&PluginSettings::paths>},
  KeyRow{"plugins", "require_checked", boolean, 0, 0, "", "false",
         "load only plugins with a record beside them that `luna plugins check --record` wrote: of this "
         "very file, by this version, passed", store<&PluginSettings::require_checked>},
  KeyRow{"plugins", "sha256", pins, 0, 0, "", "",
         "what the files of plugins must be, by short name or full id; others are not held to anything",
         store<&PluginSettings::pins>},

  KeyRow{"device", "name", text, 1, kNameBytesMax, "", kRequired,
         "name that models refer to", store<&DeviceSettings::name>},
  KeyRow{"device", "backend", text, 1, kNameBytesMax, "", kRequired,
         "backend plugin, by short name or full id", store<&DeviceSettings::backend>},
  KeyRow{"device", "index", integer, 0, 1023, "", "0",
         "which of the backend's devices", store<&DeviceSettings::index>},
  KeyRow{"device", "memory", bytes, kMiB, kMiB * kGiB, "", kRequired,
         "budget for weights, KV cache and scratch", store<&DeviceSettings::memory_bytes>},
  KeyRow{"device", "threads", integer, 0, 1024, "", "0",
         "worker threads; 0: one per usable hardware thread", store<&DeviceSettings::n_threads>},

  KeyRow{"model", "name", text, 1, kNameBytesMax, "", kRequired,
         "name that stages and clients use", store<&ModelSettings::name>},
  KeyRow{"model", "path", text, 1, 4096, "", kRequired,
         "a GGUF file or a folder of shards, by a path (with a '/' or ending in .gguf) relative to "
         "this file, or a name `luna pull` knows",
         store<&ModelSettings::source>},
  KeyRow{"model", "kv_cache", choice, 0, 0, "bf16|int8", "bf16",
         "type of the KV cache", store<&ModelSettings::kv_cache>},
  KeyRow{"model", "numerics", choice, 0, 0, "i12|i8|bf16", "i12",
         "numeric class of quantized weights", store<&ModelSettings::numerics>},
  KeyRow{"model", "devices", text_list, 0, 0, "", kRequired,
         "names of the devices that hold it, in layer order; [\"*\"]: all that workers bring",
         store<&ModelSettings::devices>},
  KeyRow{"model", "layout", choice, 0, 0, "pipeline|replicas|tensor|auto", "pipeline",
         "pipeline: the devices share the layers of one copy; replicas: each device holds a copy; tensor: "
         "each has a part of every layer; auto: what is predicted to serve most of the `expected` load",
         store<&ModelSettings::layout>},
  KeyRow{"model", "groups", text_lists, 0, 0, "", "",
         "the devices once more, such as [[\"a0\", \"a1\"], [\"a2\", \"a3\"]]: those of each list share "
         "the layers of one copy", store<&ModelSettings::groups>},
  KeyRow{"model", "layers", layers, 0, kLayersMax, "", "auto",
         "layers per device, the same in each group", store<&ModelSettings::layers>},
  KeyRow{"model", "context_tokens_max", integer, 16, 1 << 24, "", "",
         "longest sequence, prompt and answer; absent: what the model was trained for",
         store<&ModelSettings::context_tokens_max>},
  KeyRow{"model", "kv_tokens_max", integer, 64, 1 << 28, "", "",
         "tokens that the KV cache of a copy holds, all its sequences together; absent: all memory "
         "that is left",
         store<&ModelSettings::kv_tokens_max>},
  KeyRow{"model", "kv_reserve_percent", integer, 0, 50, "", "1",
         "of the KV cache: a waiting request starts only where so much stays free for running ones",
         store<&ModelSettings::kv_reserve_percent>},
  KeyRow{"model", "sequences_max", integer, 1, 4096, "", "64",
         "sequences that run at the same time on a copy of the model", store<&ModelSettings::n_sequences_max>},
  KeyRow{"model", "step_tokens_max", integer, 1, 65536, "", "512",
         "tokens that one step of a copy computes", store<&ModelSettings::step_tokens_max>},
  KeyRow{"model", "micro_batches", integer, 0, 8, "", "0",
         "steps in flight, so that each device works on one; 0: as many as devices; with a draft model 1",
         store<&ModelSettings::n_micro_batches>},
  KeyRow{"model", "probe", boolean, 0, 0, "", "true",
         "with several devices: time a layer and a part of the head on each at start (kept in the user's cache), "
         "and place layers so that the slowest is fastest; false: by bytes",
         store<&ModelSettings::probe>},
  KeyRow{"model", "expected", load, 0, 1 << 20, "", "",
         "what clients will send, by which placements and layouts are compared: tokens of a prompt, of "
         "the history before it that the prefix cache may hold, of an answer, and how many users",
         store<&ModelSettings::expected>},
  KeyRow{"model", "kv_block_tokens", choice, 0, 0, "32|64|128|256", "32",
         "tokens of a KV block", [](void* record, const Value& value) {
           static_cast<ModelSettings*>(record)->kv_block_tokens =
               32u << std::get<std::int64_t>(value);
         }},
  KeyRow{"model", "prune_keep_percent", integer, 1, 100, "", "100",
         "share of a prompt's KV that is kept once it is computed, by the attention it got; 100: all",
         store<&ModelSettings::prune_keep_percent>},
  KeyRow{"model", "prefix_cache", boolean, 0, 0, "", "true",
         "keep KV blocks that no sequence uses, for prompts that begin the same",
         store<&ModelSettings::prefix_cache>},
  KeyRow{"model", "prefix_cache_scope", choice, 0, 0, "all|tenant", "all",
         "who finds a kept block: whoever sends its tokens, or the API key alone that sent them",
         store<&ModelSettings::prefix_cache_scope>},

  KeyRow{"model", "validate_output_consistency", integer, 0, 100, "", "0",
         "of 100 requests that were sliced, moved or computed anew after a failure: how many are computed "
         "once more while nobody waits, and compared (log, /metrics, /admin/checks); 0: none",
         store<&ModelSettings::checked_percent>},

  KeyRow{"stage", "role", text, 1, kNameBytesMax, "", kRequired,
         "role plugin, by short name or full id", store<&StageSettings::role>},
  KeyRow{"stage", "model", text, 1, kNameBytesMax, "", "",
         "name of the model that the role uses", store<&StageSettings::model>},

  KeyRow{"scheduler", "policy", text, 1, kNameBytesMax, "", kRequired,
         "scheduler plugin, by short name or full id", store<&SchedulerSettings::policy>},
  KeyRow{"scheduler", "fallback", text_list, 0, 0, "", "",
         "scheduler plugins that take the place of a policy that keeps failing, one after the other; "
         "absent: nothing does", store<&SchedulerSettings::fallback>},
  KeyRow{"scheduler", "plan_budget_ms", integer, 1, 60000, "", "50",
         "a plan that takes longer is a fault of the policy; it is carried out all the same",
         store<&SchedulerSettings::plan_budget>},
  KeyRow{"scheduler", "plan_faults_max", integer, 1, 64, "", "8",
         "of the last 64 plans so many illegal or late ones: the policy is replaced, if a fallback is written",
         store<&SchedulerSettings::n_plan_faults_max>},
  KeyRow{"scheduler", "record", path, 0, 0, "", "",
         "file that every plan is written to, for `luna replay`; empty: none",
         store<&SchedulerSettings::record>},
  KeyRow{"scheduler", "record_bytes_max", bytes, kMiB, kMiB * kGiB, "", "1 GiB",
         "the recording of plans ends when its file has grown to this",
         store<&SchedulerSettings::record_bytes_max>},
  KeyRow{"transport", "data", text, 1, kNameBytesMax, "", "auto",
         "transport plugin between devices; auto: the nearest that both ends share",
         store<&TransportSettings::data>},
  KeyRow{"cluster", "host", text, 1, 255, "", "127.0.0.1",
         "address to listen on for workers; beyond loopback only with token_file",
         store<&ClusterSettings::host>},
  KeyRow{"cluster", "port", integer, 0, 65535, "", "7070",
         "TCP port for workers; 0 takes any free one", store<&ClusterSettings::port>},
  KeyRow{"cluster", "token_file", path, 0, 0, "", "",
         "file with the secret of 16 bytes or more that workers must know; it is never sent",
         store<&ClusterSettings::token_file>},
  KeyRow{"cluster", "heartbeat_ms", integer, 10, 60000, "", "200",
         "how often the controller and a worker tell each other that they live",
         store<&ClusterSettings::heartbeat>},
  KeyRow{"cluster", "timeout_ms", integer, 50, 600000, "", "1000",
         "a worker that says nothing for this long is lost; one that died is noticed at once",
         store<&ClusterSettings::timeout>},
  KeyRow{"cluster", "min_devices", integer, 1, 1024, "", "1",
         "devices of workers that must be there before a model is placed on them",
         store<&ClusterSettings::n_devices_min>},
  KeyRow{"cluster", "memory_alarm_percent", integer, 1, 99, "", "85",
         "share of a worker's budget that bytes may take which no eviction gives back, KV left out",
         store<&ClusterSettings::memory_alarm_percent>},
  KeyRow{"cluster", "memory_alarm_ms", integer, 100, kDayMs, "", "60000",
         "a worker above it for this long gives back what it can; if that does not help, it is "
         "drained and ends with status 75, to be started again",
         store<&ClusterSettings::memory_alarm>},
  KeyRow{"speculation", "method", choice, 0, 0, "off|ngram|draft", "off",
         "ngram: what followed the same tokens before, in the prompt or the answer; draft: what "
         "draft_model says", store<&SpeculationSettings::method>},
  KeyRow{"speculation", "draft_model", text, 1, kNameBytesMax, "", "",
         "a [[model]] with the same vocabulary that drafts for the others; no stage may use it, and "
         "it needs kv_tokens_max", store<&SpeculationSettings::draft_model>},
  KeyRow{"speculation", "n_draft_max", integer, 1, 31, "", "8",
         "tokens guessed ahead at most", store<&SpeculationSettings::n_draft_max>},
  KeyRow{"speculation", "ngram_min", integer, 1, 8, "", "2",
         "shortest run of tokens that is looked up", store<&SpeculationSettings::ngram_min>},
  KeyRow{"speculation", "ngram_max", integer, 1, 8, "", "4",
         "longest run of tokens that is looked up", store<&SpeculationSettings::ngram_max>},
  KeyRow{"log", "level", choice, 0, 0, "trace|debug|info|warn|error|off", "info",
         "least serious lines that are written", store<&LogSettings::level>},
};
// clang-format on

}  // namespace

std::span<const TableRow> schema_tables() {
  return kTables;
}

std::span<const KeyRow> schema_keys() {
  return kKeys;
}

std::vector<std::string> keys_of(std::string_view table) {
  std::vector<std::string> keys;
  for (const KeyRow& row : kKeys)
    if (row.table == table) keys.emplace_back(row.key);
  return keys;
}

std::string describe_key(const KeyRow& row) {
  const std::string range = std::to_string(row.min) + ".." + std::to_string(row.max);
  switch (row.type) {
    case boolean:
      return "true or false";
    case integer:
      return "a whole number in " + range;
    case bytes:
      return "a size in " + range + " bytes, such as 1073741824, \"512 MiB\" or \"1 GiB\"";
    case text:
      return "a text of " + range + " bytes without control characters";
    case choice:
      return "one of " + std::string(row.choices);
    case path:
      return "a path";
    case path_list:
      return "a list of paths";
    case text_list:
      return "a list of at least one text";
    case text_lists:
      return "a list of lists of at least one text each, such as [[\"a0\", \"a1\"], [\"a2\"]]";
    case layers:
      return "\"auto\", layers per device such as [18, 12], or ranges such as [\"0..17\", "
             "\"18..29\"]";
    case pins:
      return "a table of a SHA-256 (64 lower-case hexadecimal digits) for each plugin, such as "
             "{srf = \"9f86d0...\"}";
    case load:
      return "a table such as {prompt = 128, reused = 512, output = 128, users = 32} of whole "
             "numbers up to " +
             std::to_string(row.max) + ", all but reused at least 1";
  }
  return "";
}

}  // namespace luna::config
