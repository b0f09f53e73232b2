#include "core/model/layout_cost.hpp"

#include "core/base/assert.hpp"
#include "core/model/memory_plan.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <optional>

namespace luna::model {
namespace {

constexpr double kNsPerS = 1e9;
// A prompt needs a block and one to grow into.
constexpr std::uint64_t kKvBlocksMin = 2;
constexpr double kGathersPerLayer = 4.0;
// Norms, activations and what a step sets up are done by every device of a tensor split, whatever
// its part of the columns: so much of a layer's time on one device.
constexpr double kTensorRepeated = 0.08;

/// Copies of the model as a layout has them, or why it has none.
struct Copies {
  std::vector<CopyForecast> copies;
  std::string impossible;
};

struct Held {
  std::uint64_t weights = 0;
  std::uint64_t fixed = 0;     // activations, messages, outputs
  std::uint64_t kv_token = 0;  // bytes of a token in all of its layers
};

/// Tokens of KV that fit beside the rest in whole blocks, if any do.
std::optional<std::uint64_t> kv_room(const LayoutDevice& device,
                                     const Held& held,
                                     const LayoutBounds& bounds) {
  const std::uint64_t taken = held.fixed + held.weights;
  const std::uint64_t block_bytes = held.kv_token * bounds.kv_block_tokens;
  if (device.memory_bytes <= taken || block_bytes == 0) return std::nullopt;
  std::uint64_t n_blocks = (device.memory_bytes - taken) / block_bytes;
  if (bounds.kv_tokens_max)
    n_blocks = std::min(n_blocks, *bounds.kv_tokens_max / bounds.kv_block_tokens);
  if (n_blocks < kKvBlocksMin) return std::nullopt;
  return n_blocks * bounds.kv_block_tokens;
}

std::string no_room(std::size_t device, const LayoutDevice& at, const Held& held) {
  return "device " + std::to_string(device) + " has " + bytes_text(at.memory_bytes) + ", " +
         bytes_text(held.weights + held.fixed) +
         " of it taken by weights, activations and outputs: no room for KV";
}

CopyForecast bounded_copy(const LayoutProblem& problem) {
  CopyForecast copy;
  copy.n_sequences_max = problem.bounds.n_sequences_max;
  copy.step_tokens_max = problem.bounds.step_tokens_max;
  copy.kv_block_tokens = problem.bounds.kv_block_tokens;
  copy.cost.host_step_ns = problem.bounds.host_step_ns;
  copy.cost.host_row_ns = problem.bounds.host_row_ns;
  return copy;
}

Held whole_copy(const LayoutModel& model, const LayoutDevice& device) {
  return {.weights = model.n_layers * model.layer_bytes + model.embedding_bytes +
                     (model.tied_head ? 0 : model.head_bytes),
          .fixed = device.copy_fixed_bytes + model.n_layers * device.layer_fixed_bytes +
                   device.slice_bytes + model.output_bytes,
          .kv_token = model.n_layers * model.kv_token_bytes};
}

Copies make_replicas(const LayoutProblem& problem) {
  Copies made;
  for (std::size_t d = 0; d < problem.devices.size(); ++d) {
    const LayoutDevice& device = problem.devices[d];
    const Held held = whole_copy(problem.model, device);
    const auto room = kv_room(device, held, problem.bounds);
    if (!room) return {{}, no_room(d, device, held)};
    CopyForecast& copy = made.copies.emplace_back(bounded_copy(problem));
    copy.kv_tokens = *room;
    copy.cost.stages = {{.speed = device.speed,
                         .n_layers = static_cast<double>(problem.model.n_layers),
                         .head_share = 1.0,
                         .embedding_share = 1.0,
                         .first_core = device.first_core,
                         .n_cores = device.n_cores}};
  }
  return made;
}

std::vector<std::uint32_t> pipeline_layers(const LayoutProblem& problem) {
  if (!problem.pipeline_layers.empty()) return problem.pipeline_layers;
  const auto n = static_cast<std::uint32_t>(problem.devices.size());
  std::vector<std::uint32_t> layers(n, problem.model.n_layers / n);
  for (std::uint32_t d = 0; d < problem.model.n_layers % n; ++d)
    ++layers[d];
  return layers;
}

Copies make_pipeline(const LayoutProblem& problem) {
  const LayoutModel& model = problem.model;
  const std::size_t n = problem.devices.size();
  if (n > model.n_layers)
    return {{}, std::to_string(n) + " devices for " + std::to_string(model.n_layers) + " layers"};
  const std::vector<std::uint32_t> layers = pipeline_layers(problem);
  LUNA_VERIFY(layers.size() == n);
  CopyForecast copy = bounded_copy(problem);
  std::optional<std::uint64_t> room;
  for (std::size_t d = 0; d < n; ++d) {
    const LayoutDevice& device = problem.devices[d];
    const bool is_first = d == 0;
    const bool is_last = d + 1 == n;
    Held held{.weights = layers[d] * model.layer_bytes,
              .fixed = device.part_fixed_bytes + layers[d] * device.layer_fixed_bytes,
              .kv_token = layers[d] * model.kv_token_bytes};
    if (is_first) held.weights += model.embedding_bytes;
    if (is_last && !(is_first && model.tied_head)) held.weights += model.head_bytes;
    if (is_last) held.fixed += n * model.output_bytes;  // a step in flight has its own
    const auto own = kv_room(device, held, problem.bounds);
    if (!own) return {{}, no_room(d, device, held)};
    room = std::min(room.value_or(*own), *own);
    copy.cost.stages.push_back({.speed = device.speed,
                                .n_layers = static_cast<double>(layers[d]),
                                .head_share = is_last ? 1.0 : 0.0,
                                .embedding_share = is_first ? 1.0 : 0.0,
                                .first_core = device.first_core,
                                .n_cores = device.n_cores});
  }
  const auto n_messages = static_cast<double>(n - 1);
  copy.kv_tokens = *room;
  copy.cost.message_ns = n_messages * problem.link.latency_ns;
  copy.cost.message_row_ns =
      n_messages * static_cast<double>(model.hidden_row_bytes) / problem.link.bytes_per_ns;
  copy.cost.n_devices_at_once = problem.bounds.n_devices_at_once;
  return {{std::move(copy)}, {}};
}

Copies make_tensor(const LayoutProblem& problem) {
  const LayoutModel& model = problem.model;
  const std::size_t n = problem.devices.size();
  if (n > model.n_kv_heads) {
    return {{},
            std::to_string(n) + " devices share " + std::to_string(model.n_kv_heads) +
                " KV heads: each needs at least one"};
  }
  CopyForecast copy = bounded_copy(problem);
  copy.cost.side_by_side = true;
  std::optional<std::uint64_t> room;
  const double even = 1.0 / static_cast<double>(n);
  for (std::size_t d = 0; d < n; ++d) {
    const LayoutDevice& device = problem.devices[d];
    const bool is_last = d + 1 == n;
    // The first get the heads that are over; the last has the embedding and the outputs.
    const std::uint64_t n_heads = model.n_kv_heads / n + (d < model.n_kv_heads % n ? 1 : 0);
    Held held{.weights = (model.n_layers * model.layer_bytes + model.head_bytes) / n,
              .fixed = device.part_fixed_bytes + model.n_layers * device.layer_fixed_bytes,
              .kv_token = model.n_layers * model.kv_token_bytes * n_heads / model.n_kv_heads};
    if (is_last) held.weights += model.embedding_bytes;
    if (is_last) held.fixed += model.output_bytes;
    const auto own = kv_room(device, held, problem.bounds);
    if (!own) return {{}, no_room(d, device, held)};
    room = std::min(room.value_or(*own), *own);
    const double share = kTensorRepeated + (1.0 - kTensorRepeated) * even;
    copy.cost.stages.push_back({.speed = device.speed,
                                .n_layers = share * model.n_layers,
                                .head_share = share,
                                .embedding_share = is_last ? 1.0 : 0.0,
                                .first_core = device.first_core,
                                .n_cores = device.n_cores});
  }
  copy.kv_tokens = *room;
  copy.cost.message_ns =
      kGathersPerLayer * model.n_layers * (problem.link.latency_ns + problem.link.gather_ns);
  copy.cost.message_row_ns = static_cast<double>(model.n_layers * model.gather_row_bytes) * even /
                             problem.link.bytes_per_ns;
  copy.cost.n_devices_at_once = problem.bounds.n_devices_at_once;
  return {{std::move(copy)}, {}};
}

Copies make_copies(const LayoutProblem& problem, Layout layout) {
  switch (layout) {
    case Layout::pipeline:
      return make_pipeline(problem);
    case Layout::replicas:
      return make_replicas(problem);
    case Layout::tensor:
      return make_tensor(problem);
  }
  return {};
}

std::uint64_t smallest_room(const Copies& made) {
  std::uint64_t n_tokens = made.copies.empty() ? 0 : made.copies.front().kv_tokens;
  for (const CopyForecast& copy : made.copies)
    n_tokens = std::min(n_tokens, copy.kv_tokens);
  return n_tokens;
}

template <typename Run>
LayoutForecast forecast(const LayoutProblem& problem, Layout layout, const Run& run) {
  LayoutForecast made;
  made.layout = layout;
  Copies copies = make_copies(problem, layout);
  made.impossible = std::move(copies.impossible);
  if (!made.impossible.empty()) return made;
  made.n_copies = static_cast<std::uint32_t>(copies.copies.size());
  made.kv_tokens = smallest_room(copies);
  ForecastOptions options;
  options.n_requests = problem.n_requests;
  options.n_cores = problem.bounds.n_cores;
  made.best = run(copies.copies, options);
  return made;
}

bool serves_more(const LoadForecast& a, const LoadForecast& b) {
  if (a.requests_per_s != b.requests_per_s) return a.requests_per_s > b.requests_per_s;
  return a.requests_per_s == 0.0 && a.refused_ratio < b.refused_ratio;
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value < 10.0 ? "%.2f" : "%.0f", value);
  return text.data();
}

std::string describe(const LayoutForecast& made) {
  std::string text = std::string(layout_name(made.layout)) + " ";
  if (!made.impossible.empty()) return text + "cannot be (" + made.impossible + ")";
  text += number(made.best.requests_per_s) + " requests/s (";
  if (made.n_copies > 1) text += std::to_string(made.n_copies) + " x ";
  text += std::to_string(made.kv_tokens) + " tokens of KV";
  if (made.best.found_ratio > 0.0)
    text += ", " + number(100.0 * made.best.found_ratio) + " % of histories found";
  if (made.best.refused_ratio > 0.0)
    text += ", " + number(100.0 * made.best.refused_ratio) + " % of requests too long";
  return text + ")";
}

std::string reason_text(const LayoutProblem& problem, const LayoutChoice& choice) {
  const ExpectedLoad& load = problem.load;
  std::string text = "for " + std::to_string(load.users) + " users with " +
                     std::to_string(load.prompt) + " new tokens";
  if (load.reused > 0) text += " after " + std::to_string(load.reused) + " reused";
  text += " and " + std::to_string(load.output) + " of answer, 95 % of them within " +
          number(choice.p95_limit_ns / kNsPerS) + " s: ";
  std::string others;
  for (const LayoutForecast& made : choice.forecasts) {
    if (made.layout == choice.layout) {
      text += describe(made);
    } else {
      others += ", " + describe(made);
    }
  }
  return text + "; instead of" + others.substr(1);
}

}  // namespace

