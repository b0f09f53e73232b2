// Typed settings: what a TOML file says, as plain values with their units in the names. The keys,
// their ranges and their defaults stand in one table, settings_schema.cpp; read_settings() fills
// every field from there, so no default is written twice.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace luna::config {

/// Where something stands in the file. Lines and columns count from 1.
struct Position {
  std::uint32_t line = 0;
  std::uint32_t column = 0;

  friend bool operator==(const Position&, const Position&) = default;
};

/// A value whose type only a plugin knows. The map keeps the order of the file.
using RawValue = std::variant<bool,
                              std::int64_t,
                              double,
                              std::string,
                              std::vector<std::string>,
                              std::vector<std::pair<std::string, std::string>>>;

/// One key that belongs to a plugin.
struct RawSetting {
  std::string key;
  RawValue value;
  Position key_at;
  Position value_at;
};

/// The keys of one table that belong to a plugin. core/plugin checks them against the parameters
/// that the plugin declares (plugin::check_settings).
struct RawGroup {
  std::string file;   ///< as it was given, for messages
  std::string table;  ///< "scheduler.flowsplit", "stage[1]"
  Position at;        ///< of the table's head
  std::vector<RawSetting> rows;
  /// The table's own keys, which core reads: candidates when a misspelt key is explained.
  std::vector<std::string> core_keys;
};

/// [server]: where clients connect, and what one client may take.
struct ServerSettings {
  std::string host;
  std::uint16_t port = 0;  ///< 0: any free port
  std::optional<std::filesystem::path> api_keys_file;
  std::uint32_t n_io_threads = 0;
  std::uint32_t n_connections_max = 0;
  std::uint32_t n_requests_max = 0;  ///< waiting and running together; beyond it a client gets 429
  std::uint64_t header_bytes_max = 0;
  std::uint64_t body_bytes_max = 0;
  std::chrono::milliseconds header_timeout{};  ///< from the first byte of a request to its head
  std::chrono::milliseconds body_timeout{};    ///< from the head to the end of the body
  std::chrono::milliseconds idle_timeout{};    ///< between requests of one connection
  std::chrono::milliseconds write_timeout{};   ///< a client that does not read is dropped after it
  std::chrono::milliseconds drain_timeout{};   ///< what running requests get after SIGTERM
  /// What requests wait for devices when those that could hold them have gone.
  std::chrono::milliseconds recovery_timeout{};
  std::vector<std::string> cors_origins;  ///< "*": any
};

/// The SHA-256 that a plugin's file must have.
struct PluginPin {
  std::string plugin;  ///< short name or full id
  std::string sha256;  ///< 64 lower-case hexadecimal digits

  friend bool operator==(const PluginPin&, const PluginPin&) = default;
};

/// [plugins]
struct PluginSettings {
  std::vector<std::filesystem::path> paths;  ///< folders to search, absolute
  bool require_checked = false;              ///< load only what `luna plugins check` has passed
  std::vector<PluginPin> pins;               ///< in the order of the file
  Position pins_at;
};

/// One [[device]].
struct DeviceSettings {
  std::string name;
  std::string backend;  ///< short name or full id of a backend plugin
  Position backend_at;
  std::uint32_t index = 0;
  std::uint64_t memory_bytes = 0;
  std::uint32_t n_threads = 0;  ///< 0: one per usable hardware thread
  RawGroup own;                 ///< the backend's keys
  Position at;
};

enum class KvCacheType { bf16, int8 };
enum class Numerics { i12, i8, bf16 };
enum class PrefixCacheScope { all, tenant };
/// How a model lies on its devices: a range of layers each, a copy each, a part of every layer
/// each, or whichever of them is expected to serve most.
enum class Layout { pipeline, replicas, tensor, automatic };

/// A contiguous range of a model's layers.
struct LayerRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

/// What clients are expected to send: means in tokens.
struct ExpectedLoad {
  std::uint32_t prompt = 128;  ///< new in a request
  std::uint32_t reused = 512;  ///< before it: the history of its session
  std::uint32_t output = 128;
  std::uint32_t users = 32;  ///< sessions, each of which waits for one answer at a time
};

