// What a controller and a worker tell each other once they trust each other, but for steps and KV.
// Pure: every parser checks lengths and ranges that need no state.
#pragma once

#include "core/cluster/wire.hpp"
#include "core/model/device_shard.hpp"

#include <luna/abi/backend.h>
#include <luna/result.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::cluster {

/// A plugin of a process, as far as results depend on it.
struct PluginIdentity {
  std::string id;       ///< "org.luna.backend.cpu"
  std::string version;  ///< its own
  std::uint32_t abi_minor_built = 0;

  friend bool operator==(const PluginIdentity&, const PluginIdentity&) = default;
};

/// What a device computed of the probe, in one way of computing.
struct Fingerprint {
  std::uint32_t numerics = 0;  ///< LUNA_NUMERICS_*
  std::uint32_t kv_dtype = 0;  ///< LUNA_DTYPE_*
  std::uint64_t hash = 0;

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

struct DeviceOffer {
  std::string name;     ///< "w0/cpu:0"
  std::string backend;  ///< short name
  luna_device_info info{};
  std::uint64_t memory_bytes = 0;
  std::uint32_t n_threads = 0;
  bool can_slice = false;  ///< copies of a model on it may hold slices for each other
  std::vector<Fingerprint> fingerprints;
};

struct TransportOffer {
  std::string name;         ///< short name
  std::uint32_t reach = 0;  ///< LUNA_REACH_*
};

/// join: all that the controller wants to know of a worker.
struct Join {
  std::string name;
  std::string version;  ///< of luna
  std::string host;     ///< equal on one host, for processes that may share memory
  std::uint64_t process_id = 0;
  std::vector<PluginIdentity> plugins;
  std::vector<TransportOffer> transports;
  std::vector<std::string> roles;  ///< stages it may be given; empty: all
  std::vector<DeviceOffer> devices;
};
Bytes encode_join(const Join& join);
/// Errors  corrupt
Result<Join> parse_join(std::span<const std::byte> payload);

/// dismiss: why a worker ends.
enum class Farewell : std::uint8_t {
  asked,    ///< it asked for it
  drained,  ///< somebody asked the controller for it
  restart,  ///< it shall be started again: it holds memory that it does not give back
};
Bytes encode_farewell(Farewell farewell);
/// Errors  corrupt
Result<Farewell> parse_farewell(std::span<const std::byte> payload);

/// memory: what a worker's process takes, in bytes, since it began to work.
struct MemoryReport {
  std::uint64_t resident = 0;  ///< that no file stands behind, beyond what it had before any shard
  std::uint64_t fixed = 0;     ///< planned for the weights and working memory of its shards
  std::uint64_t kv = 0;        ///< and for their KV
  std::uint64_t spare = 0;     ///< weights that no shard uses
  std::uint64_t budget = 0;    ///< of all its devices

  friend bool operator==(const MemoryReport&, const MemoryReport&) = default;
};
Bytes encode_memory(const MemoryReport& report);
/// Errors  corrupt
Result<MemoryReport> parse_memory(std::span<const std::byte> payload);

/// survey: of which model, on which device of the worker.
struct Survey {
  std::uint32_t device_idx = 0;
  model::SurveyOrder order;
};
Bytes encode_survey(const Survey& survey);
/// Errors  corrupt
Result<Survey> parse_survey(std::span<const std::byte> payload);

/// plan: a shard on a device of the worker.
struct Plan {
  std::uint32_t device_idx = 0;
  model::ShardOrder order;
};
Bytes encode_plan(const Plan& plan);
/// Errors  corrupt
Result<Plan> parse_plan(std::span<const std::byte> payload);

/// bind
struct Bind {
  std::uint32_t n_kv_blocks = 0;
  model::LinkTerms terms;
};
Bytes encode_bind(const Bind& bind);
/// Errors  corrupt
Result<Bind> parse_bind(std::span<const std::byte> payload);

/// slices_open: the shard attends for one of another copy, and may ask it.
Bytes encode_slice_terms(const model::SliceTerms& terms);
/// Errors  corrupt
Result<model::SliceTerms> parse_slice_terms(std::span<const std::byte> payload);

/// slices_abort, slices_close: the place of another copy.
Bytes encode_slice_place(std::uint32_t place);
/// Errors  corrupt
Result<std::uint32_t> parse_slice_place(std::span<const std::byte> payload);

/// answer: to a plan with what the shard takes and where its rank and its slices are reached, to a
/// survey with the layers and, where that was asked for, what the model takes of the device and how
/// fast it is; to a bind with what its KV blocks hold, where these can be copied; else with nothing.
struct Answer {
  Result<void> result;
  model::ShardMemory memory;
  std::string address;
  model::LayerRange layers;
  std::optional<Result<model::DeviceSurvey>> device;
  std::uint64_t slice_message_bytes = 0;  ///< of the largest; 0: it holds no slices
  std::string slice_address;
  std::optional<luna_kv_layout> kv;
};
Bytes encode_answer(const Answer& answer);
/// Errors  corrupt
Result<Answer> parse_answer(std::span<const std::byte> payload);

}  // namespace luna::cluster
