#include "core/model/shard_file.hpp"

#include "core/base/mapped_file.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

namespace luna::model {
namespace {

std::string layers_of(const LayerRange& layers) {
  return "layers " + layers_text(layers);
}

Result<std::uint32_t> required_count(const WeightFile& file, std::string_view key) {
  LUNA_TRY(const auto value, find_unsigned(file, key));
  if (!value || *value > 0xFFFFFFFFU)
    return Error{Code::corrupt, std::string(key) + ": missing, or no count of 32 bits"};
  return static_cast<std::uint32_t>(*value);
}

std::string shape_text(std::span<const std::uint64_t> dims) {
  std::string text;
  for (const std::uint64_t dim : dims)
    text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

/// Compares one shard with what the manifest says of it.
class ShardComparison {
 public:
  ShardComparison(const ShardManifest& manifest, std::size_t shard_idx)
      : manifest_(manifest), shard_idx_(shard_idx), record_(manifest.shards[shard_idx]) {}

  std::vector<ShardFault> compare(const GgufFile& file) && {
    if (compare_keys(file)) compare_tensors(file);
    return std::move(faults_);
  }

  ShardFault fault(ShardFaultKind kind, std::string_view what, std::string tensor = "") const {
    ShardFault fault;
    fault.kind = kind;
    fault.shard_idx = shard_idx_;
    fault.file = record_.file;
    fault.tensor = std::move(tensor);
    fault.message = record_.file + ": " + std::string(what);
    return fault;
  }

 private:
  void add(ShardFaultKind kind, std::string_view what, std::string tensor = "") {
    faults_.push_back(fault(kind, what, std::move(tensor)));
  }

  /// False where the tensors are another shard's: their list would say it again, one by one.
  bool compare_keys(const GgufFile& file) {
    const auto keys = read_shard_keys(file);
    if (!keys || !*keys) {
      add(ShardFaultKind::foreign,
          !keys ? keys.error().message()
                : "not a shard: it has no key " + std::string(kShardIndexKey));
      return false;
    }
    if ((*keys)->source_sha256 != manifest_.source_sha256) {
      add(ShardFaultKind::foreign,
          "of another model: it was split from a file with SHA-256 " +
              printable((*keys)->source_sha256.substr(0, 64)) + ", the manifest's has " +
              manifest_.source_sha256);
      faults_.back().expected = manifest_.source_sha256;
      faults_.back().found = printable((*keys)->source_sha256.substr(0, 64));
      return false;
    }
    if ((*keys)->index == shard_idx_ && (*keys)->count == manifest_.shards.size() &&
        (*keys)->layers == record_.layers)
      return true;
    add_other_shard(**keys);
    return false;
  }

  void add_other_shard(const ShardKeys& keys) {
    const std::string itself = "it says that it is shard " + std::to_string(keys.index) + " of " +
                               std::to_string(keys.count) + " with " + layers_of(keys.layers) +
                               ", the manifest expects shard " + std::to_string(shard_idx_) +
                               " of " + std::to_string(manifest_.shards.size()) + " with " +
                               layers_of(record_.layers);
    const bool is_copy = keys.count == manifest_.shards.size() && keys.index != shard_idx_;
    add(is_copy ? ShardFaultKind::doubled : ShardFaultKind::mismatch,
        itself + (is_copy ? ": " + layers_of(keys.layers) + " are there twice, " +
                                layers_of(record_.layers) + " are missing"
                          : ""));
  }

  void compare_tensors(const GgufFile& file) {
    for (const ShardTensor& expected : record_.tensors) {
      const TensorInfo* found = file.find_tensor(expected.name);
      if (found == nullptr) {
        add(ShardFaultKind::mismatch, "tensor " + expected.name + " is missing", expected.name);
        continue;
      }
      const std::span<const std::uint64_t> shape(found->dims.data(), found->rank);
      if (found->type == expected.type && std::ranges::equal(shape, expected.shape())) continue;
      add(ShardFaultKind::mismatch,
          "tensor " + expected.name + " is " + std::string(found->type_name) + " " +
              shape_text(shape) + ", the manifest has another type or the shape " +
              shape_text(expected.shape()),
          expected.name);
    }
    std::unordered_set<std::string_view> known;
    for (const ShardTensor& tensor : record_.tensors)
      known.insert(tensor.name);
    for (const TensorInfo& tensor : file.tensors())
      if (!known.contains(tensor.name)) add_unknown(tensor.name);
  }

  void add_unknown(const std::string& name) {
    if (file_by_tensor_.empty()) {
      for (const ShardRecord& shard : manifest_.shards)
        for (const ShardTensor& tensor : shard.tensors)
          file_by_tensor_.emplace(tensor.name, shard.file);
    }
    const std::string shown = "tensor " + printable(name);
    const auto other = file_by_tensor_.find(name);
    if (other == file_by_tensor_.end()) {
      add(ShardFaultKind::mismatch, shown + " is not in the manifest", printable(name));
    } else {
      add(ShardFaultKind::doubled,
          shown + " belongs to " + std::string(other->second) + " alone",
          printable(name));
    }
  }

  const ShardManifest& manifest_;
  const std::size_t shard_idx_;
  const ShardRecord& record_;
  std::vector<ShardFault> faults_;
  std::unordered_map<std::string_view, std::string_view> file_by_tensor_;  // once it is asked
};

}  // namespace

Result<std::optional<ShardKeys>> read_shard_keys(const WeightFile& file) {
  constexpr std::array<std::string_view, 5> kKeys = {
      kShardIndexKey, kShardCountKey, kShardFirstLayerKey, kShardNLayersKey, kShardSourceKey};
  const bool is_shard = std::ranges::any_of(
      kKeys, [&](std::string_view key) { return file.find_metadata(key) != nullptr; });
  if (!is_shard) return std::optional<ShardKeys>{};
  ShardKeys keys;
  LUNA_TRY(keys.index, required_count(file, kShardIndexKey));
  LUNA_TRY(keys.count, required_count(file, kShardCountKey));
  LUNA_TRY(keys.layers.first, required_count(file, kShardFirstLayerKey));
  LUNA_TRY(keys.layers.count, required_count(file, kShardNLayersKey));
  LUNA_TRY(const auto source, find_text(file, kShardSourceKey));
  keys.source_sha256 = source.value_or("");
  const bool fits = keys.index < keys.count && keys.layers.count > 0 &&
                    keys.layers.first <= 0xFFFFFFFFU - keys.layers.count;
  if (!fits || keys.source_sha256.empty()) {
    return Error{Code::corrupt,
                 std::string(kShardKeyPrefix) + "*: shard " + std::to_string(keys.index) + " of " +
                     std::to_string(keys.count) + " with " + std::to_string(keys.layers.count) +
                     " layers from " + std::to_string(keys.layers.first) +
                     ": no such shard can be"};
  }
  return std::optional<ShardKeys>(std::move(keys));
}

std::string_view fault_name(ShardFaultKind kind) {
  switch (kind) {
    case ShardFaultKind::missing:
      return "missing";
    case ShardFaultKind::unreadable:
      return "unreadable";
    case ShardFaultKind::damaged:
      return "damaged";
    case ShardFaultKind::doubled:
      return "doubled";
    case ShardFaultKind::foreign:
      return "foreign";
    case ShardFaultKind::mismatch:
      return "mismatch";
    case ShardFaultKind::surplus:
      return "surplus";
  }
  return "unknown";
}

OpenedShard open_shard(const std::filesystem::path& folder,
                       const ShardManifest& manifest,
                       std::size_t shard_idx) {
  OpenedShard opened;
  const ShardRecord& record = manifest.shards[shard_idx];
  ShardComparison comparison(manifest, shard_idx);
  const auto fail = [&](ShardFaultKind kind, std::string_view what) {
    opened.faults.push_back(comparison.fault(kind, what));
  };
  auto mapped = MappedFile::open_no_link(folder / record.file);
  if (!mapped && mapped.error().code() == Code::not_found) {
    fail(ShardFaultKind::missing, "not there: " + layers_of(record.layers) + " are missing");
    return opened;
  }
  if (!mapped) {
    fail(ShardFaultKind::unreadable, mapped.error().message());
    return opened;
  }
  const std::uint64_t n_bytes = mapped->bytes().size();
  auto file = GgufFile::adopt(std::move(*mapped));
  if (file) opened.faults = std::move(comparison).compare(*file);
  // Of another shard or model: that its size differs too is no news.
  const bool is_another = std::ranges::any_of(
      opened.faults, [](const ShardFault& fault) { return fault.tensor.empty(); });
  if (n_bytes != record.n_bytes && !is_another) {
    fail(ShardFaultKind::damaged,
         std::to_string(n_bytes) + " bytes, the manifest says " + std::to_string(record.n_bytes) +
             (file ? "" : ": " + file.error().message()));
  } else if (!file) {
    fail(ShardFaultKind::damaged, file.error().message());
  }
  if (file) opened.file = std::move(*file);
  return opened;
}

ShardFault damaged_tensor(const ShardManifest& manifest,
                          std::size_t shard_idx,
                          const std::string& tensor,
                          Checksums checksums) {
  ShardFault fault;
  fault.kind = ShardFaultKind::damaged;
  fault.shard_idx = shard_idx;
  fault.file = manifest.shards[shard_idx].file;
  fault.tensor = tensor;
  fault.message = fault.file + ": tensor " + tensor + ": its SHA-256 is " + checksums.found +
                  ", the manifest says " + checksums.expected;
  fault.expected = std::move(checksums.expected);
  fault.found = std::move(checksums.found);
  return fault;
}

Error to_error(const ShardFault& fault,
               const std::filesystem::path& folder,
               const ShardManifest& manifest) {
  const bool is_missing = fault.kind == ShardFaultKind::missing;
  const std::string place = fault.shard_idx ? "shard " + std::to_string(*fault.shard_idx) + " of " +
                                                  std::to_string(manifest.shards.size()) + ": "
                                            : "";
  return Error{
      is_missing ? Code::not_found : Code::corrupt,
      folder.string() + ": " + place + fault.message + "; `luna verify " + folder.string() +
          "` names all that is wrong; bring the right file here, or " + "split " +
          printable(manifest.source_file) + " again: `luna split ... --num-shards " +
          std::to_string(manifest.shards.size()) + " --out " + folder.string() + " --force`"};
}

}  // namespace luna::model
