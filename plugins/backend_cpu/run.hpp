// Walking a compiled program: what one thread of the team does in a step.
#pragma once

#include "attend_order.hpp"
#include "schedule.hpp"
#include "slice_wire.hpp"
#include "thread_team.hpp"

#include <luna/abi/transport.h>
#include <luna/plugin.hpp>

#include <atomic>

namespace luna::cpu {

/// How the KV of a program lies in its buffer: blocks of layers of heads.
struct KvPool {
  kernels::KvShape shape;
  std::byte* base = nullptr;
  std::uint64_t block_bytes = 0;  // of a whole block, all layers
};

/// What a step with slices needs beside its arrays.
struct SliceContext {
  const luna_slice_peers* peers = nullptr;
  std::uint32_t* serial = nullptr;  // of the executable's requests
  // Written by the leader alone. The first failure: the step goes on, so that what else it sends
  // and receives stays in order, and ends with it.
  luna_status status = LUNA_OK;
  const char* message = "";
  std::uint64_t failed = 0;  // a bit for each peer that is asked no more
};

/// One step under way. Filled by submit(); read by all threads of the team.
struct StepContext {
  luna_step step{};
  const Schedule* schedule = nullptr;
  AttendOrder attend_order;
  ThreadTeam* team = nullptr;
  const kernels::KernelSet* kernels = nullptr;
  Host host{nullptr};
  std::byte* shared = nullptr;          // schedule->shared_bytes
  std::byte* private_memory = nullptr;  // of thread 0; the others' follow
  std::uint64_t private_stride = 0;
  KvPool kv;
  float* logits = nullptr;              // [n_out_rows_max, vocab]
  std::uint32_t* candidates = nullptr;  // [n_out_rows_max, k + 1, 2]
  const luna_comm* comm = nullptr;
  SliceContext slices;
  // Written by the leader alone; once it has failed, nobody computes, all still meet.
  std::atomic<luna_status> status{LUNA_OK};
  std::uint64_t start_ns = 0;
  std::uint64_t wait_ns = 0;
};

/// Runs all phases as thread `thread` of the team. Allocates nothing, locks nothing.
void run_step(StepContext& context, std::uint32_t thread);

}  // namespace luna::cpu
