#include "core/model/shard_folder.hpp"

#include "core/base/parallel_for.hpp"
#include "core/base/sha256.hpp"
#include "core/model/gguf_types.hpp"
#include "core/model/weight_names.hpp"

#include <luna/abi/quant.h>

#include <algorithm>
#include <array>
#include <thread>

namespace luna::model {

ShardFolder::ShardFolder(std::filesystem::path folder, ShardManifest manifest)
    : folder_(std::move(folder)), manifest_(std::move(manifest)), files_(manifest_.shards.size()) {
  list_tensors();
}

Result<ShardFolder> ShardFolder::open(const std::filesystem::path& folder) {
  LUNA_TRY(auto manifest, read_shard_manifest(folder));
  ShardFolder opened(folder, std::move(manifest));
  LUNA_TRY(opened.open_keys());
  // They are part of the hyper-parameters: whoever reads those reads their bytes.
  const std::array factors = {std::string(kRopeFactorsName),
                              std::string(kLongRopeFactorsName),
                              std::string(kShortRopeFactorsName)};
  LUNA_TRY(opened.open_tensors(factors));
  return opened;
}

void ShardFolder::list_tensors() {
  for (std::size_t i = 0; i < manifest_.shards.size(); ++i) {
    for (const ShardTensor& record : manifest_.shards[i].tensors) {
      const auto [found, is_new] = tensor_idx_by_name_.try_emplace(record.name, tensors_.size());
      if (is_new) {
        TensorInfo& tensor = tensors_.emplace_back();
        tensor.name = record.name;
        tensor.type = record.type;
        tensor.type_name = gguf_type_by_number(record.type)->name;
        tensor.rank = record.rank;
        tensor.dims = record.dims;
        tensor.n_bytes = record.n_bytes;
        entries_.emplace_back();
      }
      entries_[found->second].push_back({i, &record});
    }
  }
}

Result<void> ShardFolder::open_keys() {
  std::size_t shard_idx = 0;
  std::error_code ignored;  // a shard that cannot be asked for is opened, and says why
  while (shard_idx + 1 < files_.size() &&
         !std::filesystem::exists(folder_ / manifest_.shards[shard_idx].file, ignored) && !ignored)
    ++shard_idx;
  LUNA_TRY(open_one(shard_idx));
  for (const MetadataEntry& entry : files_[shard_idx]->metadata())
    if (!entry.key.starts_with(kShardKeyPrefix)) metadata_.push_back(entry);
  for (std::size_t i = 0; i < metadata_.size(); ++i)
    metadata_idx_by_key_.emplace(metadata_[i].key, i);
  return {};
}

Result<void> ShardFolder::open_one(std::size_t shard_idx) {
  OpenedShard opened = open_shard(folder_, manifest_, shard_idx);
  if (!opened.faults.empty()) return to_error(opened.faults.front(), folder_, manifest_);
  files_[shard_idx] = std::move(opened.file);
  return {};
}

std::optional<std::size_t> ShardFolder::open_home(std::size_t tensor_idx) const {
  for (const Entry& entry : entries_[tensor_idx])
    if (is_open(entry.shard_idx)) return entry.shard_idx;
  return std::nullopt;
}

/// Opens as few shards as can be: what is in several is taken from one that is open anyway.
Result<std::vector<std::size_t>> ShardFolder::open_shards_of(std::span<const std::string> names) {
  std::vector<std::size_t> in_several;
  std::vector<std::size_t> wanted;
  for (const std::string& name : names) {
    const auto found = tensor_idx_by_name_.find(name);
    if (found == tensor_idx_by_name_.end() || !tensors_[found->second].bytes.empty()) continue;
    wanted.push_back(found->second);
    const auto& entries = entries_[found->second];
    if (entries.size() > 1) {
      in_several.push_back(found->second);
    } else if (!is_open(entries.front().shard_idx)) {
      LUNA_TRY(open_one(entries.front().shard_idx));
    }
  }
  for (const std::size_t tensor_idx : in_several)
    if (!open_home(tensor_idx)) LUNA_TRY(open_one(entries_[tensor_idx].front().shard_idx));
  return wanted;
}

Result<void> ShardFolder::open_tensors(std::span<const std::string> names) {
  LUNA_TRY(const auto wanted, open_shards_of(names));
  return check_tensors(wanted);
}

/// Gives a tensor its bytes where they are right.
Result<void> ShardFolder::check_tensors(std::span<const std::size_t> tensor_idxs) {
  struct Finding {
    std::size_t shard_idx = 0;
    const TensorInfo* tensor = nullptr;  // of the shard's file
    std::string sha256;
  };
  std::vector<Finding> findings(tensor_idxs.size());
  const std::uint32_t n_threads = std::max(1U, std::thread::hardware_concurrency());
  parallel_for(n_threads, findings.size(), [&](std::uint32_t /*thread_idx*/, std::uint64_t i) {
    Finding& finding = findings[i];
    finding.shard_idx = open_home(tensor_idxs[i]).value_or(0);
    finding.tensor = files_[finding.shard_idx]->find_tensor(tensors_[tensor_idxs[i]].name);
    Sha256 hash;
    hash.update(finding.tensor->bytes);
    finding.sha256 = hex_of(hash.finish());
  });
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const Finding& finding = findings[i];
    const std::string& expected = entries_[tensor_idxs[i]].front().record->sha256;
    if (finding.sha256 != expected) {
      return to_error(damaged_tensor(manifest_,
                                     finding.shard_idx,
                                     finding.tensor->name,
                                     {.expected = expected, .found = finding.sha256}),
                      folder_,
                      manifest_);
    }
    TensorInfo& tensor = tensors_[tensor_idxs[i]];
    tensor.offset = finding.tensor->offset;
    tensor.bytes = finding.tensor->bytes;
  }
  return {};
}

std::uint32_t ShardFolder::container() const {
  return LUNA_CONTAINER_GGUF;
}

std::string ShardFolder::description() const {
  return std::to_string(files_.size()) + " shards of GGUF, " + std::to_string(metadata_.size()) +
         " keys, " + std::to_string(tensors_.size()) + " tensors";
}

const MetadataEntry* ShardFolder::find_metadata(std::string_view key) const {
  const auto found = metadata_idx_by_key_.find(key);
  return found == metadata_idx_by_key_.end() ? nullptr : &metadata_[found->second];
}

const TensorInfo* ShardFolder::find_tensor(std::string_view name) const {
  const auto found = tensor_idx_by_name_.find(name);
  return found == tensor_idx_by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace luna::model