std::string_view layout_name(Layout layout) {
  constexpr std::array<std::string_view, 3> kNames = {"pipeline", "replicas", "tensor"};
  return kNames[static_cast<std::size_t>(layout)];
}

LayoutForecast forecast_layout(const LayoutProblem& problem, Layout layout, double p95_limit_ns) {
  return forecast(problem,
                  layout,
                  [&](const std::vector<CopyForecast>& copies, const ForecastOptions& options) {
                    return highest_rate(copies, problem.load, p95_limit_ns, options);
                  });
}

LayoutForecast forecast_layout_at(const LayoutProblem& problem, Layout layout, double rate_per_s) {
  return forecast(problem,
                  layout,
                  [&](const std::vector<CopyForecast>& copies, const ForecastOptions& options) {
                    return run_load(copies, problem.load, rate_per_s, options);
                  });
}

std::uint64_t kv_tokens_of(const LayoutProblem& problem, Layout layout) {
  return smallest_room(make_copies(problem, layout));
}

double time_alone_ns(const LayoutProblem& problem) {
  for (const Layout layout : {Layout::replicas, Layout::pipeline}) {
    const Copies copies = make_copies(problem, layout);
    if (copies.impossible.empty())
      return time_alone_ns(copies.copies.front(), problem.load, problem.bounds.n_cores);
  }
  return 0.0;
}

Result<LayoutChoice> choose_layout(const LayoutProblem& problem) {
  if (problem.devices.empty()) return Error{Code::invalid_argument, "no device is given"};
  LayoutChoice choice;
  choice.p95_limit_ns = kP95LimitFactor * time_alone_ns(problem);
  const LayoutForecast* best = nullptr;
  std::string reasons;
  for (const Layout layout : {Layout::pipeline, Layout::replicas, Layout::tensor})
    choice.forecasts.push_back(forecast_layout(problem, layout, choice.p95_limit_ns));
  for (const LayoutForecast& made : choice.forecasts) {
    reasons += (reasons.empty() ? "" : "; ") + describe(made);
    if (!made.impossible.empty()) continue;
    if (best == nullptr || serves_more(made.best, best->best)) best = &made;
  }
  if (best == nullptr) return Error{Code::exhausted, reasons};
  choice.layout = best->layout;
  choice.reason = reason_text(problem, choice);
  return choice;
}

}  // namespace luna::model
