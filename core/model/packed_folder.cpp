#include "core/model/packed_folder.hpp"

#include "core/base/mapped_file.hpp"
#include "core/base/units.hpp"
#include "core/model/hf_folder.hpp"
#include "core/model/hf_names.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <span>

namespace luna::model {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kFileBytes = kGiB;  // what waits in memory before it is written
// What a folder says beside its weights; those that are there are copied.
constexpr std::array<std::string_view, 7> kTexts = {"generation_config.json",
                                                    "tokenizer.json",
                                                    "tokenizer_config.json",
                                                    "special_tokens_map.json",
                                                    "chat_template.jinja",
                                                    "tokenizer.model",
                                                    "added_tokens.json"};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Result<std::string> read_text(const std::filesystem::path& path) {
  LUNA_TRY(const MappedFile file, MappedFile::open(path));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace

PackedFolder::PackedFolder(std::filesystem::path source,
                           std::filesystem::path folder,
                           const Architecture& architecture)
    : source_(std::move(source)), folder_(std::move(folder)), architecture_(architecture) {}

PackedFolder::~PackedFolder() {
  if (is_finished_) return;
  files_.clear();
  std::error_code ignored;  // a folder in which somebody else put a file stays
  if (made_folder_) std::filesystem::remove(folder_, ignored);
}

Result<void> PackedFolder::begin(const std::string& quantization_config) {
  const std::filesystem::path path = source_ / kHfConfigName;
  LUNA_TRY(const std::string text, read_text(path));
  json::error_code error;
  json::value root = json::parse(text, error);
  if (error || !root.is_object())
    return Error{Code::corrupt, path.string() + ": not a JSON object"};
  root.as_object()["quantization_config"] = json::parse(quantization_config);
  config_ = json::serialize(root) + "\n";
  std::error_code failure;
  made_folder_ = std::filesystem::create_directory(folder_, failure);
  if (failure) return Error{Code::io, folder_.string() + ": " + failure.message()};
  return {};
}

Result<void> PackedFolder::copy(const TensorInfo& tensor) {
  PackedPart part;
  part.dtype = tensor.type_name;
  part.shape.assign(tensor.dims.begin(), tensor.dims.begin() + tensor.rank);
  part.bytes.assign(tensor.bytes.begin(), tensor.bytes.end());
  return take({name_to_hf(architecture_, tensor.name), std::move(part)});
}

Result<void> PackedFolder::add(const std::string& weight_name, std::vector<PackedPart> parts) {
  const std::string module = weight_name.substr(0, weight_name.rfind('.') + 1);
  for (PackedPart& part : parts) {
    const std::string name = name_to_hf(architecture_, module + part.name);
    LUNA_TRY(take({name, std::move(part)}));
  }
  return {};
}

Result<void> PackedFolder::take(Tensor tensor) {
  n_waiting_bytes_ += tensor.part.bytes.size();
  waiting_.push_back(std::move(tensor));
  return n_waiting_bytes_ >= kFileBytes ? write_tensors() : Result<void>{};
}

Result<void> PackedFolder::write_tensors() {
  if (waiting_.empty()) return {};
  std::array<char, 48> number{};
  std::snprintf(number.data(), number.size(), "model-%05u.safetensors", ++n_files_);
  const std::string file_name = number.data();
  // Large elements first: each lies at a multiple of its size.
  std::ranges::stable_sort(waiting_, std::ranges::greater{}, [](const Tensor& tensor) {
    return tensor.part.dtype.ends_with("32") ? 4 : tensor.part.dtype.ends_with("16") ? 2 : 1;
  });
  json::object header;
  std::uint64_t at = 0;
  for (const Tensor& tensor : waiting_) {
    const std::uint64_t end = at + tensor.part.bytes.size();
    header[tensor.name] = json::object{
        {"dtype", json::string_view(tensor.part.dtype.data(), tensor.part.dtype.size())},
        {"shape", json::value_from(tensor.part.shape)},
        {"data_offsets", json::array{at, end}}};
    index_.emplace_back(tensor.name, file_name);
    at = end;
  }
  std::string text = json::serialize(header);
  text.resize(round_up(text.size(), std::size_t{8}), ' ');
  LUNA_TRY(OutputFile file, OutputFile::create(folder_ / file_name));
  const std::uint64_t n_header = text.size();
  LUNA_TRY(file.append(std::as_bytes(std::span(&n_header, 1))));
  LUNA_TRY(file.append(bytes_of(text)));
  for (const Tensor& tensor : waiting_)
    LUNA_TRY(file.append(tensor.part.bytes));
  LUNA_TRY(file.close());
  files_.push_back(std::move(file));
  n_bytes_ += at;
  waiting_.clear();
  n_waiting_bytes_ = 0;
  return {};
}

Result<void> PackedFolder::write_text(const std::string& name, const std::string& text) {
  LUNA_TRY(OutputFile file, OutputFile::create(folder_ / name));
  LUNA_TRY(file.append(bytes_of(text)));
  LUNA_TRY(file.close());
  files_.push_back(std::move(file));
  return {};
}

Result<void> PackedFolder::copy_texts() {
  for (const std::string_view name : kTexts) {
    std::error_code ignored;  // a file that cannot be asked for is one that is not there
    if (!std::filesystem::exists(source_ / name, ignored)) continue;
    LUNA_TRY(const std::string text, read_text(source_ / name));
    LUNA_TRY(write_text(std::string(name), text));
  }
  return {};
}

Result<std::uint64_t> PackedFolder::finish() {
  LUNA_TRY(write_tensors());
  json::object map;
  std::ranges::sort(index_);
  for (const auto& [tensor, file] : index_)
    map[tensor] = file;
  const json::object index{{"metadata", json::object{{"total_size", n_bytes_}}},
                           {"weight_map", std::move(map)}};
  LUNA_TRY(write_text(std::string(kHfIndexName), json::serialize(index) + "\n"));
  LUNA_TRY(copy_texts());
  LUNA_TRY(write_text(std::string(kHfConfigName), config_));
  // Without config.json the folder is no model: an old one goes first, the new one comes last.
  std::error_code error;
  for (const std::string_view name : {kHfConfigName, kHfWeightsName}) {
    std::filesystem::remove(folder_ / name, error);
    if (error) return Error{Code::io, (folder_ / name).string() + ": " + error.message()};
  }
  for (OutputFile& file : files_)
    LUNA_TRY(file.commit());
  is_finished_ = true;
  LUNA_TRY(sync_folder(folder_));
  return n_bytes_;
}

}  // namespace luna::model
