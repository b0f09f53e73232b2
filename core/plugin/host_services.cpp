#include "core/plugin/host_services.hpp"

#include "core/base/assert.hpp"
#include "core/base/counter_rng.hpp"
#include "core/base/log.hpp"

#include <luna/plugin.hpp>

#include <atomic>
#include <type_traits>

#ifndef LUNA_VERSION
#define LUNA_VERSION "0.1.0"
#endif

namespace luna::plugin {
namespace {

// Counters of random streams. Streams whose numbers are equal modulo this share a counter, yet
// still draw different numbers, since the stream is part of what is hashed.
constexpr std::size_t kStreamCounters = 256;

}  // namespace

/// The table must come first: a plugin hands back a pointer to it.
struct HostServices::PluginHost {
  luna_host table{};
  HostServices* services = nullptr;
  std::shared_ptr<spdlog::logger> log;
  std::uint64_t seed = 0;  ///< of this plugin alone, so that plugins do not disturb each other
  std::array<std::atomic<std::uint64_t>, kStreamCounters> counters{};
};

/// The functions behind the table.
struct HostCalls {
  static HostServices::PluginHost& from(const luna_host* host) {
    static_assert(std::is_standard_layout_v<luna_host>);
    return *reinterpret_cast<HostServices::PluginHost*>(const_cast<luna_host*>(host));
  }

  static void log(const luna_host* host, std::int32_t level, luna_str text) noexcept {
    spdlog::level::level_enum to = spdlog::level::info;
    if (level <= LUNA_LOG_DEBUG) to = spdlog::level::debug;
    if (level == LUNA_LOG_WARN) to = spdlog::level::warn;
    if (level >= LUNA_LOG_ERROR) to = spdlog::level::err;
    from(host).log->log(to, "{}", view(text));
  }

  static std::uint64_t now_ns(const luna_host* host) noexcept {
    return static_cast<std::uint64_t>(from(host).services->options_.clock->now().count());
  }

  static std::uint64_t rand_u64(const luna_host* host, std::uint64_t stream) noexcept {
    HostServices::PluginHost& plugin = from(host);
    const std::uint64_t n =
        plugin.counters[stream % kStreamCounters].fetch_add(1, std::memory_order_relaxed);
    const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
    const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
    const auto bits = philox4x32({low(n), high(n), low(stream), high(stream)},
                                 {low(plugin.seed), high(plugin.seed)});
    return std::uint64_t{bits[0]} << 32 | bits[1];
  }

  static luna_status parallel_for(const luna_host* host,
                                  std::uint32_t n,
                                  void (*fn)(void* arg, std::uint32_t i),
                                  void* arg) noexcept {
    if (fn == nullptr) return LUNA_INVALID_ARGUMENT;
    const auto& pool = from(host).services->options_.parallel_for;
    if (pool) {
      pool(n, fn, arg);
    } else {
      for (std::uint32_t i = 0; i < n; ++i)
        fn(arg, i);
    }
    return LUNA_OK;
  }

  static const void* service(const luna_host* host, const char* id) noexcept {
    if (id == nullptr) return nullptr;
    const auto& services = from(host).services->services_;
    const auto found = services.find(std::string_view(id));
    return found == services.end() ? nullptr : found->second;
  }
};

HostServices::HostServices(Options options) : options_(std::move(options)) {
  LUNA_VERIFY(options_.clock != nullptr);
}

HostServices::~HostServices() = default;

void HostServices::add_service(std::string id, const void* table) {
  services_.insert_or_assign(std::move(id), table);
}

const luna_host* HostServices::host_for(const std::string& plugin_name) {
  auto& slot = hosts_[plugin_name];
  if (slot == nullptr) {
    slot = std::make_unique<PluginHost>();
    slot->table = {sizeof(luna_host),
                   LUNA_ABI_MINOR,
                   "luna",
                   LUNA_VERSION,
                   HostCalls::log,
                   HostCalls::now_ns,
                   HostCalls::rand_u64,
                   HostCalls::parallel_for,
                   HostCalls::service};
    slot->services = this;
    slot->log = logger("plugin." + plugin_name);
    // FNV-1a of the name: the same on every machine and in every run.
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (const char c : plugin_name)
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
    slot->seed = options_.seed ^ hash;
  }
  return &slot->table;
}

}  // namespace luna::plugin
