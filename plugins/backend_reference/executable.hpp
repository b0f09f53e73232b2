// A program of the reference backend: memory for every tensor, and a loop over the ops.
#pragma once

#include "ops.hpp"
#include "weight.hpp"

#include <luna/abi/transport.h>
#include <luna/backend.hpp>
#include <luna/op_program.hpp>

#include <vector>

namespace luna::reference {

struct Buffer {
  std::uint32_t kind = 0;
  std::uint64_t bytes = 0;
  std::unique_ptr<std::byte[]> memory;  // zeroed
  Reservation reservation;
};

class ReferenceExecutable;
struct Job {
  ReferenceExecutable* executable = nullptr;
  luna_step step{};
};
using StepQueue = JobQueue<Job, 64>;  // of eight models, eight steps in flight each

/// What an executable uses of its device; the device outlives it.
struct DeviceServices {
  Host host;
  StepQueue* queue;
  MemoryBudget* budget;
  const HandleTable<Buffer>* buffers;
  const HandleTable<Weight>* weights;
};

std::uint64_t kv_block_bytes_of(const luna_kv_layout& layout);
std::uint64_t scratch_bytes_of(const luna_program& program);

class ReferenceExecutable final : public Executable {
 public:
  static Result<std::unique_ptr<Executable>> make(const luna_program& program,
                                                  std::span<const std::uint64_t> weights,
                                                  const DeviceServices& services);
  Result<void> submit(const luna_step& step) override;
  /// Runs the step and calls its `done`. [device thread]
  void run(const luna_step& step);

 private:
  explicit ReferenceExecutable(const DeviceServices& services) : services_(services) {}
  Result<void> find_weights(std::span<const std::uint64_t> handles);
  void allocate();
  [[nodiscard]] Buffer* bound(const luna_step& step, std::uint32_t kind) const;
  [[nodiscard]] Rows rows(const luna_view& view, const luna_step& step);
  [[nodiscard]] Matrix matrix(const luna_view& view) const;
  [[nodiscard]] KvCache cache(const luna_step& step, std::uint32_t seq) const;

  luna_status run_op(const OpReader& op, const luna_step& step);
  void run_row_op(const OpReader& op, const luna_step& step);
  void run_kv_op(const OpReader& op, const luna_step& step);
  void run_prune(const OpReader& op, const luna_step& step, std::uint32_t seq);
  void run_output_op(const OpReader& op, const luna_step& step);
  luna_status run_comm_op(const OpReader& op, const luna_step& step);
  luna_status run_gather_op(const OpReader& op, const luna_step& step);

  const DeviceServices services_;
  Program program_;
  luna_program abi_{};  // of program_
  StepBounds bounds_;
  Reservation reservation_;
  std::vector<const Weight*> weights_;               // by slot; null for other slots
  std::vector<std::vector<std::byte>> activations_;  // by slot; empty for other slots
  std::vector<double> linear_scratch_;
  std::vector<double> scores_;           // [n_positions_max]
  std::vector<float> weights_of_slots_;  // [n_positions_max], as the next two
  std::vector<float> ranks_;
  std::vector<std::uint32_t> kept_;
  std::vector<std::uint32_t> ids_;  // [vocab]
  std::vector<float> message_;      // [n_rows_max, widest]: contiguous rows for the communicator
  std::vector<float> message_out_;
  std::uint64_t wait_ns_ = 0;  // of the running step
};

}  // namespace luna::reference
