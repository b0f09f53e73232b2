#include "core/model/shard_manifest.hpp"

#include "core/base/mapped_file.hpp"
#include "core/base/sha256.hpp"
#include "core/base/units.hpp"
#include "core/model/gguf_types.hpp"
#include "core/model/weight_file.hpp"
#include "core/model/weight_names.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>

namespace luna::model {
namespace {

namespace json = boost::json;

constexpr std::string_view kFormat = "luna-shards";
constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kManifestBytesMax = 16 * kMiB;  // 80,000 tensors; real models have 2,000
constexpr std::size_t kDepthMax = 8;                    // a right manifest has 6 levels
constexpr std::uint64_t kLayersMax = 1U << 16;          // as the TOML allows
constexpr std::uint64_t kTextBytesMax = 1024;           // of a name
constexpr std::uint64_t kBytesMax = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kBytesShown = 100;  // of a wrong value

/// A value of the manifest and its place in it: "shards[1].tensors[0].name".
class Field {
 public:
  Field(const json::value& value, std::string path) : value_(&value), path_(std::move(path)) {}

  [[nodiscard]] Error refused(std::string_view why) const {
    std::string text = json::serialize(*value_);
    if (text.size() > kBytesShown) text = text.substr(0, kBytesShown) + "...";
    return Error{Code::corrupt, path_ + " = " + printable(text) + ": must be " + std::string(why)};
  }

  [[nodiscard]] Result<Field> member(std::string_view key) const {
    const json::object* object = value_->if_object();
    if (object == nullptr) return refused("an object");
    const std::string path = path_.empty() ? std::string(key) : path_ + "." + std::string(key);
    const json::value* found = object->if_contains(key);
    if (found == nullptr) return Error{Code::corrupt, path + ": the field is missing"};
    return Field(*found, path);
  }

  /// The elements of a list of 1..max.
  [[nodiscard]] Result<std::vector<Field>> list(std::uint64_t max) const {
    const json::array* array = value_->if_array();
    if (array == nullptr || array->empty() || array->size() > max)
      return refused("a list of 1.." + std::to_string(max));
    std::vector<Field> elements;
    for (std::size_t i = 0; i < array->size(); ++i)
      elements.emplace_back((*array)[i], path_ + "[" + std::to_string(i) + "]");
    return elements;
  }

  [[nodiscard]] Result<std::string> text() const {
    const json::string* string = value_->if_string();
    if (string == nullptr || string->size() > kTextBytesMax)
      return refused("a text of at most " + std::to_string(kTextBytesMax) + " bytes");
    return std::string(string->data(), string->size());
  }

  [[nodiscard]] Result<std::string> sha256() const {
    LUNA_TRY(std::string digest, text());
    if (!is_sha256_text(digest)) return refused("64 lower-case hexadecimal digits");
    return digest;
  }

  [[nodiscard]] Result<std::uint64_t> integer(std::uint64_t min, std::uint64_t max) const {
    const std::string range = "an integer in " + std::to_string(min) + ".." + std::to_string(max);
    std::uint64_t number = 0;
    if (value_->is_uint64()) {
      number = value_->get_uint64();
    } else if (value_->is_int64() && value_->get_int64() >= 0) {
      number = static_cast<std::uint64_t>(value_->get_int64());
    } else {
      return refused(range);
    }
    if (number < min || number > max) return refused(range);
    return number;
  }

 private:
  const json::value* value_;  // the parsed text outlives all fields
  std::string path_;
};

Result<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kDepthMax;
  json::error_code error;
  json::stream_parser parser(json::storage_ptr{}, options);
  try {
    parser.write(text.data(), text.size(), error);
    if (!error) parser.finish(error);
  } catch (const std::exception& e) {
    return Error{Code::corrupt, std::string("not valid JSON: ") + e.what()};
  }
  if (error) return Error{Code::corrupt, "not valid JSON: " + error.message()};
  return parser.release();
}

/// Reads the fields in their order; what one says bounds the next.
class ManifestReader {
 public:
  Result<ShardManifest> read(const Field& root) {
    LUNA_TRY(read_head(root));
    LUNA_TRY(const Field list, root.member("shards"));
    LUNA_TRY(const auto shards, list.list(manifest_.n_layers));
    for (std::size_t i = 0; i < shards.size(); ++i)
      LUNA_TRY(read_shard(shards[i], i));
    const std::uint64_t next_layer = ranges_.back().end();
    if (next_layer != manifest_.n_layers) {
      return Error{Code::corrupt,
                   "shards: they end at layer " + std::to_string(next_layer) +
                       ", but the model has " + std::to_string(manifest_.n_layers) + " layers"};
    }
    LUNA_TRY(check_homes());
    return std::move(manifest_);
  }

