// What a model over several devices will serve, by the way it is laid over them: predicted from
// measured times, memory and a description of the load, before anything is loaded.
#pragma once

#include "core/model/load_forecast.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::model {

/// How a model lies on its devices.
enum class Layout : std::uint8_t {
  pipeline,  ///< a range of layers each; as many steps in flight
  replicas,  ///< a whole copy each, with an engine of its own
  tensor,    ///< a part of every layer each; one step on all of them at once
};
std::string_view layout_name(Layout layout);

/// The parts of a model, as they lie packed on a device.
struct LayoutModel {
  std::uint32_t n_layers = 0;
  std::uint32_t n_kv_heads = 0;
  std::uint64_t layer_bytes = 0;
  std::uint64_t embedding_bytes = 0;
  std::uint64_t head_bytes = 0;      ///< with a tied head: of a second copy of the embedding
  bool tied_head = false;            ///< where embedding and head meet, one copy serves both
  std::uint64_t output_bytes = 0;    ///< logits and candidates of a step, where the head is
  std::uint64_t kv_token_bytes = 0;  ///< of one token in one layer
  /// What a row of a tensor split's exchanges has, all four of a layer together.
  std::uint64_t gather_row_bytes = 0;
  std::uint64_t hidden_row_bytes = 0;  ///< of a message between two devices of a pipeline
};

/// A device as a part of a layout.
struct LayoutDevice {
  DeviceSpeed speed;
  std::uint64_t memory_bytes = 0;  ///< what the model may take of it
  /// Of it for activations and messages, where the device has a part of the model.
  std::uint64_t part_fixed_bytes = 0;
  std::uint64_t copy_fixed_bytes = 0;   ///< the same where it has a whole copy
  std::uint64_t layer_fixed_bytes = 0;  ///< more for each layer that it has
  /// Beside them, where copies hold slices of each other's sequences.
  std::uint64_t slice_bytes = 0;
  std::uint32_t first_core = 0;  ///< of those its threads are bound to
  std::uint32_t n_cores = 0;     ///< 0: it takes none of the machine's
};

/// Between any two of the devices.
struct LayoutLink {
  double latency_ns = 0.0;  ///< from a send to the end of its receive
  double bytes_per_ns = 1.0;
  /// What a gather of a tensor split takes beyond its messages: all wait for the slowest.
  double gather_ns = kGatherNs;

  // Two CPU devices over `inproc`: what single rows of a small model took beyond half of its ops.
  static constexpr double kGatherNs = 8'000.0;
};

/// Bounds of an engine, of which each copy of the model has one.
struct LayoutBounds {
  std::uint32_t n_sequences_max = 0;
  std::uint32_t step_tokens_max = 0;
  std::uint32_t kv_block_tokens = 32;
  std::optional<std::uint64_t> kv_tokens_max;  ///< of a copy; none: all memory that is left
  /// Devices that compute at full speed at one time: fewer than there are, where they share cores;
  /// more, where engines have cores beside them.
  double n_devices_at_once = 0.0;
  std::uint32_t n_cores = 0;  ///< of the machine; 0: nothing shares any
  /// The engine's own work between two steps, and for each sequence in them.
  double host_step_ns = kHostStepNs;
  double host_row_ns = kHostRowNs;

  // Threads of engine and devices that wake each other, planning, publishing; and of each row
  // sampling and text, on the cores that devices use too: what steps take in `luna bench` beyond
  // their ops.
  static constexpr double kHostStepNs = 300'000.0;
  static constexpr double kHostRowNs = 20'000.0;
};

struct LayoutProblem {
  LayoutModel model;
  std::vector<LayoutDevice> devices;  ///< in the order the layers shall have
  LayoutLink link;
  LayoutBounds bounds;
  ExpectedLoad load;
  /// The layers of each device in a pipeline; empty: as many on each, the last get one less.
  std::vector<std::uint32_t> pipeline_layers;
  std::uint32_t n_requests = 1'000;  ///< of the load, that a forecast runs
};

/// What one layout is expected to do.
struct LayoutForecast {
  Layout layout = Layout::pipeline;
  std::string impossible;       ///< why it cannot be; empty: it can
  std::uint32_t n_copies = 0;   ///< of the model, each with its own KV
  std::uint64_t kv_tokens = 0;  ///< room of a copy, all of its devices together
  LoadForecast best;            ///< at the highest rate within the limit
};

/// Predicts one layout at a rate, or at the highest rate whose P95 stays within the limit.
///
/// p95_limit_ns  of a request from arrival to its last token
/// Cost          some 10 ms a layout: it runs the load in virtual time, a dozen times over
LayoutForecast forecast_layout(const LayoutProblem& problem, Layout layout, double p95_limit_ns);
LayoutForecast forecast_layout_at(const LayoutProblem& problem, Layout layout, double rate_per_s);

/// Room of a copy in tokens of KV, of the smallest one; 0: the layout cannot be.
std::uint64_t kv_tokens_of(const LayoutProblem& problem, Layout layout);

/// The mean time of a request that has one device with a whole copy to itself, its history in the
/// prefix cache; where no device holds a copy, of one that has the pipeline to itself. P95 limits
/// are multiples of it.
double time_alone_ns(const LayoutProblem& problem);

/// The limit that choices are made under, in times alone.
inline constexpr double kP95LimitFactor = 10.0;

struct LayoutChoice {
  Layout layout = Layout::pipeline;
  double p95_limit_ns = 0.0;
  std::vector<LayoutForecast> forecasts;  ///< of pipeline, replicas, tensor, in this order
  std::string reason;                     ///< one sentence with the numbers
};

/// Takes the layout with the highest rate within kP95LimitFactor times alone; where none has any,
/// the one that refuses least. Requests that no copy alone has room for are refused here, though a
/// policy that slices may serve them.
/// Errors  invalid_argument: no devices; exhausted: no layout fits, with each one's reason
Result<LayoutChoice> choose_layout(const LayoutProblem& problem);

}  // namespace luna::model
