#include "core/model/hf_folder.hpp"

#include "core/model/hf_names.hpp"
#include "core/model/weight_names.hpp"

#include <luna/abi/quant.h>
#include <luna/weight_parts.hpp>

#include <boost/json.hpp>

#include <algorithm>
#include <set>

namespace luna::model {
namespace {

namespace json = boost::json;

constexpr std::size_t kConfigBytesMax = std::size_t{16} << 20U;  // real ones have a few thousand
constexpr std::size_t kIndexBytesMax = std::size_t{256} << 20U;  // 100 bytes a tensor
constexpr std::size_t kFilesMax = 4096;                          // each is mapped; real ones: 200
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kBias = "bias";

// Tables that old files carry and the runtime computes itself.
constexpr std::string_view kComputedSuffix = ".rotary_emb.inv_freq";

Result<std::string> read_text(const std::filesystem::path& path, std::size_t n_bytes_max) {
  LUNA_TRY(const MappedFile file, MappedFile::open(path));
  if (file.bytes().size() > n_bytes_max) {
    return Error{Code::corrupt,
                 path.string() + ": " + std::to_string(file.bytes().size()) + " bytes; at most " +
                     std::to_string(n_bytes_max) + " are read"};
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

/// Nothing that could lead out of the folder.
bool is_plain_file_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.front() != '.' &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

std::string_view module_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(0, dot);
}

bool is_bias(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return name.substr(dot == std::string_view::npos ? 0 : dot + 1) == kBias;
}

}  // namespace

Result<HfWeightMap> parse_hf_index(std::string_view text) {
  const auto corrupt = [](const std::string& why) { return Error{Code::corrupt, why}; };
  json::value root;
  try {
    json::error_code error;
    root = json::parse(json::string_view(text.data(), text.size()), error);
    if (error) return corrupt("not valid JSON: " + error.message());
  } catch (const std::exception& e) {
    return corrupt(std::string("not valid JSON: ") + e.what());
  }
  const json::object* object = root.if_object();
  const json::value* map = object == nullptr ? nullptr : object->if_contains("weight_map");
  if (map == nullptr || !map->is_object()) return corrupt("weight_map: missing, or no object");
  HfWeightMap files;
  for (const auto& [name, file] : map->get_object()) {
    const std::string tensor(name.data(), name.size());
    const json::string* file_name = file.if_string();
    if (file_name == nullptr ||
        !is_plain_file_name(std::string_view(file_name->data(), file_name->size()))) {
      return corrupt("weight_map." + printable(tensor) + " = " +
                     printable(json::serialize(file).substr(0, 80)) +
                     ": must be the name of a .safetensors file in the folder");
    }
    files.emplace(tensor, std::string(file_name->data(), file_name->size()));
  }
  if (files.empty()) return corrupt("weight_map: names no tensor");
  return files;
}

bool is_hf_folder(const std::filesystem::path& folder) {
  std::error_code ignored;  // what cannot be asked for is opened, and says why
  return std::filesystem::exists(folder / kHfConfigName, ignored);
}

Result<HfFolder> HfFolder::open(const std::filesystem::path& folder) {
  const std::filesystem::path config_path = folder / kHfConfigName;
  LUNA_TRY(const std::string text, read_text(config_path, kConfigBytesMax));
  auto config = parse_hf_config(text);
  if (!config) return config.error().in(config_path.string());
  HfFolder opened(std::move(*config));
  LUNA_TRY(opened.open_files(folder));
  if (Result<void> fits = opened.check_vocab_size(); !fits)
    return fits.error().in(config_path.string());
  opened.add_rope_factors(kRopeFactorsName, opened.config_.rope_factors);
  opened.add_rope_factors(kLongRopeFactorsName, opened.config_.long_rope_factors);
  opened.add_rope_factors(kShortRopeFactorsName, opened.config_.short_rope_factors);
  return opened;
}

/// One file, or the files that the index names, as the format's own reader chooses.
Result<void> HfFolder::open_files(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(folder / kHfWeightsName, ignored))
    return open_file(folder / kHfWeightsName);
  const std::filesystem::path index_path = folder / kHfIndexName;
  if (!std::filesystem::exists(index_path, ignored)) {
    return Error{Code::not_found,
                 folder.string() + ": neither " + std::string(kHfWeightsName) + " nor " +
                     std::string(kHfIndexName) + "; weights are read from safetensors only"};
  }
  LUNA_TRY(const std::string text, read_text(index_path, kIndexBytesMax));
  const auto map = parse_hf_index(text);
  if (!map) return map.error().in(index_path.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : *map)
    names.insert(file);
  if (names.size() > kFilesMax) {
    return Error{Code::unsupported,
                 index_path.string() + ": " + std::to_string(names.size()) + " files; at most " +
                     std::to_string(kFilesMax) + " are opened"};
  }
  std::map<std::string, std::size_t> file_idx_by_name;
  for (const std::string& name : names) {
    if (!std::filesystem::exists(folder / name, ignored)) {
      return Error{Code::not_found,
                   (folder / name).string() + ": not there, but " + std::string(kHfIndexName) +
                       " names it; fetch the folder again"};
    }
    file_idx_by_name.emplace(name, files_.size());
    LUNA_TRY(open_file(folder / name));
  }
  for (const auto& [tensor, file] : *map) {
    if (files_[file_idx_by_name.at(file)].find_tensor(tensor) == nullptr) {
      return Error{Code::corrupt,
                   (folder / file).string() + ": tensor " + printable(tensor) +
                       ": not in the file, but " + std::string(kHfIndexName) + " says so"};
    }
  }
  return {};
}

Result<void> HfFolder::open_file(const std::filesystem::path& path) {
  LUNA_TRY(auto mapped, MappedFile::open(path));
  auto file = SafetensorsFile::adopt(std::move(mapped));
  if (!file) return file.error().in(path.string());
  files_.push_back(std::move(*file));
  if (Result<void> added = add_tensors(files_.back(), path.filename().string()); !added)
    return added.error().in(path.string());
  return {};
}

Result<void> HfFolder::add_tensors(const SafetensorsFile& file, const std::string& file_name) {
  for (const TensorInfo& found : file.tensors()) {
    if (found.name.ends_with(kComputedSuffix)) continue;
    std::string name = name_from_hf(*config_.architecture, found.name);
    // A tied head is the embedding; what some writers store beside it is a copy.
    if (config_.tied_head && module_of(name) == module_of(kHeadName)) continue;
    if (is_rope_factors(name) || !tensor_idx_by_name_.emplace(name, tensors_.size()).second) {
      return Error{Code::corrupt,
                   "tensor " + printable(found.name) +
                       ": a tensor of this name is there already (" + file_name + ")"};
    }
    if (!is_bias(name))
      tensor_idxs_by_module_[std::string(module_of(name))].push_back(tensors_.size());
    TensorInfo& tensor = tensors_.emplace_back(found);
    tensor.name = std::move(name);
    const bool is_norm = tensor.rank == 1 && tensor.name.ends_with("_norm.weight");
    if (is_norm && config_.architecture->has_hf_norms_less_one) LUNA_TRY(add_one(tensor));
  }
  return {};
}

/// Some scalings stretch frequencies pair by pair; GGUF files carry the divisors as tensors.
void HfFolder::add_rope_factors(std::string_view name, const std::vector<float>& factors) {
  if (factors.empty()) return;
  tensor_idx_by_name_.emplace(name, tensors_.size());
  TensorInfo& tensor = tensors_.emplace_back();
  tensor.name = name;
  tensor.rank = 1;
  tensor.dims[0] = factors.size();
  set_values(tensor, factors);
}

void HfFolder::set_values(TensorInfo& tensor, const std::vector<float>& values) {
  tensor.type = LUNA_DTYPE_F32;
  tensor.type_name = "F32";
  tensor.bytes = std::as_bytes(std::span(values));
  tensor.n_bytes = tensor.bytes.size();
}

/// GGUF files hold what a norm multiplies by; folders of some families hold it less one.
Result<void> HfFolder::add_one(TensorInfo& norm) {
  luna_tensor_entry entry{};
  entry.type = norm.type;
  entry.bytes = norm.bytes.data();
  const bool is_float =
      norm.type == LUNA_DTYPE_F32 || norm.type == LUNA_DTYPE_F16 || norm.type == LUNA_DTYPE_BF16;
  if (!is_float) {
    return Error{Code::unsupported,
                 "tensor " + printable(name_in_file(norm.name)) + ": a norm of type " +
                     std::string(norm.type_name)};
  }
  const FloatEntry values(entry);
  auto sums = std::make_unique<std::vector<float>>(norm.dims[0]);
  for (std::size_t i = 0; i < sums->size(); ++i)
    (*sums)[i] = 1.0F + values.at(i);
  set_values(norm, *sums);
  norms_.push_back(std::move(sums));
  return {};
}

Result<void> HfFolder::check_vocab_size() const {
  const TensorInfo* embedding = find_tensor(kEmbeddingName);
  if (embedding != nullptr && embedding->rank == 2 && embedding->dims[0] != config_.vocab_size) {
    return Error{Code::corrupt,
                 "vocab_size = " + std::to_string(config_.vocab_size) + ": " +
                     name_to_hf(*config_.architecture, kEmbeddingName) + " has " +
                     std::to_string(embedding->dims[0]) + " rows"};
  }
  if (!config_.tied_head && parts_of(kHeadName).empty()) {
    return Error{Code::corrupt,
                 "tie_word_embeddings = false: tensor " +
                     name_to_hf(*config_.architecture, kHeadName) + " is missing"};
  }
  return {};
}

std::uint32_t HfFolder::container() const {
  return LUNA_CONTAINER_SAFETENSORS;
}

std::string HfFolder::description() const {
  return "Hugging Face folder, " + std::to_string(files_.size()) +
         (files_.size() == 1 ? " file" : " files") + " of safetensors, " +
         std::to_string(tensors_.size()) + " tensors";
}

const MetadataEntry* HfFolder::find_metadata(std::string_view key) const {
  const auto& entries = config_.metadata;
  const auto found = std::ranges::find(entries, key, &MetadataEntry::key);
  return found == entries.end() ? nullptr : &*found;
}

const TensorInfo* HfFolder::find_tensor(std::string_view name) const {
  const auto found = tensor_idx_by_name_.find(std::string(name));
  return found == tensor_idx_by_name_.end() ? nullptr : &tensors_[found->second];
}

std::vector<const TensorInfo*> HfFolder::parts_of(std::string_view name) const {
  std::vector<const TensorInfo*> parts;
  if (!name.ends_with(kWeight)) return WeightFile::parts_of(name);
  for (const std::string& one : stack_of(name))
    for (const TensorInfo* part : parts_of(one))
      parts.push_back(part);
  if (!parts.empty()) return parts;
  const auto found = tensor_idxs_by_module_.find(std::string(module_of(name)));
  if (found == tensor_idxs_by_module_.end()) return WeightFile::parts_of(name);
  for (const std::size_t idx : found->second)
    parts.push_back(&tensors_[idx]);
  return parts;
}

std::vector<std::string> HfFolder::stack_of(std::string_view name) const {
  std::vector<std::string> stack;
  if (!is_of_experts(name)) return stack;
  const std::string module(module_of(name));
  for (std::size_t expert = 0;; ++expert) {
    std::string one = module + "." + std::to_string(expert);
    if (!tensor_idxs_by_module_.contains(one)) return stack;
    stack.push_back(one + std::string(kWeight));
  }
}

std::string HfFolder::name_in_file(std::string_view name) const {
  return name_to_hf(*config_.architecture, name);
}

}  // namespace luna::model
