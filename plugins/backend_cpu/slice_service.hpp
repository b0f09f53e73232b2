// A device that holds slices of another's sequences: a thread that answers that owner's queries.
#pragma once

#include "memory.hpp"
#include "run.hpp"
#include "slice_wire.hpp"

#include <luna/backend.hpp>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace luna::cpu {

struct SliceServiceOptions {
  const luna_comm* comm = nullptr;  // rank 1 of two; outlives the service
  Host host{nullptr};
  MemoryBudget* budget = nullptr;  // the device's
  std::vector<int> cpus;           // where the thread may run: its device's
  KvPool kv;                       // what blocks are read from; outlives the service
  std::uint64_t n_kv_blocks = 0;
};

/// Bytes that a service takes: one request and one answer.
std::uint64_t service_bytes_of(const SliceShape& shape);

/// Reads a request, checks every number of it, attends to the blocks it names, sends the states;
/// and so on until its communicator ends. It waits for nothing else and allocates nothing. What
/// breaks the format is refused: the owner is told where the answer's size is known, and the
/// service ends where nobody can tell what comes next. A resource.
class CpuSliceService final : public SliceService {
 public:
  /// Errors  invalid_argument: the program attends to nothing; exhausted
  static Result<std::unique_ptr<SliceService>> make(const luna_program& program,
                                                    const SliceServiceOptions& options);
  ~CpuSliceService() override;  ///< returns when the communicator has ended

 private:
  /// Attention of a layer, as the program has it.
  struct Layer {
    std::uint32_t n_heads = 0;  // 0: the layer has none
    float scale = 1.0F;
    std::uint32_t window = 0;
    float softcap = 0.0F;
  };

  CpuSliceService(const luna_program& program, const SliceServiceOptions& options);
  void run();
  [[nodiscard]] Result<void> check(const SliceHeader& header) const;
  [[nodiscard]] SliceShape shape_of(const SliceHeader& header) const;
  luna_status receive(void* to, std::uint64_t n_bytes) const;
  luna_status answer(const SliceHeader& header);
  void attend(const SliceHeader& header, const SliceBody& body);
  void refuse(const Error& why) const;

  const SliceServiceOptions options_;
  const kernels::KernelSet& kernels_;
  const SliceShape shape_;
  std::vector<Layer> layers_;
  Reservation reservation_;
  Mapping memory_;
  std::byte* request_ = nullptr;  // [message_bytes]
  std::byte* states_ = nullptr;   // [message_bytes]
  std::byte* scratch_ = nullptr;  // of the kernels
  std::thread thread_;
};

}  // namespace luna::cpu
