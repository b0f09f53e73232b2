// The thread of a worker that copies KV blocks out of its shards and into them.
#pragma once

#include "core/cluster/worker_shard.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace luna::cluster {

/// A thread of its own, since the I/O thread must ping and the main thread may be loading. What
/// waits for it is bounded: each shard takes kKvPiecesMax copies at a time. Owned by WorkerSession,
/// outlives the shards.
class KvCourier {
 public:
  KvCourier();
  KvCourier(const KvCourier&) = delete;
  KvCourier& operator=(const KvCourier&) = delete;
  /// Nothing waits any more: its shards have gone.
  ~KvCourier();

  /// [io]
  void push(KvTask task);

 private:
  void run();

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<KvTask> tasks_;
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace luna::cluster
