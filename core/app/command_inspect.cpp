#include "core/app/command_inspect.hpp"

#include "core/app/shard_table.hpp"
#include "core/model/memory_plan.hpp"
#include "core/model/model_config.hpp"
#include "core/model/shard_file.hpp"
#include "core/model/vocabulary_loader.hpp"
#include "core/model/weight_file.hpp"
#include "core/model/weight_names.hpp"

#include <luna/abi/quant.h>

#include <boost/json.hpp>

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <map>
#include <ostream>

namespace luna::app {
namespace {

namespace json = boost::json;
using model::MetadataArray;
using model::MetadataEntry;
using model::printable;
using model::TensorInfo;
using model::ValueType;
using model::WeightFile;

constexpr std::uint64_t kElementsShown = 4;  // of an array: enough to see what it is
constexpr std::size_t kTextBytesShown = 72;  // of a string, in text: a terminal's line

/// What a file says of its model.
struct Findings {
  std::optional<model::ModelConfig> config;
  std::optional<model::ShardKeys> shard;  // one of several: not a whole model
  std::optional<std::size_t> n_tokens;    // of its vocabulary
  std::optional<Error> error;             // the first thing that is wrong
};

Result<void> examine(const WeightFile& file,
                     const std::filesystem::path& path,
                     Findings& findings) {
  const bool is_gguf = file.container() == LUNA_CONTAINER_GGUF;
  if (!is_gguf && file.find_metadata("general.architecture") == nullptr) return {};
  LUNA_TRY(findings.shard, model::read_shard_keys(file));
  if (findings.shard && findings.shard->count > 1) return {};
  LUNA_TRY(findings.config, model::read_model_config(file));
  LUNA_TRY(model::check_weights(*findings.config, file));
  auto vocabulary = is_gguf ? model::read_vocabulary(file) : model::load_vocabulary(path);
  // A file without a vocabulary is whole; it takes one from elsewhere.
  if (!vocabulary && vocabulary.error().code() == Code::not_found) return {};
  if (!vocabulary) return std::move(vocabulary).error();
  findings.n_tokens = vocabulary->tokens.size();
  if (vocabulary->tokens.size() > findings.config->vocab_size) {
    return Error{Code::corrupt,
                 "tokenizer.ggml.tokens: " + std::to_string(vocabulary->tokens.size()) +
                     " tokens, but the embedding has " +
                     std::to_string(findings.config->vocab_size) + " rows"};
  }
  return {};
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
json::array numbers(const MetadataArray& array, std::uint64_t n) {
  json::array shown;
  for (std::uint64_t i = 0; i < n; ++i)
    shown.emplace_back(load<T>(array.bytes.data() + i * sizeof(T)));
  return shown;
}

json::array texts(const MetadataArray& array, std::uint64_t n) {
  json::array shown;
  const std::byte* at = array.bytes.data();
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto n_bytes = load<std::uint64_t>(at);
    shown.emplace_back(printable({reinterpret_cast<const char*>(at) + 8, n_bytes}));
    at += 8 + n_bytes;
  }
  return shown;
}

/// The first elements of an array.
json::array first_elements(const MetadataArray& array) {
  const std::uint64_t n = std::min(array.n_elements, kElementsShown);
  switch (array.element) {
    case ValueType::u8:
    case ValueType::boolean:
      return numbers<std::uint8_t>(array, n);
    case ValueType::i8:
      return numbers<std::int8_t>(array, n);
    case ValueType::u16:
      return numbers<std::uint16_t>(array, n);
    case ValueType::i16:
      return numbers<std::int16_t>(array, n);
    case ValueType::u32:
      return numbers<std::uint32_t>(array, n);
    case ValueType::i32:
      return numbers<std::int32_t>(array, n);
    case ValueType::f32:
      return numbers<float>(array, n);
    case ValueType::u64:
      return numbers<std::uint64_t>(array, n);
    case ValueType::i64:
      return numbers<std::int64_t>(array, n);
    case ValueType::f64:
      return numbers<double>(array, n);
    case ValueType::string:
      return texts(array, n);
    case ValueType::array:
      return {};
  }
  return {};
}

json::value scalar(const MetadataEntry& entry) {
  if (const auto* text = std::get_if<std::string_view>(&entry.value))
    return printable(*text).c_str();
  if (const auto* flag = std::get_if<bool>(&entry.value)) return *flag;
  if (const auto* number = std::get_if<double>(&entry.value)) return *number;
  if (const auto* integer = std::get_if<std::int64_t>(&entry.value)) return *integer;
  if (const auto* count = std::get_if<std::uint64_t>(&entry.value)) return *count;
  return nullptr;
}

std::string value_text(const MetadataEntry& entry) {
  if (const auto* array = std::get_if<MetadataArray>(&entry.value)) {
    std::string text = "[";
    for (const json::value& element : first_elements(*array))
      text += (text.size() > 1 ? ", " : "") + json::serialize(element);
    return text + (array->n_elements > kElementsShown ? ", ...]" : "]");
  }
  if (const auto* text = std::get_if<std::string_view>(&entry.value)) {
    const bool is_cut = text->size() > kTextBytesShown;
    const std::string shown = printable(text->substr(0, kTextBytesShown));
    return "\"" + shown + "\"" +
           (is_cut ? " ... (" + std::to_string(text->size()) + " bytes)" : "");
  }
  return json::serialize(scalar(entry));
}

std::string type_text(const MetadataEntry& entry) {
  if (const auto* array = std::get_if<MetadataArray>(&entry.value)) {
    return std::string(value_type_name(array->element)) + "[" + std::to_string(array->n_elements) +
           "]";
  }
  return std::string(value_type_name(entry.type));
}

std::string shape_text(const TensorInfo& tensor) {
  std::string text = "[";
  for (std::uint32_t i = 0; i < tensor.rank; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.dims[i]);
  return text + "]";
}

/// Whether the tensor has a place: in a folder of shards, most are closed.
bool is_open(const TensorInfo& tensor) {
  return tensor.bytes.size() == tensor.n_bytes;
}

/// Tensors of one type, together.
struct TypeTotal {
  std::uint64_t n_tensors = 0;
  std::uint64_t n_values = 0;
  std::uint64_t n_bytes = 0;
};

std::map<std::string_view, TypeTotal> totals_by_type(const WeightFile& file) {
  std::map<std::string_view, TypeTotal> totals;
  for (const TensorInfo& tensor : file.tensors()) {
    TypeTotal& total = totals[tensor.type_name];
    total.n_tensors += 1;
    total.n_values += tensor.n_elements();
    total.n_bytes += tensor.n_bytes;
  }
  return totals;
}

void print_model(const Findings& findings, std::ostream& out) {
  if (findings.shard) {
    out << "\nshard " << findings.shard->index << " of " << findings.shard->count << ", layers "
        << model::layers_text(findings.shard->layers) << ", split from the file with SHA-256 "
        << printable(findings.shard->source_sha256) << '\n';
  }
  if (!findings.config) return;
  const model::ModelConfig& c = *findings.config;
  out << "\nmodel\n  " << c.architecture << " \"" << printable(c.name) << "\"\n  " << c.n_layers
      << " layers, hidden size " << c.hidden_size << ", feed-forward " << c.ffn_size << ", "
      << c.n_heads << " heads of " << c.head_dim << ", " << c.n_kv_heads << " KV heads\n  "
      << "vocabulary " << c.vocab_size << ", context " << c.context_length << " tokens, "
      << (c.tied_head ? "head tied to the embedding" : "head of its own") << "\n  rope over "
      << c.rope.n_rot << " elements, base " << c.rope.base << ", magnitude " << c.rope.magnitude
      << '\n';
  if (!findings.n_tokens) out << "  no vocabulary in the file\n";
}

void print_text(const WeightFile& file, const Findings& findings, std::ostream& out) {
  out << file.description() << "\n\nkeys\n";
  for (const MetadataEntry& entry : file.metadata())
    out << "  " << printable(entry.key) << "  " << type_text(entry) << "  " << value_text(entry)
        << '\n';
  std::size_t width = 0;
  for (const TensorInfo& tensor : file.tensors())
    width = std::max(width, std::min<std::size_t>(printable(tensor.name).size(), 48));
  out << "\ntensors\n";
  for (const TensorInfo& tensor : file.tensors()) {
    out << "  " << std::left << std::setw(static_cast<int>(width)) << printable(tensor.name) << "  "
        << std::setw(8) << tensor.type_name << std::setw(16) << shape_text(tensor) << std::right
        << std::setw(12) << tensor.n_bytes << " bytes";
    if (is_open(tensor)) out << " at " << tensor.offset;
    out << '\n';
  }
  out << "\ntotals\n";
  TypeTotal all;
  const auto print = [&](std::string_view name, const TypeTotal& total) {
    out << "  " << std::left << std::setw(8) << name << std::right << std::setw(6)
        << total.n_tensors << " tensors" << std::setw(14) << total.n_values << " values  "
        << model::bytes_text(total.n_bytes) << '\n';
  };
  for (const auto& [name, total] : totals_by_type(file)) {
    print(name, total);
    all.n_tensors += total.n_tensors;
    all.n_values += total.n_values;
    all.n_bytes += total.n_bytes;
  }
  print("all", all);
  print_model(findings, out);
}

json::object key_json(const MetadataEntry& entry) {
  json::object object{{"key", printable(entry.key)},
                      {"type", std::string(value_type_name(entry.type))}};
  if (const auto* array = std::get_if<MetadataArray>(&entry.value)) {
    object["element_type"] = std::string(value_type_name(array->element));
    object["n_elements"] = array->n_elements;
    object["first_elements"] = first_elements(*array);
  } else {
    object["value"] = scalar(entry);
  }
  return object;
}

json::object tensor_json(const TensorInfo& tensor) {
  json::array shape;
  for (std::uint32_t i = 0; i < tensor.rank; ++i)
    shape.emplace_back(tensor.dims[i]);
  return {{"name", printable(tensor.name)},
          {"type", std::string(tensor.type_name)},
          {"shape", std::move(shape)},
          {"offset", is_open(tensor) ? json::value(tensor.offset) : json::value()},
          {"bytes", tensor.n_bytes}};
}

json::object model_json(const Findings& findings) {
  const model::ModelConfig& c = *findings.config;
  json::object object{{"architecture", c.architecture},
                      {"name", printable(c.name)},
                      {"n_layers", c.n_layers},
                      {"hidden_size", c.hidden_size},
                      {"ffn_size", c.ffn_size},
                      {"n_heads", c.n_heads},
                      {"n_kv_heads", c.n_kv_heads},
                      {"head_dim", c.head_dim},
                      {"vocab_size", c.vocab_size},
                      {"context_length", c.context_length},
                      {"tied_head", c.tied_head},
                      {"n_rot", c.rope.n_rot},
                      {"rope_base", c.rope.base}};
  if (findings.n_tokens) object["n_tokens"] = *findings.n_tokens;
  return object;
}

json::object file_json(const WeightFile& file, const Findings& findings) {
  json::object object{
      {"container", file.container() == LUNA_CONTAINER_GGUF ? "gguf" : "safetensors"},
      {"description", file.description()}};
  json::array keys;
  for (const MetadataEntry& entry : file.metadata())
    keys.emplace_back(key_json(entry));
  object["keys"] = std::move(keys);
  json::array tensors;
  for (const TensorInfo& tensor : file.tensors())
    tensors.emplace_back(tensor_json(tensor));
  object["tensors"] = std::move(tensors);
  json::object totals;
  for (const auto& [name, total] : totals_by_type(file)) {
    totals[name] = json::object{
        {"n_tensors", total.n_tensors}, {"n_values", total.n_values}, {"bytes", total.n_bytes}};
  }
  object["totals"] = std::move(totals);
  if (findings.config) object["model"] = model_json(findings);
  if (findings.error) object["error"] = findings.error->message();
  return object;
}

/// The table of a folder's shards, which can be shown even where none of them can be opened.
Result<std::optional<model::ShardManifest>> manifest_of(const std::filesystem::path& path) {
  std::error_code ignored;  // a path that cannot be asked for is no folder: opening it says why
  if (!std::filesystem::exists(path / model::kManifestName, ignored))
    return std::optional<model::ShardManifest>{};
  LUNA_TRY(auto manifest, model::read_shard_manifest(path));
  return std::optional<model::ShardManifest>(std::move(manifest));
}

}  // namespace

int run_inspect(const InspectOptions& options, const CommandStreams& streams) {
  const auto manifest = manifest_of(options.path);
  if (!manifest) return fail(streams, manifest.error());
  if (*manifest && !options.json) {
    print_shards(**manifest, options.path, streams.out);
    streams.out << '\n';
  }
  const auto file = model::open_weight_file(options.path);
  Findings findings;
  if (!file) {
    findings.error = file.error();
  } else if (const Result<void> good = examine(**file, options.path, findings); !good) {
    findings.error = good.error().in(options.path.string());
  }
  if (options.json && (file || *manifest)) {
    json::object object =
        file ? file_json(**file, findings) : json::object{{"error", findings.error->message()}};
    if (*manifest) object["shards"] = shards_json(**manifest, options.path);
    streams.out << json::serialize(object) << '\n';
  } else if (file && !options.json) {
    print_text(**file, findings, streams.out);
  }
  return findings.error ? fail(streams, *findings.error) : kExitFine;
}

}  // namespace luna::app
