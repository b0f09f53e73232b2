// The shards of a folder as a table, for people and for programs.
#pragma once

#include "core/model/shard_manifest.hpp"

#include <boost/json/fwd.hpp>

#include <filesystem>
#include <iosfwd>

namespace luna::app {

/// The model, its source, and a line a shard: file, layers, tensors, bytes, checksum, and whether
/// the file is there with its bytes.
void print_shards(const model::ShardManifest& manifest,
                  const std::filesystem::path& folder,
                  std::ostream& out);

/// The same as one object.
boost::json::object shards_json(const model::ShardManifest& manifest,
                                const std::filesystem::path& folder);

}  // namespace luna::app
