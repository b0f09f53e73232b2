#include "core/model/model_identity.hpp"

#include "core/base/mapped_file.hpp"
#include "core/base/sha256.hpp"
#include "core/model/shard_manifest.hpp"

#include <system_error>

namespace luna::model {

Result<std::string> model_identity(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    LUNA_TRY(const ShardManifest manifest, read_shard_manifest(path));
    return manifest.source_sha256;
  }
  LUNA_TRY(const MappedFile file, MappedFile::open(path));
  Sha256 hash;
  hash.update(file.bytes());
  return hex_of(hash.finish());
}

}  // namespace luna::model
