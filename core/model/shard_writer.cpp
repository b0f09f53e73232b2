#include "core/model/shard_writer.hpp"

#include "core/base/assert.hpp"
#include "core/base/output_file.hpp"
#include "core/base/parallel_for.hpp"
#include "core/base/sha256.hpp"
#include "core/base/units.hpp"
#include "core/model/gguf_writer.hpp"
#include "core/model/memory_plan.hpp"
#include "core/model/model_config.hpp"
#include "core/model/shard_folder.hpp"
#include "core/model/shard_progress.hpp"
#include "core/model/weight_names.hpp"

#include <algorithm>
#include <memory>
#include <system_error>
#include <thread>

namespace luna::model {
namespace {

constexpr std::uint32_t kWritersMax = 4;         // more files at once make a disk seek, not write
constexpr std::uint64_t kRoomKept = kMiB;        // of the disk: the manifest and the folder itself
constexpr std::size_t kModelNameBytesMax = 200;  // of a name for people

Error io_error(const std::filesystem::path& path, const std::error_code& error) {
  return Error{Code::io, path.string() + ": " + error.message()};
}

/// The folder that shards are written into. What it made is removed again, unless it is kept.
class TargetFolder {
 public:
  TargetFolder(std::filesystem::path path, bool force) : path_(std::move(path)), force_(force) {}
  TargetFolder(const TargetFolder&) = delete;
  TargetFolder& operator=(const TargetFolder&) = delete;
  ~TargetFolder() {
    std::error_code ignored;  // a folder in which somebody else put a file stays
    while (!made_.empty() && std::filesystem::remove(made_.back(), ignored))
      made_.pop_back();
  }

  Result<void> prepare() {
    std::error_code error;
    if (!std::filesystem::exists(path_, error)) return make();
    if (!std::filesystem::is_directory(path_, error))
      return Error{Code::invalid_argument, path_.string() + ": there, and no folder"};
    const bool is_empty = std::filesystem::is_empty(path_, error);
    if (error) return io_error(path_, error);
    if (is_empty) return {};
    if (!force_) {
      return Error{Code::invalid_argument,
                   path_.string() + ": the folder is not empty; --force replaces the shards in it"};
    }
    return remove_where([](std::string_view name) { return name.ends_with(kPartialSuffix); });
  }

  /// Errors  exhausted, with the numbers
  Result<void> check_room(std::uint64_t n_bytes) const {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(path_, error);
    if (error) return io_error(path_, error);
    if (space.available >= n_bytes + kRoomKept) return {};
    return Error{Code::exhausted,
                 path_.string() + ": the shards take " + bytes_text(n_bytes) + ", the disk has " +
                     bytes_text(space.available) + " free"};
  }

  /// Removes the shards of an earlier split that the new one has not replaced.
  Result<void> remove_shards_from(std::size_t n_shards) {
    std::vector<std::string> kept;
    for (std::size_t i = 0; i < n_shards; ++i)
      kept.push_back(shard_file_name(i));
    return remove_where([&](std::string_view name) {
      return is_shard_name(name) && std::ranges::find(kept, name) == kept.end();
    });
  }
  Result<void> remove_manifest() {
    return remove_where([](std::string_view name) { return name == kManifestName; });
  }
  void keep() { made_.clear(); }

 private:
  Result<void> make() {
    std::error_code error;
    std::vector<std::filesystem::path> missing;
    for (auto part = std::filesystem::absolute(path_, error).lexically_normal();
         !part.empty() && !std::filesystem::exists(part, error) && part != part.parent_path();
         part = part.parent_path())
      missing.push_back(part);
    for (auto part = missing.rbegin(); part != missing.rend(); ++part) {
      if (std::filesystem::create_directory(*part, error)) made_.push_back(*part);
      if (error) return io_error(*part, error);
    }
    return {};
  }

  template <typename Predicate>
  Result<void> remove_where(const Predicate& is_wanted) {
    std::error_code error;
    std::vector<std::filesystem::path> found;
    for (auto it = std::filesystem::directory_iterator(path_, error);
         !error && it != std::filesystem::directory_iterator();
         it.increment(error)) {
      const std::string name = it->path().filename().string();
      const bool is_ours = name.starts_with("shard_") || name.starts_with(kManifestName);
      if (is_ours && is_wanted(name)) found.push_back(it->path());
    }
    if (error) return io_error(path_, error);
    for (const std::filesystem::path& path : found)
      if (!std::filesystem::remove(path, error) && error) return io_error(path, error);
    return {};
  }

  const std::filesystem::path path_;
  const bool force_;
  std::vector<std::filesystem::path> made_;  // from the outermost to path_
};

}  // namespace

/// One split. Everything it writes has a temporary name until publish().
class ModelSplitter {
 public:
  explicit ModelSplitter(const SplitOptions& options)
      : options_(options), target_(options.folder, options.force) {}

