// Which layers of a model a place holds that may have some of its shards only.
#pragma once

#include "core/model/placement.hpp"

#include <luna/result.hpp>

#include <filesystem>

namespace luna::model {

/// Of a file all layers; of a folder of shards the longest row of them whose files are there.
/// [start-up]
/// Errors  not_found: no shard is there; those of the file or the manifest
Result<LayerRange> layers_at_hand(const std::filesystem::path& path);

}  // namespace luna::model
