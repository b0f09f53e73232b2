#include "core/app/shard_table.hpp"

#include "core/model/memory_plan.hpp"
#include "core/model/weight_file.hpp"

#include <boost/json.hpp>

#include <iomanip>
#include <ostream>
#include <string_view>
#include <system_error>

namespace luna::app {
namespace {

constexpr std::size_t kDigitsShown = 16;  // of a checksum: enough to compare by eye

/// What a look at the file's name and size tells; `luna verify` reads it.
std::string_view state_of(const model::ShardRecord& shard, const std::filesystem::path& folder) {
  std::error_code error;
  const std::uint64_t n_bytes = std::filesystem::file_size(folder / shard.file, error);
  if (error) return "missing";
  return n_bytes == shard.n_bytes ? "here" : "other size";
}

std::uint64_t n_bytes_of(const model::ShardManifest& manifest) {
  std::uint64_t n = 0;
  for (const model::ShardRecord& shard : manifest.shards)
    n += shard.n_bytes;
  return n;
}

}  // namespace

void print_shards(const model::ShardManifest& manifest,
                  const std::filesystem::path& folder,
                  std::ostream& out) {
  out << manifest.shards.size() << " shards of \"" << model::printable(manifest.model_name)
      << "\" (" << model::printable(manifest.architecture) << ", " << manifest.n_layers
      << " layers), " << model::bytes_text(n_bytes_of(manifest)) << "\nsplit from "
      << model::printable(manifest.source_file) << " of " << manifest.source_bytes
      << " bytes, SHA-256 " << manifest.source_sha256.substr(0, kDigitsShown) << "\n\n  "
      << std::left << std::setw(16) << "file" << std::setw(12) << "layers" << std::right
      << std::setw(7) << "tensors" << std::setw(16) << "bytes"
      << "  " << std::left << std::setw(kDigitsShown) << "SHA-256" << '\n';
  for (const model::ShardRecord& shard : manifest.shards) {
    out << "  " << std::left << std::setw(16) << shard.file << std::setw(12)
        << model::layers_text(shard.layers) << std::right << std::setw(7) << shard.tensors.size()
        << std::setw(16) << shard.n_bytes << "  " << shard.sha256.substr(0, kDigitsShown) << "  "
        << state_of(shard, folder) << '\n';
  }
}

boost::json::object shards_json(const model::ShardManifest& manifest,
                                const std::filesystem::path& folder) {
  boost::json::array shards;
  for (const model::ShardRecord& shard : manifest.shards) {
    shards.push_back(boost::json::object{{"file", shard.file},
                                         {"first_layer", shard.layers.first},
                                         {"n_layers", shard.layers.count},
                                         {"n_tensors", shard.tensors.size()},
                                         {"bytes", shard.n_bytes},
                                         {"sha256", shard.sha256},
                                         {"state", std::string(state_of(shard, folder))}});
  }
  return {{"folder", folder.string()},
          {"model", manifest.model_name},
          {"architecture", manifest.architecture},
          {"n_layers", manifest.n_layers},
          {"n_shards", manifest.shards.size()},
          {"bytes", n_bytes_of(manifest)},
          {"source_file", manifest.source_file},
          {"source_bytes", manifest.source_bytes},
          {"source_sha256", manifest.source_sha256},
          {"shards", std::move(shards)}};
}

}  // namespace luna::app
