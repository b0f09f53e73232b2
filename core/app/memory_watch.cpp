#include "core/app/memory_watch.hpp"

#include "core/base/log.hpp"

#include <algorithm>
#include <utility>

namespace luna::app {
namespace {

// Workers report as often.
constexpr std::chrono::milliseconds kLook{500};

using cluster::Farewell;
using cluster::ReliefStep;

}  // namespace

MemoryWatch::MemoryWatch(ClusterHost& cluster,
                         const cluster::MemoryAlarm::Options& alarm,
                         Hands hands)
    : cluster_(cluster),
      hands_(std::move(hands)),
      alarm_(alarm),
      thread_(kLook, [this] { look(); }) {}

void MemoryWatch::look() {
  const Nanoseconds now = clock_.now();
  note_workers(now);
  note_drain(now);
  // A step that cannot be taken is followed by the next one at once.
  while (const auto order = alarm_.next(now))
    obey(*order, now);
  cluster_.controller().stats().n_alarmed.store(alarm_.n_above());
}

void MemoryWatch::note_workers(Nanoseconds now) {
  std::set<std::string> here;
  for (const cluster::WorkerStatus& worker : cluster_.controller().status().workers) {
    here.insert(worker.name);
    if (worker.memory) alarm_.note(worker.name, *worker.memory, now);
  }
  for (const std::string& name : workers_)
    if (!here.contains(name)) alarm_.note_gone(name, now);
  workers_ = std::move(here);
}

/// How far the worker is that the alarm has had drained.
void MemoryWatch::note_drain(Nanoseconds now) {
  const auto& treated = alarm_.treated();
  if (!treated || treated->step != ReliefStep::drain || !workers_.contains(treated->worker)) return;
  const auto leaving = cluster_.controller().leaving();
  const auto found = std::ranges::find(leaving, treated->worker, &cluster::LeavingWorker::name);
  if (found == leaving.end()) {
    logger("app")->error("a worker takes too much memory and nobody can take its layers worker={}",
                         treated->worker);
    alarm_.note_refused(now);
  } else if (cluster_.is_free(*found)) {
    alarm_.note_drained();
  }
}

void MemoryWatch::obey(const cluster::ReliefOrder& order, Nanoseconds now) {
  cluster::Controller& controller = cluster_.controller();
  telemetry::ClusterStats& stats = controller.stats();
  logger("app")->warn("memory alarm worker={} step={}", order.worker, name_of(order.step));
  switch (order.step) {
    case ReliefStep::relieve:
      hands_.drop_prefix_caches();
      controller.relieve(order.worker);
      ++stats.n_relieved;
      return;
    case ReliefStep::move:
      if (!move_sequences(order.worker)) alarm_.note_refused(now);
      return;
    case ReliefStep::drain:
      // One that has gone meanwhile is noticed at the next look.
      (void)controller.drain(order.worker, Farewell::restart);
      return;
    case ReliefStep::restart:
      controller.dismiss(order.worker);
      ++stats.n_restarted;
      return;
  }
}

bool MemoryWatch::move_sequences(const std::string& worker) const {
  const auto workers = cluster_.controller().status().workers;
  const auto found = std::ranges::find(workers, worker, &cluster::WorkerStatus::name);
  return found != workers.end() && hands_.move_sequences(found->devices);
}

}  // namespace luna::app
