#include "core/check/check_host.hpp"

#include "core/check/allocation_watch.hpp"

#include <type_traits>

namespace luna::check {

/// The functions behind the table.
struct CheckHostCalls {
  static CheckHost& from(const luna_host* host) {
    static_assert(std::is_standard_layout_v<CheckHost::Table>);
    return *reinterpret_cast<const CheckHost::Table*>(host)->owner;
  }
  static void log(const luna_host* host, std::int32_t level, luna_str text) noexcept {
    CheckHost& own = from(host);
    ++own.n_log_lines_;
    // The program's own allocations are nobody's fault.
    if (AllocationWatch::is_counting()) return;
    own.real_->log(own.real_, level, text);
  }
  static std::uint64_t now_ns(const luna_host* host) noexcept {
    return from(host).real_->now_ns(from(host).real_);
  }
  static std::uint64_t rand_u64(const luna_host* host, std::uint64_t stream) noexcept {
    return from(host).real_->rand_u64(from(host).real_, stream);
  }
  static luna_status parallel_for(const luna_host* host,
                                  std::uint32_t n,
                                  void (*fn)(void*, std::uint32_t),
                                  void* arg) noexcept {
    return from(host).real_->parallel_for(from(host).real_, n, fn, arg);
  }
  static const void* service(const luna_host* host, const char* id) noexcept {
    return from(host).real_->service(from(host).real_, id);
  }
};

CheckHost::CheckHost(std::uint64_t seed, const std::string& plugin_name)
    : services_({&clock_, seed, {}}), real_(services_.host_for(plugin_name)) {
  table_.head = *real_;
  table_.head.struct_size = sizeof(luna_host) + sizeof(table_.tail);
  table_.head.log = CheckHostCalls::log;
  table_.head.now_ns = CheckHostCalls::now_ns;
  table_.head.rand_u64 = CheckHostCalls::rand_u64;
  table_.head.parallel_for = CheckHostCalls::parallel_for;
  table_.head.service = CheckHostCalls::service;
  table_.tail.fill(0xA5);
  table_.owner = this;
}

}  // namespace luna::check
