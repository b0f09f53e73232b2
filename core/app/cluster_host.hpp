// The cluster of a server: its controller, and what models get of the devices that workers bring.
#pragma once

#include "core/cluster/controller.hpp"
#include "core/cluster/data_transports.hpp"
#include "core/config/settings.hpp"
#include "core/model/device.hpp"
#include "core/model/device_link.hpp"
#include "core/plugin/catalog.hpp"
#include "core/telemetry/health.hpp"

#include <luna/result.hpp>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace luna::app {

/// Devices of workers, as many as a model is placed on, and what joins them.
struct JoinedDevices {
  std::vector<std::shared_ptr<model::Device>> devices;  ///< in layer order; held while it runs
  model::Collective collective;                         ///< its name alone: no rank is here
};

/// A model on devices of workers, for /admin/cluster.
struct PlacementStatus {
  std::string model;
  std::vector<std::vector<std::string>> groups;  ///< names of devices
  bool is_degraded = false;                      ///< on fewer devices than it once had
  std::string last_error;                        ///< why the last group could not be; or empty
};

/// Owned by App; models go before it. [main] unless tagged otherwise.
class ClusterHost {
 public:
  /// Listens for workers.
  /// Errors  those of Controller::open
  static Result<std::unique_ptr<ClusterHost>> open(plugin::Catalog& catalog,
                                                   const config::Settings& settings,
                                                   std::string version);
  ClusterHost(const ClusterHost&) = delete;
  ClusterHost& operator=(const ClusterHost&) = delete;
  ~ClusterHost();

  /// Waits until workers have brought as many devices as cluster.min_devices says, and says in
  /// `health` how many are here.
  /// Errors  cancelled: keep_going turned false
  Result<void> wait_for_devices(telemetry::Health& health, const std::function<bool()>& keep_going);
  /// A number that grows with every change of the devices. [any]
  [[nodiscard]] std::uint64_t n_changes() const;
  /// Waits for a change beyond `known`, or `limit`.
  /// Errors  cancelled: keep_going turned false
  Result<void> wait_for_change(std::uint64_t known,
                               std::chrono::milliseconds limit,
                               const std::function<bool()>& keep_going);
  /// What joins these devices.
  /// Errors  unavailable: one of them has gone; not_found: no transport joins them
  Result<JoinedDevices> join(const std::vector<std::shared_ptr<model::Device>>& devices) const;
  /// What carries slices between groups on these devices; none: nothing does, and the log says why.
  ///
  /// transport  the one that carries them already; none: the nearest
  [[nodiscard]] std::optional<model::Collective> slices_between(
      const std::vector<std::shared_ptr<model::Device>>& devices,
      const std::optional<std::string>& transport) const;
  /// Calls `changed` after every change, from the cluster's I/O thread: it must only wake somebody.
  /// Empty: no more, and no call is under way when it returns. [any]
  void listen(const void* owner, std::function<void()> changed);

  /// Something of the owner's lies on these devices from now on and on no others; also what it is
  /// about to put there. Workers that leave are dismissed once nothing lies on theirs. [any]
  void hold(const void* owner, const std::vector<std::shared_ptr<model::Device>>& devices);
  /// Whether nothing lies on the devices of a worker. [any]
  [[nodiscard]] bool is_free(const cluster::LeavingWorker& worker) const;

  [[nodiscard]] cluster::Controller& controller() { return *controller_; }
  /// JSON, for /admin/cluster. [any]
  ///
  /// models  what lies where
  [[nodiscard]] std::string render(const std::vector<PlacementStatus>& models) const;

 private:
  explicit ClusterHost(const config::Settings& settings) : settings_(settings) {}
  void dismiss_free(cluster::Controller& controller) const;

  const config::Settings& settings_;
  std::string transport_;  // "auto", or a short name
  std::unique_ptr<cluster::Controller> controller_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::uint64_t n_changes_ = 0;

  mutable std::mutex held_mutex_;                                            // guards what follows
  std::map<const void*, std::vector<std::shared_ptr<model::Device>>> held_;  // by owner

  std::mutex listeners_mutex_;  // held while they are called
  std::map<const void*, std::function<void()>> listeners_;
};

}  // namespace luna::app
