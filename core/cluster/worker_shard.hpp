// A shard in a worker's process: runs the steps that come in frames and sends back what they gave.
#pragma once

#include "core/cluster/kv_messages.hpp"
#include "core/cluster/link.hpp"
#include "core/cluster/messages.hpp"
#include "core/cluster/step_messages.hpp"
#include "core/model/local_shard.hpp"

#include <luna/abi/backend.h>
#include <luna/result.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace luna::cluster {

class WorkerShard;

/// A copy of KV blocks that a shard was asked for and has counted in.
struct KvTask {
  WorkerShard* shard = nullptr;
  FrameType type = FrameType::kv_export;
  KvOrder order;
  Bytes bytes;  ///< that go in, of an import
};

/// Owns the shard and the arrays of its steps in flight. Owned by WorkerSession; its steps have
/// ended when it is destroyed, for which whoever does so aborts it first where peers are gone.
class WorkerShard {
 public:
  /// id  names it in frames
  WorkerShard(std::uint64_t id,
              std::unique_ptr<model::LocalShard> shard,
              const model::ShardOrder& order,
              std::shared_ptr<Link> link);
  WorkerShard(const WorkerShard&) = delete;
  WorkerShard& operator=(const WorkerShard&) = delete;
  ~WorkerShard();

  [[nodiscard]] const model::LocalShard& local() const { return *shard_; }
  /// [main]
  Result<void> pack() { return shard_->pack({}); }
  /// Takes the memory from the device's budget. [main]
  Result<void> bind(const Bind& bind);

  /// Runs a step. Whatever becomes of it, `done` is sent; an error is the controller's fault.
  /// [io]
  /// Errors  corrupt: a step that the shard cannot run
  Result<void> start(std::span<const std::byte> payload);

  /// What its KV blocks hold, once it is bound; none: they cannot be copied.
  [[nodiscard]] std::optional<luna_kv_layout> kv_layout() const;
  /// Checks a copy of KV blocks, which run_copy() makes: until then the shard stays. [io]
  /// Errors  corrupt: one that the shard cannot make, or one more than may be under way
  Result<KvTask> begin_copy(const Frame& frame);
  /// Makes it and answers. [any]
  ///
  /// outside  memory for blocks that go out
  void run_copy(const KvTask& task, Bytes& outside);

  /// Ends every wait for other ranks. [any]
  void abort() { shard_->abort(); }
  /// That were started, ever. [any]
  [[nodiscard]] std::uint64_t n_steps() const { return n_steps_.load(std::memory_order_relaxed); }
  /// Likewise, and for other copies: it is about to be destroyed. [any]
  void abort_all() { shard_->abort_all(); }

  /// Attends for a shard of another copy from now on. [main]
  /// Errors  those of model::DeviceShard::open_slices()
  Result<void> open_slices(const model::SliceTerms& terms) { return shard_->open_slices(terms); }
  /// Ends every wait for the copy at a place. [any]
  void abort_slices(std::uint32_t place) { shard_->abort_slices(place); }
  /// Forgets it. [main]
  void close_slices(std::uint32_t place) { shard_->close_slices(place); }

 private:
  /// One step in flight; its arrays are used again.
  struct Lane {
    WorkerShard* shard = nullptr;
    std::uint32_t idx = 0;
    bool is_busy = false;  // under mutex_
    Step step;
    std::vector<luna_slice> slices;           // of the step, with their blocks
    std::vector<std::uint64_t> slice_masses;  // [n_slices]
    luna_step abi{};
  };

  [[nodiscard]] Result<void> check(const Step& step) const;
  [[nodiscard]] Result<void> check_blocks(const Step& step) const;
  [[nodiscard]] std::size_t n_blocks_of(const Step& step, std::size_t seq) const;
  void fill(Lane& lane) const;
  [[nodiscard]] Result<void> check(FrameType type, const KvOrder& order) const;
  [[nodiscard]] std::uint64_t n_bytes(const KvOrder& order) const;
  static void on_done(void* context, const luna_step_result* result);
  void send_outputs(const Lane& lane);
  void finish(Lane& lane, const luna_step_result& result);

  const std::uint64_t id_;
  const std::unique_ptr<model::LocalShard> shard_;
  const model::ProgramOptions program_;
  const std::shared_ptr<Link> link_;
  std::atomic<bool> is_bound_{false};  // then what follows is there, for the I/O thread
  std::uint32_t n_kv_blocks_ = 0;
  std::uint64_t memory_bytes_ = 0;  // of the device's budget

  std::mutex mutex_;  // guards which lanes are busy, and the counts
  std::condition_variable idle_;
  std::deque<Lane> lanes_;      // once it is bound
  std::uint32_t n_busy_ = 0;    // steps and copies
  std::uint32_t n_copies_ = 0;  // of them
  Step parsed_;                 // [io]
  std::atomic<std::uint64_t> n_steps_{0};
};

}  // namespace luna::cluster
