// Who belongs to a cluster: accepts workers, checks that they fit, notices when they go.
#pragma once

#include "core/cluster/data_transports.hpp"
#include "core/cluster/greeting.hpp"
#include "core/cluster/messages.hpp"
#include "core/model/device.hpp"
#include "core/telemetry/cluster_stats.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::cluster {

struct ControllerOptions {
  std::string host;  ///< IP address to listen on
  std::uint16_t port = 0;
  std::optional<std::filesystem::path> token_file;  ///< none: loopback only
  std::chrono::milliseconds heartbeat{};
  std::chrono::milliseconds timeout{};
  std::string version;                  ///< of luna: workers must have the same
  std::vector<PluginIdentity> plugins;  ///< of this process
  std::vector<DeviceOffer> devices;     ///< of this process, with what they compute
};

/// A worker as people see it.
struct WorkerStatus {
  std::string name;
  std::string peer;  ///< address of its connection
  std::vector<std::string> devices;
  std::vector<std::string> roles;
  std::uint64_t memory_bytes = 0;
  std::optional<Farewell> leaves_as;   ///< once nothing lies on its devices; none: it stays
  std::optional<MemoryReport> memory;  ///< its last; none: none has come yet
};

/// A worker that is on its way out.
struct LeavingWorker {
  std::string name;
  Farewell farewell{};
  std::vector<const model::Device*> devices;
};

struct ClusterStatus {
  std::vector<WorkerStatus> workers;  ///< joined, by name
  std::string last_refusal;           ///< why, and who
  std::string last_loss;
  std::string last_kept;  ///< why workers that should leave did not
};

/// Owns the port, the I/O thread and the connections. What it lends out stays valid while it is
/// held, however long the worker has been gone, and is given back before the controller ends. Owned
/// by App.
class Controller {
 public:
  /// Listens and admits workers from now on. [start-up]
  /// Errors  invalid_argument: no IP address, or one beyond loopback without a token; io; those of
  ///         the token file
  static Result<std::unique_ptr<Controller>> open(ControllerOptions options);
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;
  ~Controller();

  [[nodiscard]] std::uint16_t port() const;
  /// The cluster's name for the life of this process.
  [[nodiscard]] const std::string& run() const;

  /// Devices of the workers that are here, in order of their names. [any]
  [[nodiscard]] std::vector<std::shared_ptr<model::Device>> devices() const;
  /// Those of them whose workers do not leave. [any]
  [[nodiscard]] std::vector<std::shared_ptr<model::Device>> staying_devices() const;

  // ---- how workers leave; [any]
  /// The worker shall leave; what lies on its devices goes elsewhere first, by whoever placed it.
  /// Errors  not_found: no worker of this name
  Result<void> drain(const std::string& name, Farewell farewell);
  /// Those that leave stay after all. Whoever asked for it is told why, and leaves when another
  /// worker has come.
  ///
  /// why  nobody can take what lies on their devices
  void keep_leaving(const std::string& why);
  [[nodiscard]] std::vector<LeavingWorker> leaving() const;
  /// Nothing lies on its devices any more: it ends. One that does not leave is passed over.
  void dismiss(const std::string& name);
  /// It gives back to the system what nobody uses.
  void relieve(const std::string& name);

  /// The processes that these devices lie in; local ones are left out. [any]
  [[nodiscard]] std::vector<DataEndpoint> endpoints_of(
      const std::vector<std::shared_ptr<model::Device>>& devices) const;
  [[nodiscard]] ClusterStatus status() const;
  [[nodiscard]] telemetry::ClusterStats& stats() const;
  /// Called after every change of devices(), by the I/O thread: it must return at once. Set once,
  /// before it matters. [start-up]
  void on_change(std::function<void()> changed);

  struct Impl;

 private:
  explicit Controller(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace luna::cluster
