// `luna worker`: lends this machine's devices to a server elsewhere.
#pragma once

#include "core/app/text_command.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace luna::app {

/// EX_TEMPFAIL of sysexits.h: for supervisors.
constexpr int kExitRestart = 75;

struct WorkerCommand {
  std::string join;                              ///< HOST:PORT of the server's [cluster]
  std::string name;                              ///< empty: the host's
  std::vector<std::string> devices = {"cpu:0"};  ///< BACKEND or BACKEND:INDEX each
  std::string memory;                            ///< budget of each device: "4 GiB"
  std::uint32_t n_threads = 0;                   ///< of each device; 0: all cores, shared out
  std::uint32_t first_cpu = 0;     ///< core of the first thread, among those it may use
  std::string shard_path;          ///< a folder of shards or a file; empty: by the model's name
  std::vector<std::string> roles;  ///< stages it may be given; empty: all
  std::string token_file;
  std::string data_host;  ///< where other workers reach it; empty: as the server does
  std::uint32_t drain_timeout_ms = 30'000;  ///< for others to take over when it is told to end
  std::vector<std::filesystem::path> plugin_folders;
  std::vector<std::string> overrides;  ///< of --set: [plugins], [transport], [log]
};

/// Serves until SIGINT or SIGTERM, or until the server dismisses it; joins again whenever the
/// server has gone.
/// Returns  the exit status: 0 after a signal or a drain, kExitRestart where it shall be started
///          again
int run_worker(const WorkerCommand& command, const CommandStreams& streams);

}  // namespace luna::app
