#include "core/model/weight_file.hpp"

#include "core/base/mapped_file.hpp"
#include "core/model/gguf_file.hpp"
#include "core/model/hf_folder.hpp"
#include "core/model/safetensors_file.hpp"
#include "core/model/shard_folder.hpp"

#include <cstring>

namespace luna::model {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

Error wrong_type(const MetadataEntry& entry, std::string_view expected) {
  return Error{Code::corrupt,
               printable(entry.key) + ": the value at byte " + std::to_string(entry.offset) +
                   " is of type " + std::string(value_type_name(entry.type)) + ", expected " +
                   std::string(expected)};
}

Error wrong_element(std::string_view key, const MetadataArray& array, std::string_view expected) {
  return Error{Code::corrupt,
               printable(key) + ": elements of type " +
                   std::string(value_type_name(array.element)) + ", expected " +
                   std::string(expected)};
}

/// Bytes of a well-formed UTF-8 character at the front of `text`, or 0.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  std::size_t n = 0;
  unsigned low = 0x80;  // bounds of the second byte: no overlong form, surrogate or > U+10FFFF
  unsigned high = 0xBF;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) n = 2;
  if (first >= 0xE0 && first <= 0xEF) n = 3;
  if (first >= 0xF0 && first <= 0xF4) n = 4;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  if (n == 0 || text.size() < n || byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < n; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  return n;
}

bool has_manifest(const std::filesystem::path& folder) {
  std::error_code ignored;  // what cannot be asked for is opened, and says why
  return std::filesystem::exists(folder / kManifestName, ignored);
}

}  // namespace

