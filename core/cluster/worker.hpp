// A process with devices that serves a controller elsewhere.
#pragma once

#include "core/cluster/data_transports.hpp"
#include "core/cluster/greeting.hpp"
#include "core/cluster/messages.hpp"
#include "core/model/device.hpp"
#include "core/model/weight_source.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace luna::cluster {

struct WorkerOptions {
  std::string host;  ///< of the controller: a name or an IP address
  std::uint16_t port = 0;
  std::optional<std::filesystem::path> token_file;
  Join join;              ///< what it says of itself
  std::string data_host;  ///< where other workers reach it; empty: as the controller does
  std::uint32_t n_load_threads = 0;
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

  /// Until `keep_going` turns false, which is asked every 100 ms at least; then it leaves in order.
  void run(const std::function<bool()>& keep_going);

  struct Impl;

 private:
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace luna::cluster
