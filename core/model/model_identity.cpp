#include "core/model/model_identity.hpp"

#include "core/base/mapped_file.hpp"
#include "core/base/sha256.hpp"
#include "core/model/hf_folder.hpp"
#include "core/model/shard_manifest.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace luna::model {
namespace {

/// Over the configuration and all weights, each with its name: what the files are called decides
/// which is opened.
Result<std::string> hf_identity(const std::filesystem::path& folder) {
  std::vector<std::string> names = {std::string(kHfConfigName)};
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !error && it != std::filesystem::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors") || name == kHfIndexName) names.push_back(name);
  }
  if (error) return Error{Code::io, folder.string() + ": " + error.message()};
  std::ranges::sort(names);
  Sha256 hash;
  for (const std::string& name : names) {
    LUNA_TRY(const MappedFile file, MappedFile::open(folder / name));
    const std::string head = name + ' ' + std::to_string(file.bytes().size()) + '\n';
    hash.update(std::as_bytes(std::span(head)));
    hash.update(file.bytes());
  }
  return hex_of(hash.finish());
}

}  // namespace

Result<std::string> model_identity(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  if (is_folder && !std::filesystem::exists(path / kManifestName, ignored) && is_hf_folder(path))
    return hf_identity(path);
  if (is_folder) {
    LUNA_TRY(const ShardManifest manifest, read_shard_manifest(path));
    return manifest.source_sha256;
  }
  LUNA_TRY(const MappedFile file, MappedFile::open(path));
  Sha256 hash;
  hash.update(file.bytes());
  return hex_of(hash.finish());
}

}  // namespace luna::model
