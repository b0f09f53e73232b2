#include "thread_team.hpp"

#include "kernels/cpu/kernel_set.hpp"

#include <luna/time_slice.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <pthread.h>
#include <sched.h>

namespace luna::cpu {
namespace {

// Longer than the engine's own, so that a waking engine is let in before a thread that waits for
// its next step; short beside the milliseconds of other programs.
constexpr std::chrono::microseconds kTimeSlice{200};

/// The CPU of each thread of a team: neighbours in the affinity mask, from the first on.
std::vector<int> choose_cpus(std::uint32_t n_threads, std::uint32_t first_cpu) {
  const std::vector<int> usable = usable_cpus();
  std::vector<int> chosen;
  for (std::uint32_t i = 0; i < n_threads; ++i)
    chosen.push_back(usable[(std::size_t{first_cpu} + i) % usable.size()]);
  return chosen;
}

}  // namespace

void Barrier::arrive_and_wait() {
  if (n_threads_ == 1) return;
  const std::uint32_t seen = generation_.value();
  if (n_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads_) {
    n_arrived_.store(0, std::memory_order_relaxed);
    generation_.raise();
    return;
  }
  may_spin_ ? generation_.spin_then_sleep(seen) : generation_.sleep(seen);
}

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  if (cpus.empty()) cpus.push_back(0);  // more CPUs than the mask type holds: use the first
  return cpus;
}

void bind_to_cpus(std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    CPU_SET(cpu, &set);
  // A refusal (the mask changed under us) leaves the thread free to move: slower, never wrong.
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

std::uint32_t usable_threads() {
  auto n = static_cast<std::uint32_t>(usable_cpus().size());
  std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r");
  if (file == nullptr) return n;
  long long quota = 0;
  long long period = 0;
  if (std::fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0)
    n = std::min(n, static_cast<std::uint32_t>(std::max(1LL, (quota + period - 1) / period)));
  std::fclose(file);
  return n;
}

ThreadTeam::ThreadTeam(std::uint32_t n_threads, std::uint32_t first_cpu, TeamActivity& activity)
    : n_threads_(n_threads),
      cpus_(choose_cpus(n_threads, first_cpu)),
      leaves_core_free_(n_threads < usable_cpus().size()),
      barrier_(n_threads, n_threads <= usable_cpus().size()),
      activity_(activity) {
  threads_.reserve(n_threads);
  try {
    for (std::uint32_t i = 0; i < n_threads; ++i)
      threads_.emplace_back([this, i] {
        bind_to_cpus({&cpus_[i], 1});
        ask_for_time_slices(kTimeSlice);
        kernels::set_thread_float_mode();
        i == 0 ? lead() : follow(i);
      });
  } catch (...) {  // the system has no more threads: those that run must end before this goes
    stop();
    throw;
  }
}

void ThreadTeam::stop() {
  queue_.close();
  for (std::thread& thread : threads_)
    thread.join();
}

ThreadTeam::~ThreadTeam() {
  stop();
}

void ThreadTeam::lead() {
  for (;;) {
    const std::uint32_t seen = queue_.signal();
    TeamJob job;
    if (queue_.pop(&job)) {
      job_ = job;
      activity_.change();
      started_.raise();
      job.run(job.context, 0);
      barrier_.arrive_and_wait();
      activity_.change();
      job.finish(job.context);
      continue;
    }
    if (queue_.is_closed()) break;
    leaves_core_free_ ? queue_.spin_then_sleep(seen) : queue_.sleep(seen);
  }
  stops_.store(true, std::memory_order_release);
  started_.raise();
}

void ThreadTeam::follow(std::uint32_t thread) {
  std::uint32_t seen = 0;
  for (;;) {
    leaves_core_free_ ? started_.spin_then_sleep(seen) : started_.sleep(seen);
    ++seen;
    if (stops_.load(std::memory_order_acquire)) return;
    const TeamJob job = job_;
    job.run(job.context, thread);
    barrier_.arrive_and_wait();  // the leader changes job_ after it alone
  }
}

}  // namespace luna::cpu
