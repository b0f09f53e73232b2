// A folder of shards as one model file, of which only the parts that are needed are open.
#pragma once

#include "core/model/shard_file.hpp"

#include <unordered_map>

namespace luna::model {

/// Knows all tensors of a model from the manifest and opens the shards that hold those that are
/// asked for. A resource: moved, never copied; owns the mappings that metadata and tensors point
/// into.
class ShardFolder final : public WeightFile {
 public:
  /// Reads the manifest and opens the first shard that is there, for the keys, which all have.
  /// [start-up]
  ///
  /// Errors  not_found: no manifest, or no shard at all; corrupt, unsupported: the manifest's field
  ///         or what is wrong with the shard
  /// Cost    O(manifest), touches no weight page but those of the rotary factors
  static Result<ShardFolder> open(const std::filesystem::path& folder);

  [[nodiscard]] std::uint32_t container() const override;
  [[nodiscard]] std::string description() const override;
  /// The keys of the model, without those that each shard has beside them.
  [[nodiscard]] std::span<const MetadataEntry> metadata() const override { return metadata_; }
  [[nodiscard]] std::span<const TensorInfo> tensors() const override { return tensors_; }
  [[nodiscard]] const MetadataEntry* find_metadata(std::string_view key) const override;
  [[nodiscard]] const TensorInfo* find_tensor(std::string_view name) const override;
  /// Opens the shards of these tensors and compares the tensors' checksums, in parallel: what is
  /// readable afterwards is what was split.
  /// Cost  reads the tensors' bytes once
  Result<void> open_tensors(std::span<const std::string> names) override;

  [[nodiscard]] const ShardManifest& manifest() const { return manifest_; }
  [[nodiscard]] bool is_open(std::size_t shard_idx) const { return files_[shard_idx].has_value(); }

 private:
  /// Where a tensor stands: its record in one shard or more.
  struct Entry {
    std::size_t shard_idx = 0;
    const ShardTensor* record = nullptr;  // of manifest_, whose vectors stay as they are
  };
  ShardFolder(std::filesystem::path folder, ShardManifest manifest);
  void list_tensors();
  Result<void> open_keys();
  Result<void> open_one(std::size_t shard_idx);
  Result<std::vector<std::size_t>> open_shards_of(std::span<const std::string> names);
  Result<void> check_tensors(std::span<const std::size_t> tensor_idxs);
  [[nodiscard]] std::optional<std::size_t> open_home(std::size_t tensor_idx) const;

  std::filesystem::path folder_;
  ShardManifest manifest_;
  std::vector<std::optional<GgufFile>> files_;  // by shard; absent while it is closed
  std::vector<MetadataEntry> metadata_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::vector<Entry>> entries_;  // by tensor
  std::unordered_map<std::string_view, std::size_t> metadata_idx_by_key_;
  std::unordered_map<std::string_view, std::size_t> tensor_idx_by_name_;
};

}  // namespace luna::model
