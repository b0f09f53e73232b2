#include "core/model/safetensors_file.hpp"

#include "core/base/units.hpp"

#include <luna/abi/quant.h>

#include <boost/json.hpp>

#include <algorithm>
#include <cstring>

namespace luna::model {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // the reference's own bound
constexpr std::size_t kDepthMax = 8;                    // a right header has 4 levels
constexpr std::uint32_t kNoDtype = 0xFFFFFFFFu;         // sized, but of no type the runtime uses

struct Dtype {
  std::string_view name;
  std::uint32_t number;  // LUNA_DTYPE_*
  std::uint64_t n_bytes;
};

constexpr Dtype kDtypes[] = {
    {"F32", LUNA_DTYPE_F32, 4},
    {"F16", LUNA_DTYPE_F16, 2},
    {"BF16", LUNA_DTYPE_BF16, 2},
    {"I8", LUNA_DTYPE_I8, 1},
    {"U8", LUNA_DTYPE_U8, 1},
    {"I32", LUNA_DTYPE_I32, 4},
    {"U32", LUNA_DTYPE_U32, 4},
    {"F8_E4M3", LUNA_DTYPE_F8_E4M3, 1},
    {"F8_E5M2", LUNA_DTYPE_F8_E5M2, 1},
    {"F64", kNoDtype, 8},
    {"I64", kNoDtype, 8},
    {"U64", kNoDtype, 8},
    {"I16", kNoDtype, 2},
    {"U16", kNoDtype, 2},
    {"BOOL", kNoDtype, 1},
};

Error corrupt(std::string_view field, std::string_view why) {
  return Error{Code::corrupt, std::string(field) + ": " + std::string(why)};
}

/// A whole number of JSON that is not negative.
std::optional<std::uint64_t> as_unsigned(const json::value& value) {
  if (value.is_uint64()) return value.get_uint64();
  if (value.is_int64() && value.get_int64() >= 0)
    return static_cast<std::uint64_t>(value.get_int64());
  return std::nullopt;
}

}  // namespace

class SafetensorsParser {
 public:
  explicit SafetensorsParser(SafetensorsFile& file) : file_(file), bytes_(file.bytes_) {}

  Result<void> parse() {
    LUNA_TRY(read_header_length());
    LUNA_TRY(const json::value header, read_json());
    const json::object* table = header.if_object();
    if (table == nullptr) return corrupt("header at byte 8", "not a JSON object");
    for (const auto& [name, value] : *table) {
      if (name == "__metadata__") {
        LUNA_TRY(read_metadata(value));
      } else {
        LUNA_TRY(read_tensor(std::string_view(name.data(), name.size()), value));
      }
    }
    return check_order();
  }

 private:
  Result<void> read_header_length() {
    if (bytes_.size() < 8) {
      return corrupt("header length at byte 0",
                     "the file has only " + std::to_string(bytes_.size()) + " bytes");
    }
    std::memcpy(&n_header_, bytes_.data(), 8);
    if (n_header_ < 2 || n_header_ > kHeaderBytesMax || n_header_ > bytes_.size() - 8) {
      return corrupt("header length at byte 0",
                     std::to_string(n_header_) + ": must be in 2.." +
                         std::to_string(kHeaderBytesMax) + " and within the file of " +
                         std::to_string(bytes_.size()) + " bytes");
    }
    return {};
  }