 private:
  Result<void> read_head(const Field& root) {
    LUNA_TRY(const Field format, root.member("format"));
    LUNA_TRY(const std::string format_name, format.text());
    if (format_name != kFormat) return format.refused("\"" + std::string(kFormat) + "\"");
    LUNA_TRY(const Field version, root.member("version"));
    LUNA_TRY(const std::uint64_t number, version.integer(1, kBytesMax));
    if (number != kVersion) {
      return Error{Code::unsupported,
                   "version = " + std::to_string(number) + ": this program reads version " +
                       std::to_string(kVersion)};
    }
    LUNA_TRY(const Field model, root.member("model"));
    LUNA_TRY(const Field name, model.member("name"));
    LUNA_TRY(manifest_.model_name, name.text());
    LUNA_TRY(const Field architecture, model.member("architecture"));
    LUNA_TRY(manifest_.architecture, architecture.text());
    LUNA_TRY(const Field n_layers, model.member("n_layers"));
    LUNA_TRY(const std::uint64_t count, n_layers.integer(1, kLayersMax));
    manifest_.n_layers = static_cast<std::uint32_t>(count);
    LUNA_TRY(const Field source, root.member("source"));
    LUNA_TRY(const Field file, source.member("file"));
    LUNA_TRY(manifest_.source_file, file.text());
    LUNA_TRY(const Field bytes, source.member("bytes"));
    LUNA_TRY(manifest_.source_bytes, bytes.integer(1, kBytesMax));
    LUNA_TRY(const Field sha256, source.member("sha256"));
    LUNA_TRY(manifest_.source_sha256, sha256.sha256());
    return {};
  }

  Result<void> read_shard(const Field& field, std::size_t shard_idx) {
    ShardRecord& shard = manifest_.shards.emplace_back();
    LUNA_TRY(const Field file, field.member("file"));
    LUNA_TRY(shard.file, file.text());
    // The one right name leads to no other folder.
    const std::string right_name = shard_file_name(shard_idx);
    if (shard.file != right_name) return file.refused("\"" + right_name + "\"");
    LUNA_TRY(const Field bytes, field.member("bytes"));
    LUNA_TRY(shard.n_bytes, bytes.integer(1, kBytesMax));
    LUNA_TRY(const Field sha256, field.member("sha256"));
    LUNA_TRY(shard.sha256, sha256.sha256());
    LUNA_TRY(read_layers(field, shard.layers));
    LUNA_TRY(const Field list, field.member("tensors"));
    LUNA_TRY(const auto tensors, list.list(kManifestBytesMax));
    std::uint64_t n_bytes_left = shard.n_bytes;
    for (const Field& tensor : tensors) {
      LUNA_TRY(read_tensor(tensor, n_bytes_left, shard.tensors.emplace_back()));
      n_bytes_left -= shard.tensors.back().n_bytes;
      LUNA_TRY(note_tensor(tensor, shard_idx, shard.tensors.back()));
    }
    return {};
  }

  Result<void> read_layers(const Field& field, LayerRange& layers) {
    const std::uint32_t next = ranges_.empty() ? 0 : ranges_.back().end();
    LUNA_TRY(const Field first, field.member("first_layer"));
    LUNA_TRY(const std::uint64_t first_layer, first.integer(0, kLayersMax));
    if (first_layer != next) {
      return first.refused(
          std::to_string(next) + ", where the shard before it ends: " +
          (first_layer < next ? "layers would be in two shards" : "layers would be in no shard"));
    }
    if (next == manifest_.n_layers)
      return first.refused("absent: the shards before it hold all layers");
    LUNA_TRY(const Field count, field.member("n_layers"));
    LUNA_TRY(const std::uint64_t n_layers, count.integer(1, manifest_.n_layers - next));
    layers = {next, static_cast<std::uint32_t>(n_layers)};
    ranges_.push_back(layers);
    return {};
  }

