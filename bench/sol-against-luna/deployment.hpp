// One side of the comparison: Sol's independent copies, or Luna's one model over all devices, in a
// pipeline or as a tensor split.
#pragma once

#include "core/app/app.hpp"
#include "core/base/clock.hpp"
#include "core/config/settings.hpp"
#include "core/model/memory_plan.hpp"

#include <luna/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::sol_against_luna {

enum class Side : std::uint8_t {
  sol,
  luna,    ///< a pipeline
  tensor,  ///< Luna with a part of every layer on each device: where `layout = "auto"` takes it
};
inline constexpr std::array<std::string_view, 3> kSideNames = {"sol", "luna", "tensor"};
inline constexpr std::size_t kSides = kSideNames.size();

constexpr std::string_view side_name(Side side) {
  return kSideNames[static_cast<std::size_t>(side)];
}

/// What a side is made of. A value.
struct DeploymentPlan {
  config::Settings base;  ///< deployment.toml: one device, one model
  std::filesystem::path plugin_folder;
  std::uint32_t n_devices = 2;
  std::uint64_t device_bytes = 0;         ///< the budget of each device
  std::string luna_policy = "flowsplit";  ///< Sol's is the base's
  config::ExpectedLoad expected;          ///< what Luna's layers are placed for
  /// Layers of each of Luna's devices; none: the loader places them.
  std::optional<std::vector<std::uint32_t>> luna_layers;
  bool shares_weights = true;                  ///< Sol's copies map the same packed pages
  std::optional<std::uint32_t> kv_tokens_max;  ///< none: all memory that is left
};

/// Counted since the start, over all copies.
struct SideCounters {
  std::vector<Nanoseconds> busy;       ///< [n_devices], inside op programs
  std::vector<std::uint64_t> n_steps;  ///< [n_copies]
  std::uint64_t n_recomputed_tokens = 0;
};

/// Owns the side's models and their engines. A resource.
class Deployment {
 public:
  /// Loads and warms up. [main]
  static Result<std::unique_ptr<Deployment>> start(Side side, const DeploymentPlan& plan);
  Deployment(const Deployment&) = delete;
  Deployment& operator=(const Deployment&) = delete;
  ~Deployment() = default;

  [[nodiscard]] Side side() const { return side_; }
  /// Sol's copies; one of Luna.
  [[nodiscard]] std::size_t n_copies() const { return apps_.size(); }
  [[nodiscard]] pipeline::Pipeline& pipeline(std::size_t copy) { return apps_[copy]->pipeline(); }
  /// As a request that is sent to a copy would be judged.
  [[nodiscard]] Result<void> can_fit(std::uint32_t n_prompt, std::uint32_t n_generated) const;
  /// Of a copy.
  [[nodiscard]] const model::MemoryPlan& memory() const;
  /// Tokens of KV of a copy, and so of the largest request.
  [[nodiscard]] std::uint64_t kv_tokens() const;
  [[nodiscard]] std::uint32_t context_tokens_max() const;

  [[nodiscard]] SideCounters counters() const;
  /// Sequences, summed over the steps since `before`, as far as the traces reach back; where they
  /// do not, those that are left stand for all.
  [[nodiscard]] double step_seqs_since(const SideCounters& before) const;
  /// Returns when no engine has a request any more, so that a run does not begin in the last one's
  /// tail. [main]
  void wait_until_idle() const;

 private:
  explicit Deployment(Side side) : side_(side) {}
  [[nodiscard]] const telemetry::EngineStats& stats(std::size_t copy) const;

  Side side_;
  std::string model_;
  std::uint32_t kv_block_tokens_ = 0;
  std::vector<std::unique_ptr<app::App>> apps_;
};

/// All devices and one model over them, as Luna's side starts it.
config::Settings luna_settings(const DeploymentPlan& plan);

/// What a copy takes of a device, whatever its budget.
Result<model::ShardMemory> measure_copy(const DeploymentPlan& plan);

}  // namespace luna::sol_against_luna
