// What the pipeline counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace luna::pipeline {

/// [pipeline] writes, [any] reads.
class PipelineStats {
 public:
  std::atomic<std::uint64_t> n_role_runs{0};  ///< border calls: roles
  std::atomic<std::uint64_t> role_run_ns{0};  ///< in these, with what is laid out for them

  /// Labels come from settings, so they are few; more than kIntentsMax are not told apart.
  void count_intent(const std::string& label) {
    const std::lock_guard lock(mutex_);
    const bool is_known = intents_.contains(label) || intents_.size() < kIntentsMax;
    ++intents_[is_known ? label : "(more)"];
  }
  [[nodiscard]] std::map<std::string, std::uint64_t> intents() const {
    const std::lock_guard lock(mutex_);
    return intents_;
  }

 private:
  static constexpr std::size_t kIntentsMax = 64;
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t> intents_;  // by label
};

}  // namespace luna::pipeline