  static Result<void> read_tensor(const Field& field, std::uint64_t n_bytes_max, ShardTensor& out) {
    LUNA_TRY(const Field name, field.member("name"));
    LUNA_TRY(out.name, name.text());
    if (out.name.empty()) return name.refused("the name of a tensor");
    LUNA_TRY(const Field type, field.member("type"));
    LUNA_TRY(const std::string type_name, type.text());
    const GgufType* known = gguf_type_by_name(type_name);
    if (known == nullptr) return type.refused("a type of GGUF tensors");
    out.type = known->number;
    LUNA_TRY(const Field shape, field.member("shape"));
    LUNA_TRY(const auto dims, shape.list(out.dims.size()));
    for (const Field& dim : dims) {
      LUNA_TRY(out.dims[out.rank], dim.integer(1, kBytesMax));
      ++out.rank;
    }
    LUNA_TRY(const Field bytes, field.member("bytes"));
    LUNA_TRY(out.n_bytes, bytes.integer(1, kBytesMax));
    const auto right_bytes = gguf_tensor_bytes(*known, out.shape());
    if (!right_bytes) return shape.refused("whole blocks of " + type_name + " that fit 64 bits");
    if (out.n_bytes != *right_bytes) return bytes.refused(std::to_string(*right_bytes));
    if (out.n_bytes > n_bytes_max)
      return bytes.refused("within the shard's bytes: " + std::to_string(n_bytes_max) +
                           " are left");
    LUNA_TRY(const Field sha256, field.member("sha256"));
    LUNA_TRY(out.sha256, sha256.sha256());
    return {};
  }

  /// A tensor that is in several shards is the same in each.
  Result<void> note_tensor(const Field& field, std::size_t shard_idx, const ShardTensor& tensor) {
    LUNA_TRY(const Field name, field.member("name"));
    const auto home = tensor_home(tensor.name);
    if (!home || (home->part == ShardPart::layer && home->layer >= manifest_.n_layers)) {
      return name.refused("a weight of a model of " + std::to_string(manifest_.n_layers) +
                          " layers");
    }
    const auto [seen, is_new] =
        seen_.try_emplace(tensor.name, shard_idx, manifest_.shards[shard_idx].tensors.size() - 1);
    if (is_new) return {};
    const auto [other_shard, other_idx] = seen->second;
    const ShardTensor& other = manifest_.shards[other_shard].tensors[other_idx];
    if (other_shard == shard_idx || home->part == ShardPart::layer) {
      return name.refused("in one shard, once: it stands in shards[" + std::to_string(other_shard) +
                          "] already");
    }
    if (!(other == tensor)) {
      return name.refused("the same tensor as in shards[" + std::to_string(other_shard) +
                          "], with its type, shape and checksum");
    }
    return {};
  }

  /// All ranges are known: each tensor lies where its name belongs, and ends have what they need.
  Result<void> check_homes() {
    const bool tied_head = !seen_.contains(std::string(kHeadName));
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const std::string path = "shards[" + std::to_string(i) + "].tensors";
      const auto& tensors = manifest_.shards[i].tensors;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        if (is_at_home(*tensor_home(tensors[t].name), ranges_, i, tied_head)) continue;
        return Error{Code::corrupt,
                     path + "[" + std::to_string(t) + "].name = \"" + printable(tensors[t].name) +
                         "\": must be a weight of a shard with layers " + layers_text(ranges_[i])};
      }
      const auto has = [&](std::string_view name) {
        return std::ranges::find(tensors, name, &ShardTensor::name) != tensors.end();
      };
      const std::string_view head = tied_head ? kEmbeddingName : kHeadName;
      if (i == 0 && !has(kEmbeddingName)) return missing(path, kEmbeddingName);
      if (i + 1 == ranges_.size() && !has(kOutputNormName)) return missing(path, kOutputNormName);
      if (i + 1 == ranges_.size() && !has(head)) return missing(path, head);
    }
    return {};
  }

  static Error missing(const std::string& path, std::string_view name) {
    return Error{Code::corrupt, path + ": " + std::string(name) + " is missing"};
  }

  ShardManifest manifest_;
  std::vector<LayerRange> ranges_;
  // Where a tensor stands first: shard, and place among its tensors.
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> seen_;
};

std::string json_text(std::string_view text) {
  return json::serialize(json::value(json::string_view(text.data(), text.size())));
}

std::string tensor_line(const ShardTensor& tensor) {
  std::string shape;
  for (const std::uint64_t dim : tensor.shape())
    shape += (shape.empty() ? "" : ", ") + std::to_string(dim);
  const GgufType* type = gguf_type_by_number(tensor.type);
  return "        {\"name\": " + json_text(tensor.name) +
         ", \"type\": " + json_text(type == nullptr ? "" : type->name) + ", \"shape\": [" + shape +
         "], \"bytes\": " + std::to_string(tensor.n_bytes) +
         ", \"sha256\": " + json_text(tensor.sha256) + "}";
}

}  // namespace

