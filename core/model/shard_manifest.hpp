// What a folder of shards holds: manifest.json, read and written.
#pragma once

#include "core/model/placement.hpp"

#include <luna/result.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::model {

inline constexpr std::string_view kManifestName = "manifest.json";

/// A tensor as the manifest has it.
struct ShardTensor {
  std::string name;
  std::uint32_t type = 0;  // ggml_type
  std::uint32_t rank = 0;
  std::array<std::uint64_t, 4> dims{1, 1, 1, 1};  // [0, rank), slowest first
  std::uint64_t n_bytes = 0;
  std::string sha256;

  [[nodiscard]] std::span<const std::uint64_t> shape() const { return {dims.data(), rank}; }
  friend bool operator==(const ShardTensor&, const ShardTensor&) = default;
};

/// One file of the folder.
struct ShardRecord {
  std::string file;  // "shard_0.gguf"
  std::uint64_t n_bytes = 0;
  std::string sha256;  // of the file
  LayerRange layers;
  std::vector<ShardTensor> tensors;  // in the order of their bytes

  friend bool operator==(const ShardRecord&, const ShardRecord&) = default;
};

/// A manifest whose fields were checked against each other. A value.
struct ShardManifest {
  std::string model_name;  // for people
  std::string architecture;
  std::uint32_t n_layers = 0;
  std::string source_file;  // for people: what was split
  std::uint64_t source_bytes = 0;
  std::string source_sha256;  // the model's identity: each shard carries it too
  std::vector<ShardRecord> shards;

  friend bool operator==(const ShardManifest&, const ShardManifest&) = default;
};

/// "shard_3.gguf".
std::string shard_file_name(std::size_t shard_idx);
/// Whether a file's name has that form.
bool is_shard_name(std::string_view file_name);
/// "10..19", first and last layer, as the TOML has it.
std::string layers_text(const LayerRange& layers);

/// Which of the shards hold a tensor, by its name alone.
enum class ShardPart : std::uint8_t {
  first,  ///< the embedding; of a model with a tied head, the last too
  last,   ///< norm and head
  layer,  ///< the one with its layer
  all,    ///< small ones that each device computes with
};
struct TensorHome {
  ShardPart part = ShardPart::layer;
  std::uint32_t layer = 0;
};
/// Nothing for a name that no part of a model has.
std::optional<TensorHome> tensor_home(std::string_view name);
/// Whether shard `shard_idx` of these ranges holds the tensor.
bool is_at_home(const TensorHome& home,
                std::span<const LayerRange> ranges,
                std::size_t shard_idx,
                bool tied_head);

/// Reads a manifest and checks every field: the shards' names, sizes, checksums and layers, which
/// follow each other from 0 to the end, and their tensors, each in the shards where it belongs.
///
/// Errors  corrupt, unsupported: the first field that is wrong, its value, and what it must be
/// Cost    O(bytes); memory in proportion, bounded by kManifestBytesMax
Result<ShardManifest> parse_shard_manifest(std::string_view text);

/// The same from `folder`/manifest.json, which is no symbolic link.
/// Errors  not_found: no folder of shards, or a split that did not end; those above, with the path
Result<ShardManifest> read_shard_manifest(const std::filesystem::path& folder);

/// A line a tensor. parse_shard_manifest() reads it back.
std::string to_json(const ShardManifest& manifest);

}  // namespace luna::model
