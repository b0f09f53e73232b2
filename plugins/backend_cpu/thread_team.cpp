#include "thread_team.hpp"

#include "kernels/cpu/kernel_set.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

namespace luna::cpu {
namespace {

// A barrier inside a step is met within microseconds; a longer wait means that a peer lost its core
// or that there is no work, and then spinning only takes time from whoever has.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesPerLook = 32;  // the clock costs about as much as the pauses between looks

/// Returns once `value` is no longer `seen`.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t seen) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (value.load(std::memory_order_acquire) != seen) return;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() - start < kSpin);
  value.wait(seen, std::memory_order_acquire);
}

void bind_to_cpu(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // A refusal (the mask changed under us) leaves the thread free to move: slower, never wrong.
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

void Barrier::arrive_and_wait() {
  if (n_threads_ == 1) return;
  const std::uint32_t seen = generation_.load(std::memory_order_relaxed);
  if (n_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads_) {
    n_arrived_.store(0, std::memory_order_relaxed);
    generation_.store(seen + 1, std::memory_order_release);
    generation_.notify_all();
    return;
  }
  wait_for_change(generation_, seen);
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

ThreadTeam::ThreadTeam(std::uint32_t n_threads, std::uint32_t first_cpu)
    : n_threads_(n_threads), barrier_(n_threads) {
  const std::vector<int> cpus = usable_cpus();
  threads_.reserve(n_threads);
  try {
    for (std::uint32_t i = 0; i < n_threads; ++i)
      threads_.emplace_back([this, i, cpu = cpus[(std::size_t{first_cpu} + i) % cpus.size()]] {
        bind_to_cpu(cpu);
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
      epoch_.fetch_add(1, std::memory_order_release);
      epoch_.notify_all();
      job.run(job.context, 0);
      barrier_.arrive_and_wait();
      job.finish(job.context);
      continue;
    }
    if (queue_.is_closed()) break;
    queue_.sleep(seen, &wait_for_change);
  }
  stops_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
}

void ThreadTeam::follow(std::uint32_t thread) {
  std::uint32_t seen = 0;
  for (;;) {
    wait_for_change(epoch_, seen);
    ++seen;
    if (stops_.load(std::memory_order_acquire)) return;
    const TeamJob job = job_;
    job.run(job.context, thread);
    barrier_.arrive_and_wait();  // the leader changes job_ after it alone
  }
}

}  // namespace luna::cpu
