// How fast a queue drains, from what was seen of it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace luna {

/// What was let in, over the time in which somebody waited; what lies a few seconds back counts
/// half and less. Its only clock is what it is told. A value, used on one thread.
class DrainRate {
 public:
  /// The time now. Call before the others of a turn.
  void begin(std::uint64_t now_ns) {
    if (is_backlogged_) waited_ns_ += std::min(static_cast<double>(now_ns - last_ns_), kTurnMaxNs);
    last_ns_ = now_ns;
    if (waited_ns_ <= 2.0 * kHalfLifeNs) return;
    waited_ns_ /= 2.0;
    n_let_in_ /= 2.0;
  }
  /// So much left the queue. Without a backlog it says nothing: it did not wait.
  void let_in(std::uint64_t n) {
    if (is_backlogged_) n_let_in_ += static_cast<double>(n);
  }
  /// Whether some wait on after this turn.
  void end(bool is_backlogged) { is_backlogged_ = is_backlogged; }

  /// Time until so much more has been let in; 0 where nothing was measured yet.
  [[nodiscard]] double wait_ns(double n) const {
    return n_let_in_ > 0.0 ? n * waited_ns_ / n_let_in_ : 0.0;
  }

 private:
  // Long against one answer, which frees a place; short against a change of load.
  static constexpr double kHalfLifeNs = 5e9;
  // Turns follow each other while somebody waits: after a longer pause nobody did.
  static constexpr double kTurnMaxNs = 2e9;
  double waited_ns_ = 0.0;
  double n_let_in_ = 0.0;
  std::uint64_t last_ns_ = 0;
  bool is_backlogged_ = false;
};

}  // namespace luna