  Result<ShardManifest> split() {
    LUNA_TRY(open_source());
    LUNA_TRY(plan_layers());
    LUNA_TRY(target_.prepare());
    LUNA_TRY(target_.check_room(n_tensor_bytes()));
    LUNA_TRY(identify_source());
    LUNA_TRY(write_shards());
    LUNA_TRY(publish());
    return std::move(manifest_);
  }

 private:
  Result<void> open_source() {
    LUNA_TRY(source_, open_weight_file(options_.source));
    const std::string path = options_.source.string();
    if (source_->container() != LUNA_CONTAINER_GGUF)
      return Error{Code::unsupported, path + ": only GGUF files are split"};
    const auto shard = read_shard_keys(*source_);
    if (!shard) return shard.error().in(path);
    if (*shard && (*shard)->count > 1)
      return Error{Code::invalid_argument, path + ": a shard itself; split the folder it is in"};
    auto config = read_model_config(*source_);
    if (!config) return config.error().in(path);
    config_ = std::move(*config);
    if (const auto whole = check_weights(config_, *source_); !whole) return whole.error().in(path);
    manifest_.model_name = printable(config_.name.substr(0, kModelNameBytesMax));
    manifest_.architecture = config_.architecture;
    manifest_.n_layers = config_.n_layers;
    return {};
  }

  Result<void> plan_layers() {
    if (options_.layers) {
      LUNA_TRY(check_layers(*options_.layers, config_.n_layers, options_.layers->size()));
      ranges_ = *options_.layers;
    } else {
      if (options_.n_shards == 0 || options_.n_shards > config_.n_layers) {
        return Error{Code::invalid_argument,
                     "--num-shards " + std::to_string(options_.n_shards) + ": must be in 1.." +
                         std::to_string(config_.n_layers) + ", the layers of the model"};
      }
      ModelBytes bytes = weigh_model(config_, *source_);
      if (config_.tied_head && options_.n_shards == 1) bytes.head = 0;  // one tensor serves both
      const std::vector<std::uint64_t> equal(options_.n_shards, 1);
      LUNA_TRY(ranges_, balance_layers(bytes, equal));
    }
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      std::vector<const TensorInfo*>& tensors = tensors_.emplace_back();
      for (const TensorInfo& tensor : source_->tensors()) {
        const auto home = tensor_home(tensor.name);
        if (!home || (home->part == ShardPart::layer && home->layer >= config_.n_layers)) {
          return Error{Code::unsupported,
                       "tensor " + printable(tensor.name) + ": belongs to no layer of the model"};
        }
        if (is_at_home(*home, ranges_, i, config_.tied_head)) tensors.push_back(&tensor);
      }
    }
    return {};
  }

  [[nodiscard]] std::uint64_t n_tensor_bytes() const {
    std::uint64_t n = 0;
    for (const auto& tensors : tensors_)
      for (const TensorInfo* tensor : tensors)
        n += tensor->n_bytes;
    return n;
  }

  /// The source's checksum, which each shard carries. A folder of shards has it already.
  Result<void> identify_source() {
    if (const auto* folder = dynamic_cast<const ShardFolder*>(source_.get())) {
      work_.emplace(options_.progress, n_tensor_bytes());
      manifest_.source_file = folder->manifest().source_file;
      manifest_.source_bytes = folder->manifest().source_bytes;
      manifest_.source_sha256 = folder->manifest().source_sha256;
      std::vector<std::string> names;
      for (const TensorInfo& tensor : source_->tensors())
        names.push_back(tensor.name);
      return source_->open_tensors(names);
    }
    const auto* file = dynamic_cast<const GgufFile*>(source_.get());
    LUNA_VERIFY(file != nullptr);
    work_.emplace(options_.progress, n_tensor_bytes() + file->bytes().size());
    manifest_.source_file = printable(options_.source.filename().string());
    manifest_.source_bytes = file->bytes().size();
    Sha256 hash;
    LUNA_TRY(work_->in_pieces(file->bytes(), [&](std::span<const std::byte> piece) {
      hash.update(piece);
      return Result<void>{};
    }));
    manifest_.source_sha256 = hex_of(hash.finish());
    return {};
  }

  Result<GgufLayout> make_layout(std::size_t shard_idx) const {
    GgufLayout layout;
    for (const MetadataEntry& entry : source_->metadata())
      if (!entry.key.starts_with(kShardKeyPrefix)) LUNA_TRY(layout.add_key(entry));
    const LayerRange& layers = ranges_[shard_idx];
    LUNA_TRY(layout.add_count(kShardIndexKey, static_cast<std::uint32_t>(shard_idx)));
    LUNA_TRY(layout.add_count(kShardCountKey, static_cast<std::uint32_t>(ranges_.size())));
    LUNA_TRY(layout.add_count(kShardFirstLayerKey, layers.first));
    LUNA_TRY(layout.add_count(kShardNLayersKey, layers.count));
    LUNA_TRY(layout.add_text(kShardSourceKey, manifest_.source_sha256));
    for (const TensorInfo* tensor : tensors_[shard_idx])
      LUNA_TRY(layout.add_tensor(tensor->name, tensor->type, {tensor->dims.data(), tensor->rank}));
    return layout;
  }

