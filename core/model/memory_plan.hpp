// What a model takes on each of its devices, computed before anything is allocated.
#pragma once

#include "core/model/device.hpp"
#include "core/model/program_builder.hpp"

#include <luna/result.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::model {

/// One device's part of a model before it is loaded.
struct ShardDraft {
  Device* device = nullptr;  // outlives the draft
  ShardSpec spec;
  std::vector<ShardWeight> weights;
  Program program;
};

/// Bytes on one device. The sum is what the model takes of the device's budget.
struct ShardMemory {
  std::uint64_t weights = 0;
  std::uint64_t scratch = 0;     // activations of the largest step
  std::uint64_t logits = 0;      // last shard: [n_lanes, n_out_rows_max, vocab_size] F32
  std::uint64_t candidates = 0;  // last shard: [n_lanes, n_out_rows_max, n_candidates + 1] pairs
  std::uint64_t messages = 0;    // from other devices, on their way here
  std::uint64_t kv_block = 0;    // one block, all layers of the shard
  std::uint64_t kv = 0;          // all blocks

  [[nodiscard]] std::uint64_t fixed() const {
    return weights + scratch + logits + candidates + messages;
  }
  [[nodiscard]] std::uint64_t total() const { return fixed() + kv; }
};

struct MemoryPlan {
  std::vector<ShardMemory> shards;
  std::uint32_t n_kv_blocks = 0;  // the same on every shard: what the tightest device holds
};

/// Asks a backend what a shard takes; of its KV one block. [start-up]
///
/// message_bytes  what the shard's communicator takes
/// Errors         what the backend answers
Result<ShardMemory> measure_shard(const ModelConfig& config,
                                  const ShardDraft& shard,
                                  const ProgramOptions& options,
                                  std::uint64_t message_bytes);

/// A shard on its way to a device, as the plan sees it.
struct PlannedShard {
  const Device* device = nullptr;
  ShardMemory memory;
};

/// Gives KV what is left. [start-up]
///
/// shards           in layer order
/// n_kv_blocks_max  bound on the blocks, or none
/// Errors           exhausted, with the numbers, where a device cannot hold its weights, a step and
///                  two KV blocks; invalid_argument: a bound below that
Result<MemoryPlan> plan_memory(std::span<const PlannedShard> shards,
                               std::optional<std::uint32_t> n_kv_blocks_max);

/// "71.2 MiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace luna::model
