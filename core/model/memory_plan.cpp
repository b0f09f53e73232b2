#include "core/model/memory_plan.hpp"

#include "core/base/units.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>

namespace luna::model {
namespace {

// A prompt needs a block, and one more to grow into: with less no request can ever run.
constexpr std::uint64_t kKvBlocksMin = 2;

Error does_not_fit(const PlannedShard& shard) {
  const ShardMemory& memory = shard.memory;
  const std::uint64_t needed = memory.fixed() + kKvBlocksMin * memory.kv_block;
  return Error{Code::exhausted,
               "device " + shard.device->name() + ": weights " + bytes_text(memory.weights) +
                   " + activations " + bytes_text(memory.scratch) + " + outputs " +
                   bytes_text(memory.logits + memory.candidates) + " + messages " +
                   bytes_text(memory.messages) + " + " + std::to_string(kKvBlocksMin) +
                   " KV blocks " + bytes_text(kKvBlocksMin * memory.kv_block) + " = " +
                   bytes_text(needed) + ", but " + bytes_text(shard.device->memory_bytes_left()) +
                   " are left of its budget of " + bytes_text(shard.device->memory_bytes()) +
                   "; give it more memory, more devices, or smaller steps"};
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / kKiB;
  std::size_t unit = 0;
  while (value >= kKiB && unit + 1 < kUnits.size()) {
    value /= kKiB;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

Result<ShardMemory> measure_shard(const ModelConfig& config,
                                  const ShardDraft& shard,
                                  const ProgramOptions& options,
                                  std::uint64_t message_bytes) {
  const luna_backend_if& backend = shard.device->backend();
  void* device = shard.device->handle();
  const std::string where = "device " + shard.device->name();
  ShardMemory memory;
  memory.messages = message_bytes;
  luna_err err = make_err();
  for (const ShardWeight& weight : shard.weights) {
    std::uint64_t bytes = 0;
    LUNA_TRY(to_result(backend.weight_bytes(device, &weight.desc, options.numerics, &bytes, &err),
                       err,
                       where + ": weight " + weight.name));
    memory.weights += bytes;
  }
  const luna_program program = shard.program.abi();
  LUNA_TRY(to_result(backend.scratch_bytes(device, &program, &memory.scratch, &err),
                     err,
                     where + ": scratch_bytes"));
  LUNA_TRY(to_result(backend.kv_block_bytes(device, &program.kv, &memory.kv_block, &err),
                     err,
                     where + ": kv_block_bytes"));
  if (memory.kv_block == 0)
    return Error{Code::internal, where + ": its backend says that a KV block takes 0 bytes"};
  if (shard.spec.has_head) {
    const std::uint64_t n_rows = std::uint64_t{options.n_lanes} * options.limits.n_out_rows_max;
    memory.logits = n_rows * config.vocab_size * sizeof(float);
    memory.candidates = n_rows * (options.n_candidates + 1) * sizeof(Candidate);
  }
  return memory;
}

Result<MemoryPlan> plan_memory(std::span<const PlannedShard> shards,
                               std::optional<std::uint32_t> n_kv_blocks_max) {
  MemoryPlan plan;
  std::uint64_t n_blocks = n_kv_blocks_max.value_or(std::numeric_limits<std::int32_t>::max());
  for (const PlannedShard& shard : shards) {
    const ShardMemory& memory = shard.memory;
    const std::uint64_t left = shard.device->memory_bytes_left();
    if (left < memory.fixed() || left - memory.fixed() < kKvBlocksMin * memory.kv_block)
      return does_not_fit(shard);
    n_blocks = std::min(n_blocks, (left - memory.fixed()) / memory.kv_block);
    plan.shards.push_back(memory);
  }
  if (n_blocks < kKvBlocksMin) {
    return Error{Code::invalid_argument,
                 "a bound of " + std::to_string(n_blocks) + " KV blocks: must be at least " +
                     std::to_string(kKvBlocksMin)};
  }
  plan.n_kv_blocks = static_cast<std::uint32_t>(n_blocks);
  for (ShardMemory& memory : plan.shards)
    memory.kv = n_blocks * memory.kv_block;
  return plan;
}

}  // namespace luna::model
