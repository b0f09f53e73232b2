// Proves a folder of shards: every byte of every file against the manifest.
#pragma once

#include "core/model/shard_file.hpp"
#include "core/model/shard_writer.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace luna::model {

struct ShardCheckOptions {
  std::filesystem::path folder;
  std::optional<std::size_t> shard_idx;  // none: all, and that they are one model
  std::uint32_t n_threads = 0;           // 0: one per usable hardware thread
  ShardProgress progress;                // may be empty
};

struct ShardCheck {
  ShardManifest manifest;
  std::vector<ShardFault> faults;  // in the order of the shards; empty: all is right
  std::uint64_t n_bytes = 0;       // that were read and compared
};

/// Opens each shard, compares it with the manifest, and hashes files and tensors on all threads.
/// [start-up]
///
/// Errors  not_found, corrupt, unsupported: of the manifest; invalid_argument: no such shard;
///         cancelled. What is wrong with shards is the answer, not an error
/// Cost    reads every byte, the second time from memory where the file fits there
Result<ShardCheck> check_shards(const ShardCheckOptions& options);

}  // namespace luna::model