  Result<void> write_shards() {
    manifest_.shards.resize(ranges_.size());
    files_.resize(ranges_.size());
    std::vector<Result<void>> results(ranges_.size());
    const std::uint32_t n_threads = options_.n_threads != 0
                                        ? options_.n_threads
                                        : std::max(1U, std::thread::hardware_concurrency());
    parallel_for(std::min(n_threads, kWritersMax),
                 ranges_.size(),
                 [&](std::uint32_t /*thread_idx*/, std::uint64_t i) {
                   results[i] = work_->is_stopped() ? work_->stopped() : write_shard(i);
                   if (!results[i]) work_->stop();
                 });
    // What failed first stopped the others, which say no more than that.
    const Error* first = nullptr;
    for (const Result<void>& result : results) {
      if (!result && (first == nullptr || first->code() == Code::cancelled))
        first = &result.error();
    }
    return first == nullptr ? Result<void>{} : *first;
  }

  Result<void> write_shard(std::size_t shard_idx) {
    ShardRecord& record = manifest_.shards[shard_idx];
    record.file = shard_file_name(shard_idx);
    record.layers = ranges_[shard_idx];
    LUNA_TRY(const GgufLayout layout, make_layout(shard_idx));
    LUNA_TRY(record.n_bytes, layout.n_file_bytes());
    LUNA_TRY(OutputFile file, OutputFile::create(options_.folder / record.file));
    Sha256 file_hash;
    GgufWriter writer(layout, [&](std::span<const std::byte> bytes) {
      file_hash.update(bytes);
      return file.append(bytes);
    });
    LUNA_TRY(writer.write_header());
    for (const TensorInfo* tensor : tensors_[shard_idx]) {
      // Hashed as it is written: a source that changes meanwhile gives other shards, never wrong
      // checksums.
      Sha256 tensor_hash;
      LUNA_TRY(work_->in_pieces(tensor->bytes, [&](std::span<const std::byte> piece) {
        tensor_hash.update(piece);
        return writer.append(piece);
      }));
      record.tensors.push_back({tensor->name,
                                tensor->type,
                                tensor->rank,
                                tensor->dims,
                                tensor->n_bytes,
                                hex_of(tensor_hash.finish())});
    }
    LUNA_TRY(writer.finish());
    record.sha256 = hex_of(file_hash.finish());
    LUNA_TRY(file.close());
    files_[shard_idx].emplace(std::move(file));
    return {};
  }

  /// Gives the files their names. The manifest is gone while they change, so that a folder with one
  /// is whole whenever the machine stops.
  Result<void> publish() {
    const std::string text = to_json(manifest_);
    if (const auto readable = parse_shard_manifest(text); !readable)
      return readable.error().in("the manifest of these shards cannot be read back");
    LUNA_TRY(OutputFile manifest, OutputFile::create(options_.folder / kManifestName));
    LUNA_TRY(manifest.append(std::as_bytes(std::span(text.data(), text.size()))));
    LUNA_TRY(manifest.close());
    if (work_->is_stopped()) return work_->stopped();
    LUNA_TRY(target_.remove_manifest());
    Result<void> named = give_names(manifest);
    if (named) {
      target_.keep();
    } else {
      (void)target_.remove_shards_from(0);  // the first failure is the one to tell
    }
    return named;
  }

  Result<void> give_names(OutputFile& manifest) {
    for (std::optional<OutputFile>& file : files_)
      LUNA_TRY(file->commit());
    LUNA_TRY(target_.remove_shards_from(ranges_.size()));
    LUNA_TRY(sync_folder(options_.folder));
    LUNA_TRY(manifest.commit());
    return sync_folder(options_.folder);
  }

  const SplitOptions& options_;
  TargetFolder target_;  // outlives the files in it
  std::unique_ptr<WeightFile> source_;
  ModelConfig config_;
  std::vector<LayerRange> ranges_;                       // by shard
  std::vector<std::vector<const TensorInfo*>> tensors_;  // by shard, of source_
  ShardManifest manifest_;
  std::optional<ShardWork> work_;
  std::vector<std::optional<OutputFile>> files_;  // by shard, whole
};

Result<ShardManifest> split_model(const SplitOptions& options) {
  return ModelSplitter(options).split();
}

}  // namespace luna::model
