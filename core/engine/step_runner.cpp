#include "core/engine/step_runner.hpp"

#include "core/base/assert.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <mutex>
#include <thread>

namespace luna::engine {
namespace {

/// Steps wait for each other's devices, and a device runs them as they come: two models that share
/// devices would wait for each other for ever, if one device got their steps in another order than
/// the next. So whoever submits to several does it alone; that takes some microseconds.
std::mutex& order_of_submits() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

StepRunner::StepRunner(const model::CompiledModel& model, WakeSignal& wake, std::uint32_t lane)
    : model_(model),
      wake_(wake),
      lane_(lane),
      slots_(model.shards.size()),
      steps_(model.shards.size()) {
  for (Slot& slot : slots_)
    slot.runner = this;
}

StepRunner::~StepRunner() {
  LUNA_ASSERT(!busy_);
  // The last completion made the step done, and has yet to set the signal.
  while (n_inside_.load(std::memory_order_acquire) != 0)
    std::this_thread::yield();
}

void StepRunner::submit(const luna_step& step) {
  LUNA_VERIFY(!busy_);
  busy_ = true;
  failed_.store(false, std::memory_order_relaxed);
  // All are pending before the first can end; the release is the submit's own.
  n_pending_.store(static_cast<std::uint32_t>(slots_.size()), std::memory_order_relaxed);
  n_inside_.fetch_add(static_cast<std::uint32_t>(slots_.size()), std::memory_order_relaxed);
  for (Slot& slot : slots_) {
    slot.status = LUNA_OK;
    slot.busy_ns = 0;
  }
  std::unique_lock order(order_of_submits(), std::defer_lock);
  if (slots_.size() > 1) order.lock();
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const model::Shard& shard = model_.shards[s];
    luna_step& own = steps_[s];
    own = step;
    own.binds = shard.binds[lane_].data();
    own.n_binds = static_cast<std::uint32_t>(shard.binds[lane_].size());
    own.done = &StepRunner::on_done;
    own.done_context = &slots_[s];
    luna_err err = make_err();
    ++n_submits_;
    const luna_status status = shard.backend->submit(shard.executable, &own, &err);
    if (status >= 0) continue;
    // This device and those after it will not call back; those before it send to them in vain.
    note_failure(slots_[s], status, text_of(err));
    if (s > 0) failed_.store(true, std::memory_order_relaxed);
    const auto n_silent = static_cast<std::uint32_t>(slots_.size() - s);
    n_inside_.fetch_sub(n_silent, std::memory_order_relaxed);
    n_pending_.fetch_sub(n_silent, std::memory_order_acq_rel);
    wake_.set();
    return;
  }
}

void StepRunner::note_failure(Slot& slot, luna_status status, std::string_view message) {
  slot.status = status;
  const std::size_t n = std::min(message.size(), slot.message.size() - 1);
  std::copy_n(message.begin(), n, slot.message.begin());
  slot.message[n] = '\0';
}

void StepRunner::on_done(void* context, const luna_step_result* result) {
  Slot& slot = *static_cast<Slot*>(context);
  StepRunner& runner = *slot.runner;
  slot.busy_ns = result->busy_ns;
  const bool failed = result->status < 0;
  if (failed) {
    note_failure(slot, result->status, result->message != nullptr ? result->message : "");
    runner.failed_.store(true, std::memory_order_relaxed);
  }
  const bool last = runner.n_pending_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  if (last || failed) runner.wake_.set();
  runner.n_inside_.fetch_sub(1, std::memory_order_release);
}

bool StepRunner::is_done() {
  const bool has_ended = n_pending_.load(std::memory_order_acquire) == 0;
  if (!failed_.load(std::memory_order_relaxed)) return has_ended;
  abort();
  return n_pending_.load(std::memory_order_acquire) == 0;
}

// A device that failed has sent or received something, or not: the next message on a lane may be of
// its step, and would be taken for that of the next. Those that wait for it are let go.
void StepRunner::abort() {
  if (aborted_ || model_.abort_comms == nullptr) return;
  aborted_ = true;
  model_.abort_comms(model_.abort_context);
}

StepRunner::Outcome StepRunner::collect() {
  LUNA_ASSERT(busy_ && n_pending_.load() == 0);
  busy_ = false;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].status >= 0) continue;
    // A peer that was let go says "cancelled": the cause is another one, if there is any.
    const auto is_cause = [](const Slot& slot) {
      return slot.status < 0 && slot.status != LUNA_CANCELLED;
    };
    const auto cause = std::find_if(slots_.begin(), slots_.end(), is_cause);
    const Slot& slot = cause != slots_.end() ? *cause : slots_[s];
    const auto idx = static_cast<std::size_t>(&slot - slots_.data());
    return {.ok = false,
            .status = slot.status,
            .shard = static_cast<std::uint32_t>(idx),
            .device = model_.shards[idx].device_name,
            .message = slot.message.data()};
  }
  return {};
}

}  // namespace luna::engine
