#include "core/cluster/kv_courier.hpp"

#include <utility>

namespace luna::cluster {

KvCourier::KvCourier() : thread_([this] { run(); }) {}

KvCourier::~KvCourier() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    wake_.notify_all();
  }
  thread_.join();
}

void KvCourier::push(KvTask task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  wake_.notify_all();
}

void KvCourier::run() {
  Bytes outside;  // memory of copies out, used again
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return is_stopped_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const KvTask task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task.shard->run_copy(task, outside);
    lock.lock();
  }
}

}  // namespace luna::cluster
