// The threads of a CPU device: bound to cores, walking each job together, asleep in between.
#pragma once

#include <luna/backend_blocks.hpp>

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace luna::cpu {

class ThreadTeam;

/// What a team does: every thread calls `run(context, thread)`, and when all have returned, the
/// leader (thread 0) calls `finish(context)`.
struct TeamJob {
  void (*run)(void* context, std::uint32_t thread) = nullptr;
  void (*finish)(void* context) = nullptr;
  void* context = nullptr;
};

/// Where threads meet. Waiting spins for a moment, then sleeps.
class Barrier {
 public:
  /// may_spin  whether each thread has a core of its own
  Barrier(std::uint32_t n_threads, bool may_spin) : n_threads_(n_threads), may_spin_(may_spin) {}
  /// Returns when all threads have called it; what they wrote before is visible after.
  void arrive_and_wait();

 private:
  const std::uint32_t n_threads_;
  const bool may_spin_;
  alignas(64) std::atomic<std::uint32_t> n_arrived_{0};
  alignas(64) EventCount generation_;
};

/// Whether a team works, for those who stand back meanwhile.
class TeamActivity {
 public:
  /// Changes with every job that begins or ends. [any]
  [[nodiscard]] std::uint64_t value() const { return n_changes_.load(std::memory_order_relaxed); }
  static bool is_working(std::uint64_t value) { return value % 2 == 1; }
  /// A job begins, or ends. [leader]
  void change() { n_changes_.store(value() + 1, std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<std::uint64_t> n_changes_{0};
};

/// CPUs this process may run on, in the order of its affinity mask. [any]
std::vector<int> usable_cpus();
/// Lets the calling thread run on these CPUs only. [any]
void bind_to_cpus(std::span<const int> cpus);
/// How many threads make sense: the affinity mask, and the CPU time the control group grants. [any]
std::uint32_t usable_threads();

/// Owns n_threads threads. One job at a time, in the order of submit(). A resource; owned by the
/// device.
class ThreadTeam {
 public:
  /// first_cpu  position in the affinity mask of the first thread's core; positions wrap around
  /// activity   is told of each job; outlives the team
  ThreadTeam(std::uint32_t n_threads, std::uint32_t first_cpu, TeamActivity& activity);
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;
  ~ThreadTeam();  ///< finishes what is queued, then stops

  /// Whether the job found room in the queue. Returns at once, allocates nothing. [any]
  bool submit(const TeamJob& job) { return queue_.push(job); }
  /// Runs a job and waits for it; never from a step. [main]
  template <typename Body>
  void run_and_wait(Body&& body);

  /// For jobs: where all threads of the team meet.
  void barrier() { barrier_.arrive_and_wait(); }
  [[nodiscard]] std::uint32_t n_threads() const { return n_threads_; }
  [[nodiscard]] const std::vector<int>& cpus() const { return cpus_; }  ///< by thread

 private:
  void stop();
  void lead();
  void follow(std::uint32_t thread);

  const std::uint32_t n_threads_;
  const std::vector<int> cpus_;
  // Whether threads may spin for the next job: where they have all cores, the one who would send it
  // needs one of them.
  const bool leaves_core_free_;
  JobQueue<TeamJob, 64> queue_;  // of eight models, eight steps in flight each
  Barrier barrier_;
  TeamActivity& activity_;
  TeamJob job_;  // written by the leader before it raises started_
  std::atomic<bool> stops_{false};
  alignas(64) EventCount started_;  // a job, or the end
  EventCount finished_;             // a job of run_and_wait
  std::vector<std::thread> threads_;
};

template <typename Body>
void ThreadTeam::run_and_wait(Body&& body) {
  struct Context {
    Body* body;
    EventCount* finished;  // the team's: the context may be gone before raise() returns
    std::atomic<bool> is_done{false};
  } context{&body, &finished_};
  const TeamJob job{
      [](void* c, std::uint32_t thread) { (*static_cast<Context*>(c)->body)(thread); },
      [](void* c) {
        auto* done = static_cast<Context*>(c);
        EventCount* finished = done->finished;
        done->is_done.store(true, std::memory_order_release);
        finished->raise();
      },
      &context};
  while (!submit(job))
    std::this_thread::yield();
  for (;;) {
    const std::uint32_t seen = finished_.value();
    if (context.is_done.load(std::memory_order_acquire)) return;
    finished_.sleep(seen);
  }
}

}  // namespace luna::cpu