/// One [[model]].
struct ModelSettings {
  std::string name;
  std::string source;  ///< as it was written
  Position source_at;
  /// Where the weights lie, absolute; none when `source` is a name that `luna pull` knows.
  std::optional<std::filesystem::path> path;
  KvCacheType kv_cache = KvCacheType::bf16;
  Numerics numerics = Numerics::i12;
  /// Names of [[device]] tables, in layer order; empty where has_joined_devices.
  std::vector<std::string> devices;
  bool has_joined_devices = false;  ///< it lies on the devices that workers bring
  Layout layout = Layout::pipeline;
  /// The devices once more, by the copy of the model that they hold; none: as the layout says.
  std::optional<std::vector<std::vector<std::string>>> groups;
  /// One range a device, in the order of each group; none: "auto".
  std::optional<std::vector<LayerRange>> layers;
  std::optional<std::uint32_t> context_tokens_max;  ///< none: what the model was trained for
  std::optional<std::uint32_t> kv_tokens_max;       ///< none: what the devices' memory holds
  std::uint32_t kv_reserve_percent = 0;             ///< of the KV cache: left to sequences that run
  std::uint32_t n_sequences_max = 0;                ///< running at the same time
  std::uint32_t step_tokens_max = 0;
  bool probe = true;      ///< layers are placed by measured speed, where no ranges are given
  ExpectedLoad expected;  ///< by which placements and layouts are compared
  std::uint32_t n_micro_batches = 0;     ///< steps in flight; 0: one a device
  std::uint32_t kv_block_tokens = 0;     ///< power of two in 32..256
  std::uint32_t prune_keep_percent = 0;  ///< of a prompt's KV, once it is computed
  /// Of the requests that were sliced, moved or computed anew: computed once more and compared.
  std::uint32_t checked_percent = 0;
  bool prefix_cache = true;  ///< keep KV blocks for prompts that begin the same
  PrefixCacheScope prefix_cache_scope = PrefixCacheScope::all;
  Position at;

  /// Names of devices by group, each of which holds a copy of the model, in layer order.
  [[nodiscard]] std::vector<std::vector<std::string>> device_groups() const;
};

/// One [[stage]], in the order a request passes them.
struct StageSettings {
  std::string role;  ///< short name or full id of a role plugin
  Position role_at;
  std::optional<std::string> model;  ///< name of a [[model]]
  RawGroup own;                      ///< the role's keys
  Position at;
};

/// [scheduler] and its [scheduler.<policy>] tables.
struct SchedulerSettings {
  std::string policy;
  Position policy_at;
  /// What takes its place, one after the other, when it keeps failing; empty: nothing does.
  std::vector<std::string> fallback;
  Position fallback_at;
  std::chrono::milliseconds plan_budget{};  ///< of one plan; a longer one is a fault
  std::uint32_t n_plan_faults_max = 0;      ///< of the last 64 plans; then the policy is replaced
  std::optional<std::filesystem::path> record;  ///< file for every plan; none: none are kept
  std::uint64_t record_bytes_max = 0;           ///< the recording ends there
  std::map<std::string, RawGroup> policies;     ///< by policy
};

/// [transport] and its [transport.<name>] tables.
struct TransportSettings {
  std::string data;  ///< "auto", or short name or full id of a transport plugin
  Position data_at;
  std::map<std::string, RawGroup> transports;  ///< by transport
};

/// [cluster]: there, devices of workers may be used.
struct ClusterSettings {
  std::string host;  ///< address to listen on for workers
  std::uint16_t port = 0;
  std::optional<std::filesystem::path> token_file;
  std::chrono::milliseconds heartbeat{};
  std::chrono::milliseconds timeout{};  ///< a worker that is silent for this long is lost
  std::uint32_t n_devices_min = 0;      ///< of workers, before a model is placed on them
  /// Above this share of its budget for so long, a worker is relieved, drained, restarted.
  std::uint32_t memory_alarm_percent = 0;
  std::chrono::milliseconds memory_alarm{};
};

enum class SpeculationMethod { off, ngram, draft };

/// [speculation]: answers do not depend on it, only how soon they come.
struct SpeculationSettings {
  SpeculationMethod method = SpeculationMethod::off;
  std::uint32_t n_draft_max = 0;
  /// Name of a [[model]] that answers nothing itself; there whenever the method is draft.
  std::optional<std::string> draft_model;
  std::uint32_t ngram_min = 0;
  std::uint32_t ngram_max = 0;
};

enum class LogLevel { trace, debug, info, warn, error, off };

/// [log]
struct LogSettings {
  LogLevel level = LogLevel::info;
};

/// What a worker reads; the server it joins says the rest.
struct WorkerSettings {
  PluginSettings plugins;
  TransportSettings transport;
  LogSettings log;
};

/// A whole file, checked: every name that is referred to exists.
struct Settings {
  std::string file;              ///< as it was given, for messages
  std::filesystem::path folder;  ///< absolute; relative paths in the file start here
  ServerSettings server;
  PluginSettings plugins;
  std::vector<DeviceSettings> devices;
  std::vector<ModelSettings> models;
  std::vector<StageSettings> stages;
  SchedulerSettings scheduler;
  TransportSettings transport;
  std::optional<ClusterSettings> cluster;
  SpeculationSettings speculation;
  LogSettings log;
};

/// "luna.toml:41:22"; "--set" for what is said on the command line.
std::string locate(const std::string& file, Position at);

}  // namespace luna::config
