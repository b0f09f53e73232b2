// A process with devices that serves a controller elsewhere.
#pragma once

#include "core/cluster/data_transports.hpp"
#include "core/cluster/greeting.hpp"
#include "core/cluster/messages.hpp"
#include "core/model/device.hpp"
#include "core/model/weight_source.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::cluster {

struct WorkerOptions {
  std::string host;  ///< of the controller: a name or an IP address
  std::uint16_t port = 0;
  std::optional<std::filesystem::path> token_file;
  Join join;              ///< what it says of itself
  std::string data_host;  ///< where other workers reach it; empty: as the controller does
  /// How long it serves on when it is told to end, so that others take over what lies on it.
  std::chrono::milliseconds drain_timeout{0};
  std::uint32_t n_load_threads = 0;
  std::filesystem::path speed_cache;  ///< of measured devices; empty: none
  std::uint64_t resident_before = 0;  ///< of this process before any shard; create() fills it in
};

/// What a worker works with; outlives it.
struct WorkerParts {
  std::vector<model::Device*> devices;  ///< in the order of join.devices
  model::QuantInstances quants;
  DataTransports* transports = nullptr;
  /// Where the weights of a model lie here, by what the controller's TOML says.
  std::function<Result<std::filesystem::path>(const std::string& source)> find_model;
  /// Told when it has joined or been refused; for people.
  std::function<void(const std::string& line)> say;
};

/// Joins, serves until the connection ends, and joins again, with pauses that grow from 200 ms to
/// 5 s. Owned by the command. [main]
class Worker {
 public:
  /// Errors  those of the token file
  static Result<std::unique_ptr<Worker>> create(WorkerOptions options, WorkerParts parts);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  /// Until `keep_going` turns false, which is asked every 100 ms at least, or the controller
  /// dismisses it; it leaves in order.
  /// Returns  as what it was dismissed; none: it was not
  std::optional<Farewell> run(const std::function<bool()>& keep_going);

  struct Impl;

 private:
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace luna::cluster
