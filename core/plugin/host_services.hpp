// The host side of luna/abi/host.h: what a plugin may ask of the program.
#pragma once

#include "core/base/clock.hpp"

#include <luna/abi/host.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace luna::plugin {

/// Makes and owns the host table of every plugin. Owned by App; outlives the Catalog and every
/// instance. Services are added before plugins are created. [start-up]
class HostServices {
 public:
  /// Runs fn(arg, i) for every i below n on loading threads and waits for all.
  using ParallelFor =
      std::function<void(std::uint32_t n, void (*fn)(void* arg, std::uint32_t i), void* arg)>;

  /// clock         outlives this
  /// seed          of the streams behind rand_u64
  /// parallel_for  empty: the calling thread does all the work itself
  struct Options {
    const Clock* clock = nullptr;
    std::uint64_t seed = 0;
    ParallelFor parallel_for;
  };

  explicit HostServices(Options options);
  HostServices(const HostServices&) = delete;
  HostServices& operator=(const HostServices&) = delete;
  ~HostServices();

  /// Offers a table by id ("luna.svc.x/1"); it outlives every instance.
  void add_service(std::string id, const void* table);

  /// The table for one plugin: its lines are logged as "plugin.<name>".
  const luna_host* host_for(const std::string& plugin_name);

 private:
  struct PluginHost;
  friend struct HostCalls;

  Options options_;
  std::map<std::string, const void*, std::less<>> services_;
  std::map<std::string, std::unique_ptr<PluginHost>> hosts_;
};

}  // namespace luna::plugin
