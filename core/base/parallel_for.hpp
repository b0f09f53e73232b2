// Work spread over threads that live for one call: for start-up only.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace luna {

/// Calls body(thread_idx, i) once for every i below n, in no order, on up to n_threads threads of
/// which the caller is one; returns when all are done. `body` must not throw. [start-up]
template <typename Body>
void parallel_for(std::uint32_t n_threads, std::uint64_t n, const Body& body) {
  std::atomic<std::uint64_t> next{0};
  const auto work = [&](std::uint32_t thread_idx) {
    for (std::uint64_t i = next.fetch_add(1); i < n; i = next.fetch_add(1))
      body(thread_idx, i);
  };
  std::vector<std::jthread> others;
  for (std::uint32_t t = 1; t < n_threads && t < n; ++t)
    others.emplace_back(work, t);
  work(0);
}

}  // namespace luna
