// Keeps a model on the devices that workers bring: whoever goes is replaced by those that are left,
// whoever comes is used, while requests go on.
#pragma once

#include "core/app/cluster_host.hpp"
#include "core/app/served_model.hpp"
#include "core/config/settings.hpp"
#include "core/engine/engine.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace luna::app {

/// Devices that hold a copy of a model together, in layer order.
using JoinedGroup = std::vector<std::shared_ptr<model::Device>>;

std::vector<model::Device*> pointers_of(const JoinedGroup& group);
JoinedGroup devices_of_groups(const std::vector<JoinedGroup>& groups);
std::vector<std::vector<std::string>> names_of(const std::vector<JoinedGroup>& groups);

/// A thread of its own that acts on the model's groups. Owned by App; outlives the model's engine,
/// but is stopped before it.
class JoinedPlacement {
 public:
  /// cluster, stats  outlive it
  JoinedPlacement(ClusterHost& cluster,
                  config::ModelSettings settings,
                  telemetry::ClusterStats& stats);
  JoinedPlacement(const JoinedPlacement&) = delete;
  JoinedPlacement& operator=(const JoinedPlacement&) = delete;
  ~JoinedPlacement();

  /// How the devices that are here share the model.
  [[nodiscard]] std::vector<JoinedGroup> groups_of(const JoinedGroup& devices) const;
  /// That the model may have at a time.
  [[nodiscard]] std::uint32_t n_groups_max() const;
  /// For ModelParts. [engine]
  static void note_gone(void* placement, const engine::GroupEnd& end);

  /// The model has been loaded on these groups, which have the ids 0, 1 ... [main]
  void start(ServedModel& model, const std::vector<JoinedGroup>& groups);
  /// Acts no more. [main]
  void stop();
  /// What its model runs on some of these devices moves to groups without any of them, as far as
  /// they take it. Once it was started. [any]
  ///
  /// names    of devices
  /// Returns  whether there is such a group beside one on these devices
  bool relieve(const std::vector<std::string>& names);
  /// What its model keeps for prompts to come is forgotten. Once it was started. [any]
  void drop_prefix_cache();

  /// [any]
  [[nodiscard]] PlacementStatus status() const;
  /// Whether there is a group that could answer. [any]
  [[nodiscard]] bool can_serve() const;

 private:
  struct Placed {
    engine::GroupId id{};
    JoinedGroup devices;
    bool is_leaving = false;
  };

  /// Devices as they were looked at.
  struct Scene {
    JoinedGroup here;
    JoinedGroup staying;  ///< of them, those whose workers do not leave
    std::vector<JoinedGroup> wanted;

    [[nodiscard]] bool has_lost(const JoinedGroup& group) const;
    [[nodiscard]] bool loses(const JoinedGroup& group) const;
  };

  void run();
  void drop_gone();
  void act();
  void add_ahead(const Scene& scene);
  void retire_misplaced(const Scene& scene);
  void get_to_know(const Scene& scene) const;
  void run_out();
  void retire(Placed& placed, engine::RetireMode mode);
  void add_missing(const Scene& scene);
  void keep_unsettled(const Scene& scene);
  Result<void> add(const JoinedGroup& group, std::uint32_t n_kv_blocks_min);
  [[nodiscard]] std::optional<model::Collective> slices_with(const JoinedGroup& group) const;
  void hold(const JoinedGroup& more);
  [[nodiscard]] bool is_placed(const JoinedGroup& group) const;
  [[nodiscard]] bool may_pause();
  [[nodiscard]] std::size_t n_placed() const;
  [[nodiscard]] bool is_used(const std::shared_ptr<model::Device>& device) const;
  void tell();

  ClusterHost& cluster_;
  const config::ModelSettings settings_;
  telemetry::ClusterStats& stats_;
  ServedModel* model_ = nullptr;

  std::vector<Placed> placed_;  // of the thread
  /// What could not be placed, and when that was tried.
  struct Failed {
    std::vector<JoinedGroup> wanted;
    std::chrono::steady_clock::time_point at;
  };
  std::optional<Failed> failed_;
  JoinedGroup unsettled_;           // all devices, while the model lies on none that stay
  std::vector<JoinedGroup> ahead_;  // for which there was no room beside what was there
  std::size_t n_devices_most_ = 0;  // that it ever lay on at a time
  std::optional<std::chrono::steady_clock::time_point> waits_since_;  // for a quiet moment

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<engine::GroupId> gone_;
  bool is_woken_ = false;
  bool is_stopped_ = false;
  PlacementStatus status_;
  std::vector<engine::GroupId> ids_;  // of status_.groups
  std::thread thread_;
};

}  // namespace luna::app
