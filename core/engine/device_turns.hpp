// Engines that share devices: whose step may begin, by weight.
#pragma once

#include "core/base/clock.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

namespace luna::engine {

/// Of the devices' time a member gets its weight's part of what those who have work get together:
/// what nobody else wants anybody may have. A member may begin a step while the time that its steps
/// took, by weight, is no more than anybody's who has work, its own last step not counted: so one
/// step more than the one that runs waits at the devices, and they never do. Who comes back after a
/// pause is owed nothing for it. Lock-free; outlives its members, whose numbers stand in the order
/// of their weights.
class DeviceTurns {
 public:
  static constexpr std::size_t kMembersMax = 16;
  /// Less would let the others wait for minutes.
  static constexpr double kWeightMin = 0.02;

  /// weights  positive, one a member, kMembersMax at most; only what they are to each other counts
  explicit DeviceTurns(std::span<const double> weights);
  DeviceTurns(const DeviceTurns&) = delete;
  DeviceTurns& operator=(const DeviceTurns&) = delete;

  /// `wake` is set when a member that was refused may ask again. [start-up]
  void enter(std::uint32_t member, WakeSignal& wake);
  /// The member's thread has ended; nobody touches its signal any more. [main]
  void leave(std::uint32_t member);

  // ---- [engine] of the member
  /// Whether it may begin a step that it could begin now.
  [[nodiscard]] bool may_begin(std::uint32_t member);
  void note_step(std::uint32_t member, std::uint64_t busy_ns);
  /// Once a turn of its loop, when all that could begin has begun.
  ///
  /// runs   a step of it is in flight
  /// waits  it was refused, and still has what it wanted to run
  void settle(std::uint32_t member, bool runs, bool waits, Nanoseconds now);

  // ---- [any]
  void set_weight(std::uint32_t member, double weight);
  [[nodiscard]] double weight(std::uint32_t member) const;
  [[nodiscard]] bool have_others_work(std::uint32_t member) const;
  [[nodiscard]] std::uint32_t n_members() const { return n_members_; }
  /// Time in which it had work, since the beginning.
  [[nodiscard]] Nanoseconds time_with_work(std::uint32_t member) const {
    return Nanoseconds(members_[member].with_work_ns.load(std::memory_order_relaxed));
  }

 private:
  struct Member {
    std::atomic<std::uint32_t> weight{0};  // in parts of 65,536
    std::atomic<std::uint64_t> used{0};    // time of its steps by weight
    std::atomic<bool> has_work{false};
    std::atomic<bool> waits{false};
    std::atomic<WakeSignal*> wake{nullptr};
    std::atomic<std::uint32_t> n_waking{0};  // threads that may hold `wake`
    std::atomic<std::int64_t> with_work_ns{0};
    // Its own thread's:
    std::uint64_t last = 0;  // of `used`: its last step
    bool had_work = false;  // when it settled last
    bool has_changed = false;
    Nanoseconds settled_at{0};
  };

  void wake_waiting(std::uint32_t but);

  const std::uint32_t n_members_;
  std::array<Member, kMembersMax> members_;
};

/// A member's place.
struct DeviceTurn {
  DeviceTurns* turns = nullptr;
  std::uint32_t member = 0;
};

}  // namespace luna::engine
