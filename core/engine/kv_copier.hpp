// Copies KV blocks from the devices of one group to those of another, beside their steps.
#pragma once

#include "core/base/bounded.hpp"
#include "core/base/clock.hpp"
#include "core/model/compiled_model.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

namespace luna::engine {

/// Whether KV of one group can lie on the other: layer by layer in the same layout, on devices that
/// attend with equal bits and let it be copied. Their rows of layers may be cut at other places; of
/// a tensor split, whose devices have a part of each layer, the cuts are the same.
[[nodiscard]] bool can_copy_kv(const model::CompiledModel& from, const model::CompiledModel& to);

/// Whether device by device they hold the same layers.
[[nodiscard]] bool has_same_cuts(const model::CompiledModel& a, const model::CompiledModel& b);

/// Blocks to copy, in pairs. Whoever asks keeps it and the blocks until it has ended. Its vectors
/// are filled before the copy starts and left alone until then.
struct KvCopy {
  enum class State : std::uint8_t { idle, running, done, failed };
  /// Which devices could not do their part, of a copy that failed.
  enum class Side : std::uint8_t { none, from, to };

  const model::CompiledModel* from = nullptr;
  const model::CompiledModel* to = nullptr;
  std::vector<std::uint32_t> from_blocks;
  std::vector<std::uint32_t> to_blocks;
  bool is_urgent = false;  ///< its sequence stands still: it goes ahead of others, and between
  std::atomic<State> state{State::idle};
  Side failed_at = Side::none;            ///< once it has failed; none: it was cancelled
  std::atomic<bool> is_cancelled{false};  ///< it may end early, as one that failed

  [[nodiscard]] bool has_ended() const {
    return state.load(std::memory_order_acquire) != State::running;
  }
};

/// Runs copies on a thread of its own: one behind the other, but for urgent ones. [engine] unless
/// tagged otherwise, owned by the engine.
class KvCopier {
 public:
  /// clock, wake    outlive it; wake is set when a copy has ended
  /// n_copies_max   under way at a time
  /// has_thread     false: a copy is made when it is started, for virtual time
  KvCopier(const Clock& clock, WakeSignal& wake, std::size_t n_copies_max, bool has_thread);
  /// Waits for the copies that were started.
  ~KvCopier();
  KvCopier(const KvCopier&) = delete;
  KvCopier& operator=(const KvCopier&) = delete;

  void start(KvCopy& copy);
  /// What a byte took lately; 0: nothing was copied yet.
  [[nodiscard]] double ns_per_byte() const { return ns_per_byte_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t n_bytes() const { return n_bytes_.load(std::memory_order_relaxed); }

 private:
  // That pass through the memory between at a time, or one block where it is longer: as a cache
  // holds it, and no more than an urgent copy may wait for.
  static constexpr std::size_t kBytesAtOnce = std::size_t{1} << 20U;
  /// What a device of each group has in common.
  struct Overlap {
    const model::KvAccess* from = nullptr;
    const model::KvAccess* to = nullptr;
    std::uint32_t first_layer = 0;  // of the model
    std::uint32_t n_layers = 0;
  };

  void run();
  [[nodiscard]] std::optional<KvCopy*> next();
  void make_urgent();
  void make(KvCopy& copy);
  [[nodiscard]] bool copy_overlap(KvCopy& copy, const Overlap& overlap);

  const Clock& clock_;
  WakeSignal& wake_;
  BoundedQueue<KvCopy*> queue_;
  BoundedQueue<KvCopy*> urgent_;
  std::atomic<std::uint32_t> n_started_{0};  // changes wake the thread
  std::atomic<bool> stopping_{false};
  std::atomic<double> ns_per_byte_{0.0};
  std::atomic<std::uint64_t> n_bytes_{0};
  std::vector<std::byte> between_;  // the thread's
  Nanoseconds lent_{0};             // the thread's: what urgent copies took within others, ever
  std::thread thread_;
};

}  // namespace luna::engine
