// The host that a plugin meets in the validator: the program's own services, watched.
#pragma once

#include "core/base/clock.hpp"
#include "core/plugin/host_services.hpp"

#include <luna/abi/host.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace luna::check {

/// A clock that stands where it was put.
class SetClock final : public Clock {
 public:
  [[nodiscard]] Nanoseconds now() const override { return Nanoseconds(now_.load()); }
  void wait(WakeSignal& /*signal*/, std::optional<Nanoseconds> deadline) override {
    if (deadline) set(*deadline);
  }
  void set(Nanoseconds now) { now_ = now.count(); }

 private:
  std::atomic<std::int64_t> now_{0};
};

/// Its table is longer than this build's, as that of a newer host would be. Owned by the case;
/// outlives every instance.
class CheckHost {
 public:
  CheckHost(std::uint64_t seed, const std::string& plugin_name);
  CheckHost(const CheckHost&) = delete;
  CheckHost& operator=(const CheckHost&) = delete;

  [[nodiscard]] const luna_host* raw() const { return &table_.head; }
  void set_now(std::uint64_t now_ns) {
    clock_.set(Nanoseconds(static_cast<Nanoseconds::rep>(now_ns)));
  }
  [[nodiscard]] std::uint64_t n_log_lines() const { return n_log_lines_; }

 private:
  friend struct CheckHostCalls;
  struct Table {
    luna_host head{};
    std::array<unsigned char, 64> tail{};  // what no plugin of this build may touch
    CheckHost* owner = nullptr;
  };

  SetClock clock_;
  plugin::HostServices services_;
  const luna_host* real_;
  Table table_;
  std::atomic<std::uint64_t> n_log_lines_{0};
};

}  // namespace luna::check
