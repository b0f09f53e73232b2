#include "core/model/shard_check.hpp"

#include "core/base/output_file.hpp"
#include "core/base/parallel_for.hpp"
#include "core/base/sha256.hpp"
#include "core/model/model_config.hpp"
#include "core/model/shard_folder.hpp"
#include "core/model/shard_progress.hpp"
#include "core/model/weight_names.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <thread>

namespace luna::model {
namespace {

/// Bytes that have a checksum: a tensor, or a whole file.
struct HashItem {
  std::size_t shard_idx = 0;
  const ShardTensor* tensor = nullptr;  // nullptr: the file
  std::span<const std::byte> bytes;
  std::string sha256;  // found
};

}  // namespace

class ShardChecker {
 public:
  explicit ShardChecker(const ShardCheckOptions& options) : options_(options) {}

  Result<ShardCheck> check() {
    LUNA_TRY(check_.manifest, read_shard_manifest(options_.folder));
    const std::size_t n_shards = check_.manifest.shards.size();
    if (options_.shard_idx && *options_.shard_idx >= n_shards) {
      return Error{Code::invalid_argument,
                   "--shard " + std::to_string(*options_.shard_idx) + ": must be in 0.." +
                       std::to_string(n_shards - 1)};
    }
    for (std::size_t i = 0; i < n_shards; ++i)
      if (!options_.shard_idx || *options_.shard_idx == i) open(i);
    LUNA_TRY(hash());
    compare();
    if (!options_.shard_idx) {
      find_surplus();
      if (check_.faults.empty()) check_model();
    }
    std::ranges::stable_sort(check_.faults, {}, [](const ShardFault& fault) {
      return fault.shard_idx.value_or(SIZE_MAX);
    });
    return std::move(check_);
  }

 private:
  void open(std::size_t shard_idx) {
    OpenedShard opened = open_shard(options_.folder, check_.manifest, shard_idx);
    add_faults(std::move(opened.faults));
    if (!opened.file) return;
    const GgufFile& file = files_.emplace_back(std::move(*opened.file));
    // Of another shard or model: that its bytes differ too is no news.
    const bool is_another = std::ranges::any_of(check_.faults, [&](const ShardFault& fault) {
      return fault.shard_idx == shard_idx && fault.tensor.empty() &&
             fault.kind != ShardFaultKind::damaged;
    });
    if (is_another) return;
    items_.push_back({shard_idx, nullptr, file.bytes(), ""});
    for (const ShardTensor& tensor : check_.manifest.shards[shard_idx].tensors) {
      const TensorInfo* found = file.find_tensor(tensor.name);
      if (found != nullptr) items_.push_back({shard_idx, &tensor, found->bytes, ""});
    }
  }

  Result<void> hash() {
    std::vector<HashItem*> largest_first;
    for (HashItem& item : items_) {
      largest_first.push_back(&item);
      check_.n_bytes += item.tensor == nullptr ? item.bytes.size() : 0;
      n_hash_bytes_ += item.bytes.size();
    }
    std::ranges::stable_sort(
        largest_first, std::ranges::greater{}, [](const HashItem* i) { return i->bytes.size(); });
    ShardWork work(options_.progress, n_hash_bytes_);
    const std::uint32_t n_threads = options_.n_threads != 0
                                        ? options_.n_threads
                                        : std::max(1U, std::thread::hardware_concurrency());
    parallel_for(
        n_threads, largest_first.size(), [&](std::uint32_t /*thread_idx*/, std::uint64_t i) {
          HashItem& item = *largest_first[i];
          Sha256 sha256;
          const auto done = work.in_pieces(item.bytes, [&](auto piece) {
            sha256.update(piece);
            return Result<void>{};
          });
          if (done) item.sha256 = hex_of(sha256.finish());
        });
    return work.is_stopped() ? ShardWork::stopped() : Result<void>{};
  }

  void compare() {
    for (const HashItem& item : items_) {
      if (item.tensor == nullptr || item.sha256 == item.tensor->sha256) continue;
      add_faults({damaged_tensor(check_.manifest,
                                 item.shard_idx,
                                 item.tensor->name,
                                 {.expected = item.tensor->sha256, .found = item.sha256})});
    }
    for (const HashItem& item : items_)
      if (item.tensor == nullptr) compare_file(item);
  }

  /// A file is told by its tensors, if they say what is wrong with it.
  void compare_file(const HashItem& item) {
    const ShardRecord& record = check_.manifest.shards[item.shard_idx];
    const bool is_told = std::ranges::any_of(
        check_.faults, [&](const ShardFault& fault) { return fault.shard_idx == item.shard_idx; });
    if (item.sha256 == record.sha256 || is_told) return;
    ShardFault fault;
    fault.kind = ShardFaultKind::damaged;
    fault.shard_idx = item.shard_idx;
    fault.file = record.file;
    fault.message = record.file + ": its tensors are right, but its SHA-256 is " + item.sha256 +
                    ", the manifest says " + record.sha256 +
                    ": the keys, the table or the padding differ";
    fault.expected = record.sha256;
    fault.found = item.sha256;
    add_faults({std::move(fault)});
  }

  /// Files that look like shards, whole or not, and are none of this model.
  void find_surplus() {
    std::error_code error;
    std::vector<std::string> names;
    for (auto it = std::filesystem::directory_iterator(options_.folder, error);
         !error && it != std::filesystem::directory_iterator();
         it.increment(error)) {
      std::string name = it->path().filename().string();
      const bool is_partial = name.ends_with(kPartialSuffix);
      const std::string_view whole =
          std::string_view(name).substr(0, name.size() - (is_partial ? kPartialSuffix.size() : 0));
      const bool is_known =
          !is_partial && std::ranges::find(check_.manifest.shards, name, &ShardRecord::file) !=
                             check_.manifest.shards.end();
      const bool is_ours = is_shard_name(whole) || (is_partial && whole == kManifestName);
      if (is_ours && !is_known) names.push_back(std::move(name));
    }
    std::ranges::sort(names);
    for (const std::string& name : names) {
      ShardFault fault;
      fault.kind = ShardFaultKind::surplus;
      fault.file = name;
      fault.message = name + ": not in the manifest; left of another split, or of one that runs";
      add_faults({std::move(fault)});
    }
  }

  /// Each shard is what the manifest says: are they a whole model together?
  void check_model() {
    const auto whole = [&]() -> Result<void> {
      LUNA_TRY(const ShardFolder folder, ShardFolder::open(options_.folder));
      LUNA_TRY(const ModelConfig config, read_model_config(folder));
      return check_weights(config, folder);
    }();
    if (whole) return;
    ShardFault fault;
    fault.file = kManifestName;
    fault.message = "the shards together are no whole model: " + whole.error().message();
    add_faults({std::move(fault)});
  }

  void add_faults(std::vector<ShardFault> faults) {
    for (ShardFault& fault : faults)
      check_.faults.push_back(std::move(fault));
  }

  const ShardCheckOptions& options_;
  ShardCheck check_;
  std::deque<GgufFile> files_;  // those that are open, in no order of meaning
  std::vector<HashItem> items_;
  std::uint64_t n_hash_bytes_ = 0;
};

Result<ShardCheck> check_shards(const ShardCheckOptions& options) {
  return ShardChecker(options).check();
}

}  // namespace luna::model
