// One file of a folder of shards, held against the manifest.
#pragma once

#include "core/model/gguf_file.hpp"
#include "core/model/shard_manifest.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::model {

/// Begins the keys that `luna split` adds to each shard; the keys of the model are as they were.
inline constexpr std::string_view kShardKeyPrefix = "luna.shard.";
inline constexpr std::string_view kShardIndexKey = "luna.shard.index";
inline constexpr std::string_view kShardCountKey = "luna.shard.count";
inline constexpr std::string_view kShardFirstLayerKey = "luna.shard.first_layer";
inline constexpr std::string_view kShardNLayersKey = "luna.shard.n_layers";
inline constexpr std::string_view kShardSourceKey = "luna.shard.source_sha256";

/// What a shard says of itself.
struct ShardKeys {
  std::uint32_t index = 0;
  std::uint32_t count = 0;
  LayerRange layers;
  std::string source_sha256;
};

/// Nothing where the file is no shard.
/// Errors  corrupt: some of the keys are missing or wrong
Result<std::optional<ShardKeys>> read_shard_keys(const WeightFile& file);

/// What can be wrong with a shard.
enum class ShardFaultKind : std::uint8_t {
  missing,     ///< the file is not there
  unreadable,  ///< it is there and cannot be read: a link, no file, no right
  damaged,     ///< other bytes than were written
  doubled,     ///< layers or a tensor of another shard
  foreign,     ///< of another model, or no shard
  mismatch,    ///< not what the manifest says
  surplus,     ///< a file that the manifest does not know
};
std::string_view fault_name(ShardFaultKind kind);

/// One thing that is wrong. A value.
struct ShardFault {
  ShardFaultKind kind = ShardFaultKind::mismatch;
  std::optional<std::size_t> shard_idx;  // none: of the folder
  std::string file;
  std::string tensor;    // empty: of the file
  std::string message;   // names file, tensor, what was found and what was expected
  std::string expected;  // checksums, where they differ
  std::string found;
};

/// A shard that was opened, or the fault that keeps it from being read. [start-up]
struct OpenedShard {
  std::optional<GgufFile> file;
  std::vector<ShardFault> faults;
};

/// Opens a shard and compares size, keys and tensor table with the manifest; reads no weights.
/// Cost  O(header)
OpenedShard open_shard(const std::filesystem::path& folder,
                       const ShardManifest& manifest,
                       std::size_t shard_idx);

struct Checksums {
  std::string expected;
  std::string found;
};
/// The fault of a tensor whose bytes are not those that were split.
ShardFault damaged_tensor(const ShardManifest& manifest,
                          std::size_t shard_idx,
                          const std::string& tensor,
                          Checksums checksums);

/// The fault as an error, with what to do about it.
Error to_error(const ShardFault& fault,
               const std::filesystem::path& folder,
               const ShardManifest& manifest);

}  // namespace luna::model
