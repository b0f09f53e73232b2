// A program compiled for a CPU device: its schedules, one arena, and the steps under way.
#pragma once

#include "memory.hpp"
#include "run.hpp"
#include "schedule.hpp"
#include "thread_team.hpp"

#include <luna/backend.hpp>

#include <array>
#include <optional>

namespace luna::cpu {

struct Buffer {
  std::uint32_t kind = 0;
  std::uint64_t bytes = 0;
  Mapping memory;
  std::optional<PagePopulator> populator;  // KV only
  Reservation reservation;
};

/// What an executable uses of its device; the device outlives it.
struct DeviceServices {
  Host host;
  ThreadTeam* team;
  MemoryBudget* budget;
  const HandleTable<Buffer>* buffers;
  const HandleTable<Weight>* weights;
};

/// Errors  unsupported: a class of arithmetic or a KV type that is not built, by name
Result<void> check_numerics(std::uint32_t numerics);
Result<void> check_kv_type(const luna_kv_layout& layout);
kernels::KvShape kv_shape_of(const luna_kv_layout& layout);
std::uint64_t kv_block_bytes_of(const luna_kv_layout& layout);

/// A program's schedules; one that no step of it needs is empty.
struct Schedules {
  Schedule narrow;
  Schedule narrow_long;
  Schedule wide;
  Schedule observing;
  Schedule sliced;
};

/// Bytes a program takes beside its weights and KV.
Result<std::uint64_t> scratch_bytes_of(const luna_program& program, std::uint32_t n_threads);

class CpuExecutable final : public SlicingExecutable {
 public:
  static Result<std::unique_ptr<Executable>> make(const luna_program& program,
                                                  std::span<const std::uint64_t> weights,
                                                  const DeviceServices& services);
  Result<void> submit(const luna_step& step) override;
  Result<std::unique_ptr<SliceService>> serve(std::uint64_t buffer, const luna_comm& comm) override;

 private:
  /// Steps one program may have under way: core has at most eight in flight.
  static constexpr std::uint32_t kPendingMax = 8;

  explicit CpuExecutable(const DeviceServices& services) : services_(services) {}
  Result<void> find_weights(std::span<const std::uint64_t> handles, CompileInput* input);
  void make_rope_tables(CompileInput* input);
  Result<void> allocate(std::uint64_t bytes);
  Result<void> bind(const luna_step& step, StepContext* context) const;
  [[nodiscard]] AttendOrderRules attend_rules() const;
  [[nodiscard]] const Schedule* schedule_for(const luna_step& step, const AttendOrder& order) const;
  static void finish(void* context);

  struct Pending {
    StepContext context;
    CpuExecutable* owner = nullptr;
  };

  const DeviceServices services_;
  Program program_;
  luna_program abi_{};  // of program_
  StepBounds bounds_;
  AttendOrderRules attend_rules_;
  std::vector<std::unique_ptr<RopeTable>> ropes_;
  Schedules schedules_;
  Reservation reservation_;
  Mapping arena_;
  std::uint64_t private_stride_ = 0;
  std::uint64_t shared_bytes_ = 0;
  std::array<Pending, kPendingMax> pending_;
  std::uint32_t next_ = 0;          // [step]
  std::uint32_t slice_serial_ = 0;  // the leader's
  std::atomic<std::uint32_t> n_pending_{0};
};

}  // namespace luna::cpu
