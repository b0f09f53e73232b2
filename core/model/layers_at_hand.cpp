#include "core/model/layers_at_hand.hpp"

#include "core/model/local_shard.hpp"
#include "core/model/shard_manifest.hpp"

namespace luna::model {

Result<LayerRange> layers_at_hand(const std::filesystem::path& path) {
  std::error_code unknown;
  if (!std::filesystem::is_directory(path, unknown) ||
      !std::filesystem::exists(path / kManifestName, unknown)) {
    LUNA_TRY(const ModelFile file, ModelFile::open(path));
    return LayerRange{0, file.config.n_layers};
  }
  LUNA_TRY(const ShardManifest manifest, read_shard_manifest(path));
  LayerRange longest;
  LayerRange row;
  for (const ShardRecord& shard : manifest.shards) {
    const bool is_here = std::filesystem::is_regular_file(path / shard.file, unknown);
    // Their layers follow each other.
    row = is_here ? LayerRange{row.count == 0 ? shard.layers.first : row.first,
                               row.count + shard.layers.count}
                  : LayerRange{};
    if (row.count > longest.count) longest = row;
  }
  if (longest.count > 0) return longest;
  return Error{Code::not_found, path.string() + ": none of the shards of its manifest is there"};
}

}  // namespace luna::model