std::string shard_file_name(std::size_t shard_idx) {
  return "shard_" + std::to_string(shard_idx) + ".gguf";
}

bool is_shard_name(std::string_view file_name) {
  constexpr std::string_view kBegin = "shard_";
  constexpr std::string_view kEnd = ".gguf";
  if (!file_name.starts_with(kBegin) || !file_name.ends_with(kEnd)) return false;
  if (file_name.size() <= kBegin.size() + kEnd.size()) return false;
  file_name.remove_prefix(kBegin.size());
  file_name.remove_suffix(kEnd.size());
  return file_name.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string layers_text(const LayerRange& layers) {
  return std::to_string(layers.first) + ".." + std::to_string(layers.end() - 1);
}

std::optional<TensorHome> tensor_home(std::string_view name) {
  if (name == kEmbeddingName) return TensorHome{ShardPart::first};
  if (name == kOutputNormName || name == kHeadName) return TensorHome{ShardPart::last};
  if (is_rope_factors(name)) return TensorHome{ShardPart::all};
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  TensorHome home;
  const char* first = name.data() + kPrefix.size();
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(first, end, home.layer);
  // "blk.07." would be a second name of layer 7.
  const bool has_leading_zero = first != end && *first == '0' && last - first > 1;
  if (error != std::errc{} || has_leading_zero || last == end || *last != '.') return std::nullopt;
  return home;
}

bool is_at_home(const TensorHome& home,
                std::span<const LayerRange> ranges,
                std::size_t shard_idx,
                bool tied_head) {
  const bool is_last = shard_idx + 1 == ranges.size();
  const LayerRange& layers = ranges[shard_idx];
  switch (home.part) {
    case ShardPart::first:
      return shard_idx == 0 || (tied_head && is_last);
    case ShardPart::last:
      return is_last;
    case ShardPart::layer:
      return home.layer >= layers.first && home.layer < layers.end();
    case ShardPart::all:
      return true;
  }
  return false;
}

Result<ShardManifest> parse_shard_manifest(std::string_view text) {
  if (text.size() > kManifestBytesMax) {
    return Error{
        Code::corrupt,
        std::to_string(text.size()) + " bytes, allowed are " + std::to_string(kManifestBytesMax)};
  }
  LUNA_TRY(const json::value root, parse_json(text));
  return ManifestReader().read(Field(root, ""));
}

Result<ShardManifest> read_shard_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  auto mapped = MappedFile::open_no_link(path);
  if (!mapped && mapped.error().code() == Code::not_found) {
    return Error{Code::not_found,
                 path.string() +
                     ": not there; a folder is a model where `luna split` wrote it, and "
                     "only when it came to its end"};
  }
  if (!mapped) return mapped.error();
  const auto bytes = mapped->bytes();
  auto manifest = parse_shard_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!manifest) return manifest.error().in(path.string());
  return manifest;
}

std::string to_json(const ShardManifest& manifest) {
  std::string out = "{\n  \"format\": " + json_text(kFormat) +
                    ",\n  \"version\": " + std::to_string(kVersion) +
                    ",\n  \"model\": {\"name\": " + json_text(manifest.model_name) +
                    ", \"architecture\": " + json_text(manifest.architecture) +
                    ", \"n_layers\": " + std::to_string(manifest.n_layers) +
                    "},\n  \"source\": {\"file\": " + json_text(manifest.source_file) +
                    ", \"bytes\": " + std::to_string(manifest.source_bytes) +
                    ", \"sha256\": " + json_text(manifest.source_sha256) + "},\n  \"shards\": [";
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const ShardRecord& shard = manifest.shards[i];
    out += i == 0 ? "\n" : ",\n";
    out += "    {\"file\": " + json_text(shard.file) +
           ", \"bytes\": " + std::to_string(shard.n_bytes) +
           ", \"sha256\": " + json_text(shard.sha256) +
           ",\n      \"first_layer\": " + std::to_string(shard.layers.first) +
           ", \"n_layers\": " + std::to_string(shard.layers.count) + ",\n      \"tensors\": [";
    for (std::size_t t = 0; t < shard.tensors.size(); ++t)
      out += (t == 0 ? "\n" : ",\n") + tensor_line(shard.tensors[t]);
    out += "]}";
  }
  return out + "]\n}\n";
}

}  // namespace luna::model