std::string_view value_type_name(ValueType type) {
  constexpr std::array<std::string_view, 13> kNames = {"u8",
                                                       "i8",
                                                       "u16",
                                                       "i16",
                                                       "u32",
                                                       "i32",
                                                       "f32",
                                                       "bool",
                                                       "string",
                                                       "array",
                                                       "u64",
                                                       "i64",
                                                       "f64"};
  const auto index = static_cast<std::size_t>(type);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string printable(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    std::size_t n = utf8_length(text);
    // C0, DEL and C1 (U+0080..U+009F) steer terminals.
    const bool is_control = first < 0x20 || first == 0x7F ||
                            (n == 2 && first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
    if (n == 0 || is_control) {
      n = 1;
      out += "\\x";
      out += kHex[first >> 4];
      out += kHex[first & 15];
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(n);
  }
  return out;
}

std::vector<const TensorInfo*> WeightFile::parts_of(std::string_view name) const {
  const TensorInfo* tensor = find_tensor(name);
  if (tensor == nullptr) return {};
  return {tensor};
}

std::string WeightFile::name_in_file(std::string_view name) const {
  return std::string(name);
}

bool is_model_folder(const std::filesystem::path& path) {
  return has_manifest(path) || is_hf_folder(path);
}

Result<std::unique_ptr<WeightFile>> open_weight_file(const std::filesystem::path& path) {
  std::error_code ignored;  // a path that cannot be asked for is no folder: opening it says why
  if (std::filesystem::is_directory(path, ignored)) {
    if (!is_model_folder(path)) {
      return Error{Code::not_found,
                   path.string() + ": no model: neither " + std::string(kManifestName) +
                       " (shards) nor " + std::string(kHfConfigName) +
                       " (Hugging Face) is in the folder"};
    }
    if (!has_manifest(path)) {
      LUNA_TRY(auto folder, HfFolder::open(path));
      return std::unique_ptr<WeightFile>(std::make_unique<HfFolder>(std::move(folder)));
    }
    LUNA_TRY(auto folder, ShardFolder::open(path));
    return std::unique_ptr<WeightFile>(std::make_unique<ShardFolder>(std::move(folder)));
  }
  LUNA_TRY(auto mapped, MappedFile::open(path));
  const auto bytes = mapped.bytes();
  // A safetensors file begins with the length of its header and '{'; everything else is GGUF or
  // refused by its magic.
  const bool is_safetensors =
      path.extension() == ".safetensors" ||
      (bytes.size() > 8 && bytes[8] == std::byte{'{'} && bytes[0] != std::byte{'G'});
  if (is_safetensors) {
    auto file = SafetensorsFile::adopt(std::move(mapped));
    if (!file) return file.error().in(path.string());
    return std::unique_ptr<WeightFile>(std::make_unique<SafetensorsFile>(std::move(*file)));
  }
  auto file = GgufFile::adopt(std::move(mapped));
  if (!file) return file.error().in(path.string());
  return std::unique_ptr<WeightFile>(std::make_unique<GgufFile>(std::move(*file)));
}

Result<std::optional<std::uint64_t>> find_unsigned(const WeightFile& file, std::string_view key) {
  using Answer = std::optional<std::uint64_t>;
  const MetadataEntry* entry = file.find_metadata(key);
  if (entry == nullptr) return Answer{};
  if (const auto* value = std::get_if<std::uint64_t>(&entry->value)) return Answer{*value};
  if (const auto* value = std::get_if<std::int64_t>(&entry->value)) {
    if (*value >= 0) return Answer{static_cast<std::uint64_t>(*value)};
    return Error{Code::corrupt,
                 printable(key) + " = " + std::to_string(*value) + " at byte " +
                     std::to_string(entry->offset) + ": must not be negative"};
  }
  return wrong_type(*entry, "an integer");
}

Result<std::optional<double>> find_number(const WeightFile& file, std::string_view key) {
  using Answer = std::optional<double>;
  const MetadataEntry* entry = file.find_metadata(key);
  if (entry == nullptr) return Answer{};
  if (const auto* value = std::get_if<double>(&entry->value)) return Answer{*value};
  return wrong_type(*entry, "f32 or f64");
}

Result<std::optional<bool>> find_flag(const WeightFile& file, std::string_view key) {
  using Answer = std::optional<bool>;
  const MetadataEntry* entry = file.find_metadata(key);
  if (entry == nullptr) return Answer{};
  if (const auto* value = std::get_if<bool>(&entry->value)) return Answer{*value};
  return wrong_type(*entry, "bool");
}

Result<std::optional<std::string_view>> find_text(const WeightFile& file, std::string_view key) {
  using Answer = std::optional<std::string_view>;
  const MetadataEntry* entry = file.find_metadata(key);
  if (entry == nullptr) return Answer{};
  if (const auto* value = std::get_if<std::string_view>(&entry->value)) return Answer{*value};
  return wrong_type(*entry, "string");
}

Result<std::optional<MetadataArray>> find_array(const WeightFile& file, std::string_view key) {
  using Answer = std::optional<MetadataArray>;
  const MetadataEntry* entry = file.find_metadata(key);
  if (entry == nullptr) return Answer{};
  if (const auto* value = std::get_if<MetadataArray>(&entry->value)) return Answer{*value};
  return wrong_type(*entry, "array");
}

Result<std::vector<std::string_view>> strings_of(const MetadataArray& array, std::string_view key) {
  if (array.element != ValueType::string) return wrong_element(key, array, "string");
  std::vector<std::string_view> strings;
  strings.reserve(array.n_elements);
  std::span<const std::byte> rest = array.bytes;
  for (std::uint64_t i = 0; i < array.n_elements; ++i) {
    const auto n = load<std::uint64_t>(rest.data());
    strings.emplace_back(reinterpret_cast<const char*>(rest.data()) + 8, n);
    rest = rest.subspan(8 + n);
  }
  return strings;
}

Result<std::vector<std::int64_t>> integers_of(const MetadataArray& array, std::string_view key) {
  std::vector<std::int64_t> numbers;
  const auto read = [&]<typename T>(T /*type*/) {
    numbers.reserve(array.n_elements);
    for (std::uint64_t i = 0; i < array.n_elements; ++i)
      numbers.push_back(static_cast<std::int64_t>(load<T>(array.bytes.data() + i * sizeof(T))));
  };
  switch (array.element) {
    case ValueType::u8:
      read(std::uint8_t{});
      break;
    case ValueType::i8:
      read(std::int8_t{});
      break;
    case ValueType::u16:
      read(std::uint16_t{});
      break;
    case ValueType::i16:
      read(std::int16_t{});
      break;
    case ValueType::u32:
      read(std::uint32_t{});
      break;
    case ValueType::i32:
      read(std::int32_t{});
      break;
    case ValueType::i64:
      read(std::int64_t{});
      break;
    default:
      return wrong_element(key, array, "an integer type");
  }
  return numbers;
}

}  // namespace luna::model
