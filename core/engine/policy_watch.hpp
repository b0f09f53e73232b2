// Whether a policy keeps failing.
#pragma once

#include <bit>
#include <cstdint>

namespace luna::engine {

/// Looks at the last kPlans plans of a policy: one fault says nothing, many do. A value.
class PolicyWatch {
 public:
  static constexpr std::uint32_t kPlans = 64;

  /// n_faults_max  1..kPlans
  explicit PolicyWatch(std::uint32_t n_faults_max) : n_faults_max_(n_faults_max) {}

  /// Notes a plan. True: too many of the last ones were faults.
  bool note(bool is_fault) {
    recent_ = recent_ << 1U | (is_fault ? 1U : 0U);
    return n_faults() >= n_faults_max_;
  }
  /// Another policy begins.
  void reset() { recent_ = 0; }
  [[nodiscard]] std::uint32_t n_faults() const {
    return static_cast<std::uint32_t>(std::popcount(recent_));
  }

 private:
  std::uint32_t n_faults_max_;
  std::uint64_t recent_ = 0;  // a bit a plan, the last one lowest
};

}  // namespace luna::engine
