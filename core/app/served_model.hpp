// A model with all that serves it: text, weights on devices, scheduler, engine.
#pragma once

#include "core/base/clock.hpp"
#include "core/config/settings.hpp"
#include "core/engine/device_turns.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/plan_record.hpp"
#include "core/model/device.hpp"
#include "core/model/model_loader.hpp"
#include "core/pipeline/pipeline_model.hpp"
#include "core/plugin/instance.hpp"
#include "core/telemetry/engine_stats.hpp"

#include <luna/abi/scheduler.h>
#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::app {

/// The model that drafts for another, and where it lies.
struct DraftParts {
  config::ModelSettings settings;
  std::vector<model::Device*> devices;  ///< in layer order
};

/// What a model is built from. Everything pointed to outlives it.
struct ModelParts {
  /// By group, each of which holds a copy of the model; in layer order.
  std::vector<std::vector<model::Device*>> groups;
  plugin::Instance<luna_scheduler_if> scheduler;               ///< of its own: policies keep state
  std::vector<plugin::Instance<luna_scheduler_if>> fallbacks;  ///< likewise, in their order
  std::chrono::milliseconds plan_budget{};                     ///< as SchedulerSettings
  std::uint32_t n_plan_faults_max = 0;
  std::span<const plugin::Instance<luna_quant_if>> quants;
  std::optional<model::Collective> collective;
  /// Between groups, where these may hold slices for each other; of groups in other processes its
  /// name alone.
  std::optional<model::Collective> slices;
  Clock* clock = nullptr;
  WakeSignal* wake = nullptr;  ///< set after steps that published
  std::uint32_t n_requests_max = 0;
  std::chrono::milliseconds recovery_timeout{};
  config::SpeculationSettings speculation;
  std::optional<engine::PlanRecorder::Options> plan_record;  ///< none: plans are not recorded
  /// Told on the engine thread of each group that has left; it must only wake somebody. Null: the
  /// groups stay those that the model is loaded on.
  void (*on_group_gone)(void* context, const engine::GroupEnd& end) = nullptr;
  void* group_context = nullptr;
  std::uint32_t n_groups_max = 0;          ///< at a time; 0: those that it is loaded on
  std::optional<engine::DeviceTurn> turn;  ///< where other models lie on the same devices
  std::optional<DraftParts> draft;         ///< there when the method of speculation is draft
};

/// How the model is asked for.
/// Errors  not_found: its file, with the command that pulls it
Result<model::ModelOptions> model_options(const config::ModelSettings& settings,
                                          const config::SpeculationSettings& speculation);

/// Whether copies of the model on these devices, of one group or of several, could hold slices of
/// each other's sequences.
bool could_slice(const config::ModelSettings& settings, std::span<model::Device* const> devices);

/// What joins the devices of a group, and the group to others.
struct GroupLinks {
  std::optional<model::Collective> collective;  ///< needed for two devices or more
  std::optional<model::Collective> slices;      ///< none: it holds no slices of theirs
};

/// Owned by App. A resource.
class ServedModel {
 public:
  /// Loads the model and starts its engine. [start-up]
  static Result<std::unique_ptr<ServedModel>> load(const config::ModelSettings& settings,
                                                   ModelParts parts);
  ~ServedModel();
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  [[nodiscard]] pipeline::PipelineModel pipeline_model() const;
  [[nodiscard]] const telemetry::EngineStats& stats() const;
  /// What the model takes of its devices, a draft model not counted.
  [[nodiscard]] const model::MemoryPlan& memory() const;
  // ---- for whoever is told by on_group_gone: one thread
  /// Loads a copy of the model on devices, which takes rows from then on. Where it cannot be linked
  /// to the others it holds no slices, and the log says why.
  ///
  /// n_kv_blocks_min  with fewer it would be of no use
  /// Errors  those of loading; exhausted: the devices have no room for so many blocks; unavailable:
  ///         the model has been stopped
  Result<engine::GroupId> add_group(const std::vector<model::Device*>& devices,
                                    const GroupLinks& links,
                                    std::uint32_t n_kv_blocks_min = 0);
  /// Has devices of other processes measured, where they never were, so that add_group() need not.
  /// Errors  as add_group()
  Result<void> survey(const std::vector<model::Device*>& devices,
                      const std::optional<model::Collective>& collective) const;
  /// What carries slices between its groups; none: they hold none for each other.
  [[nodiscard]] std::optional<std::string> slice_transport() const;
  /// Whether a group that is added could hold slices; also where none do.
  [[nodiscard]] bool has_slice_room() const;
  /// Blocks of a group that was not dropped yet.
  [[nodiscard]] std::uint32_t n_kv_blocks(engine::GroupId id) const;
  /// Has a group leave: what it holds goes on elsewhere, or runs to its end, as the mode says.
  void retire_group(engine::GroupId id, engine::RetireMode mode);
  /// Destroys the copy of a group that has left.
  void drop_group(engine::GroupId id);

  /// What a group runs moves to others, as far as these take it. [any]
  void relieve_group(engine::GroupId id);
  /// What is kept for prompts to come is forgotten. [any]
  void drop_prefix_cache();

  /// Ends every sequence and the engine thread. [main]
  void stop();

  struct Impl;

 private:
  explicit ServedModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace luna::app
