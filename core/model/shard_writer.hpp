// Splits a model into shards: ranges of its layers, a file each, and a manifest.
#pragma once

#include "core/model/shard_manifest.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace luna::model {

/// Called with the share that is done, 0..1, growing; one call at a time, from any thread. False
/// ends the work.
using ShardProgress = std::function<bool(double share)>;

struct SplitOptions {
  std::filesystem::path source;                   // a GGUF file, or a folder of shards
  std::filesystem::path folder;                   // for the shards; made where it is not there
  std::uint32_t n_shards = 1;                     // balanced by bytes
  std::optional<std::vector<LayerRange>> layers;  // a range a shard, instead of a number
  bool force = false;                             // replace what is in the folder
  std::uint32_t n_threads = 0;                    // 0: one per usable hardware thread
  ShardProgress progress;                         // may be empty
};

/// Writes `shard_0.gguf` and so on, each a GGUF file with the model's keys and its own tensors, and
/// `manifest.json`. The files get their names together, when all are on the disk, the manifest
/// last; whatever fails before leaves the folder as it was. [start-up]
///
/// Returns  the manifest
/// Errors   not_found, corrupt, unsupported: of the source; invalid_argument: number or ranges of
///          the shards, or a folder that is not empty; exhausted: the disk has too little room,
///          with the numbers; cancelled: by `progress`; io
/// Cost     reads the source twice, writes it once; memory for a few pieces of it
Result<ShardManifest> split_model(const SplitOptions& options);

}  // namespace luna::model