  Result<json::value> read_json() {
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + 8, n_header_);
    json::parse_options options;
    options.max_depth = kDepthMax;
    json::error_code error;
    json::stream_parser parser(json::storage_ptr{}, options);
    try {
      parser.write(text.data(), text.size(), error);
      if (!error) parser.finish(error);
    } catch (const std::exception& e) {
      return corrupt("header at byte 8", std::string("not valid JSON: ") + e.what());
    }
    if (error) return corrupt("header at byte 8", "not valid JSON: " + error.message());
    json::value header = parser.release();
    // Boost.JSON keeps the last of two equal keys: count what the text holds instead.
    LUNA_TRY(check_duplicates(text, header));
    return header;
  }

  static Result<void> check_duplicates(std::string_view text, const json::value& header) {
    const json::object* table = header.if_object();
    if (table == nullptr) return {};
    const std::size_t n_names = count_top_level_keys(text);
    if (n_names != table->size()) {
      return corrupt("header at byte 8",
                     std::to_string(n_names) + " names, of which only " +
                         std::to_string(table->size()) + " differ: a name stands in it twice");
    }
    return {};
  }

  /// Keys of the outermost object of valid JSON text: its colons outside strings at depth 1.
  static std::size_t count_top_level_keys(std::string_view text) {
    std::size_t n = 0;
    int depth = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (in_string) {
        if (c == '\\') ++i;
        in_string = c != '"';
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        --depth;
      } else if (c == ':' && depth == 1) {
        ++n;
      }
    }
    return n;
  }

  Result<void> read_metadata(const json::value& value) {
    const json::object* texts = value.if_object();
    if (texts == nullptr) return corrupt("__metadata__", "not a JSON object");
    for (const auto& [key, text] : *texts) {
      if (!text.is_string()) return corrupt("__metadata__." + printable(key), "not a string");
      const json::string& from = text.get_string();
      file_.texts_.push_back(std::make_unique<const std::string>(from.data(), from.size()));
      MetadataEntry& entry = file_.metadata_.emplace_back();
      entry.key = std::string(key.data(), key.size());
      entry.type = ValueType::string;
      entry.value = std::string_view(*file_.texts_.back());
      entry.offset = 8;
    }
    return {};
  }

  Result<void> read_tensor(std::string_view name, const json::value& value) {
    const std::string field = "tensor " + printable(name);
    const json::object* entry = value.if_object();
    if (entry == nullptr) return corrupt(field, "not a JSON object");
    TensorInfo& tensor = file_.tensors_.emplace_back();
    tensor.name = name;
    LUNA_TRY(std::uint64_t n_bytes, read_dtype(field, *entry, tensor));
    LUNA_TRY(read_shape(field, *entry, tensor, n_bytes));
    return read_offsets(field, *entry, tensor, n_bytes);
  }

  /// Bytes of one element.
  static Result<std::uint64_t> read_dtype(const std::string& field,
                                          const json::object& entry,
                                          TensorInfo& tensor) {
    const json::value* value = entry.if_contains("dtype");
    if (value == nullptr || !value->is_string()) return corrupt(field + ".dtype", "not a string");
    const std::string_view name(value->get_string().data(), value->get_string().size());
    for (const Dtype& dtype : kDtypes) {
      if (dtype.name != name) continue;
      tensor.type = dtype.number;
      tensor.type_name = dtype.name;
      return dtype.n_bytes;
    }
    return corrupt(field + ".dtype", "unknown dtype \"" + printable(name) + "\"");
  }

  /// Multiplies `n_bytes` by the number of elements.
  static Result<void> read_shape(const std::string& field,
                                 const json::object& entry,
                                 TensorInfo& tensor,
                                 std::uint64_t& n_bytes) {
    const json::value* value = entry.if_contains("shape");
    const json::array* shape = value == nullptr ? nullptr : value->if_array();
    if (shape == nullptr) return corrupt(field + ".shape", "not a list");
    if (shape->size() > tensor.dims.size()) {
      return Error{
          Code::unsupported,
          field + ".shape: " + std::to_string(shape->size()) + " dimensions; Luna reads at most 4"};
    }
    tensor.rank = static_cast<std::uint32_t>(shape->size());
    for (std::size_t i = 0; i < shape->size(); ++i) {
      const auto dim = as_unsigned((*shape)[i]);
      if (!dim) return corrupt(field + ".shape", "a dimension is no whole number >= 0");
      tensor.dims[i] = *dim;
      if (__builtin_mul_overflow(n_bytes, *dim, &n_bytes))
        return corrupt(field + ".shape", "the size does not fit 64 bits");
    }
    return {};
  }

  Result<void> read_offsets(const std::string& field,
                            const json::object& entry,
                            TensorInfo& tensor,
                            std::uint64_t n_bytes) const {
    const json::value* value = entry.if_contains("data_offsets");
    const json::array* offsets = value == nullptr ? nullptr : value->if_array();
    if (offsets == nullptr || offsets->size() != 2)
      return corrupt(field + ".data_offsets", "not a list of two numbers");
    const auto begin = as_unsigned((*offsets)[0]);
    const auto end = as_unsigned((*offsets)[1]);
    if (!begin || !end) return corrupt(field + ".data_offsets", "no whole numbers >= 0");
    const std::uint64_t n_data = bytes_.size() - 8 - n_header_;
    const std::string range = "[" + std::to_string(*begin) + ", " + std::to_string(*end) + "]";
    if (*begin > *end || *end > n_data) {
      return corrupt(field + ".data_offsets",
                     range + " is not within the " + std::to_string(n_data) + " bytes of data");
    }
    if (*end - *begin != n_bytes) {
      return corrupt(
          field + ".data_offsets",
          range + " does not hold the " + std::to_string(n_bytes) + " bytes of dtype and shape");
    }
    tensor.offset = 8 + n_header_ + *begin;
    tensor.bytes = bytes_.subspan(tensor.offset, n_bytes);
    tensor.n_bytes = n_bytes;
    return {};
  }

  /// The format allows neither holes nor overlaps nor bytes after the last tensor.
  Result<void> check_order() {
    auto& tensors = file_.tensors_;
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
      return a.offset != b.offset ? a.offset < b.offset : a.bytes.size() < b.bytes.size();
    });
    std::uint64_t position = 8 + n_header_;
    for (const TensorInfo& tensor : tensors) {
      if (tensor.offset != position) {
        return corrupt(
            "tensor " + printable(tensor.name) + ".data_offsets",
            tensor.offset < position ? "overlaps the tensor before it" : "a hole lies before it");
      }
      position += tensor.bytes.size();
    }
    if (position != bytes_.size()) {
      return corrupt(
          "data",
          std::to_string(bytes_.size() - position) + " bytes after the last tensor belong to none");
    }
    for (std::size_t i = 0; i < tensors.size(); ++i)
      file_.tensor_idx_by_name_.emplace(tensors[i].name, i);
    return {};
  }

  SafetensorsFile& file_;
  const std::span<const std::byte> bytes_;
  std::uint64_t n_header_ = 0;
};

Result<SafetensorsFile> SafetensorsFile::adopt(MappedFile mapped) {
  LUNA_TRY(auto file, parse(mapped.bytes()));
  file.mapped_ = std::move(mapped);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes) {
  SafetensorsFile file(bytes);
  LUNA_TRY(SafetensorsParser(file).parse());
  return file;
}

std::uint32_t SafetensorsFile::container() const {
  return LUNA_CONTAINER_SAFETENSORS;
}

std::string SafetensorsFile::description() const {
  return "safetensors, " + std::to_string(metadata_.size()) + " keys, " +
         std::to_string(tensors_.size()) + " tensors";
}

const MetadataEntry* SafetensorsFile::find_metadata(std::string_view key) const {
  const auto found = std::find_if(metadata_.begin(),
                                  metadata_.end(),
                                  [&](const MetadataEntry& entry) { return entry.key == key; });
  return found == metadata_.end() ? nullptr : &*found;
}

const TensorInfo* SafetensorsFile::find_tensor(std::string_view name) const {
  const auto found = tensor_idx_by_name_.find(name);
  return found == tensor_idx_by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace luna::model
