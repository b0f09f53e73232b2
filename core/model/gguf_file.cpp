#include "core/model/gguf_file.hpp"

#include "core/base/units.hpp"
#include "core/model/gguf_types.hpp"

#include <luna/abi/quant.h>

#include <algorithm>
#include <cstring>

namespace luna::model {
namespace {

using Magic = std::array<char, 4>;

constexpr std::uint32_t kNameBytesMax = 65535;  // the specification's bound of a key
constexpr std::uint32_t kRankMax = 4;           // GGML_MAX_DIMS
constexpr int kArrayDepthMax = 8;               // arrays of arrays; real files have none
constexpr std::uint64_t kAlignmentMax = kMiB;   // a page of any kind; writers use 32
// Least bytes of an entry: empty key, type, one byte of value; empty name, rank, type, offset.
constexpr std::uint64_t kEntryBytesMin = 8 + 4 + 1;
constexpr std::uint64_t kTensorBytesMin = 8 + 4 + 4 + 8;

/// Bytes of a scalar of this type; 0 for strings and arrays.
std::uint64_t scalar_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64:
      return 8;
    case ValueType::string:
    case ValueType::array:
      return 0;
  }
  return 0;
}

}  // namespace

/// Walks the header once. Every read is checked against the bytes that are left, so a count is
/// never believed before the file was found long enough for it.
class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.bytes_) {}

  Result<void> parse() {
    LUNA_TRY(read_header());
    LUNA_TRY(read_metadata());
    LUNA_TRY(index_metadata());
    LUNA_TRY(check_special_keys());
    LUNA_TRY(read_tensors());
    LUNA_TRY(place_tensors());
    return check_overlap();
  }

 private:
  [[nodiscard]] std::uint64_t left() const { return bytes_.size() - position_; }

  /// A failure of `field`, at the place that was read last.
  [[nodiscard]] Error corrupt(std::string_view field, std::string_view why) const {
    return Error{
        Code::corrupt,
        std::string(field) + " at byte " + std::to_string(field_at_) + ": " + std::string(why)};
  }

  template <typename T>
  Result<T> read(std::string_view field) {
    field_at_ = position_;
    if (left() < sizeof(T)) {
      return corrupt(field,
                     "the file ends after " + std::to_string(left()) + " of " +
                         std::to_string(sizeof(T)) + " bytes");
    }
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  Result<std::string_view> read_string(std::string_view field, std::uint64_t n_bytes_max) {
    LUNA_TRY(const auto n, read<std::uint64_t>(field));
    if (n > n_bytes_max) {
      return corrupt(field,
                     "a length of " + std::to_string(n) + " bytes, allowed are " +
                         std::to_string(n_bytes_max));
    }
    if (n > left()) {
      return corrupt(field,
                     "a length of " + std::to_string(n) + " bytes, the file has " +
                         std::to_string(left()) + " left");
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + position_, n);
    position_ += n;
    return text;
  }

  Result<void> read_header() {
    LUNA_TRY(const auto magic, read<Magic>("magic"));
    const std::string_view text(magic.data(), 4);
    if (text == "FUGG") {
      return Error{
          Code::unsupported,
          "magic at byte 0 is FUGG: a big-endian GGUF file; Luna reads little-endian ones"};
    }
    if (text != "GGUF") return corrupt("magic", "\"" + printable(text) + "\", expected \"GGUF\"");
    LUNA_TRY(const auto version, read<std::uint32_t>("version"));
    if (version != 2 && version != 3) {
      const bool is_swapped = (version & 0xFFFFu) == 0 && version != 0;
      return Error{Code::unsupported,
                   "version at byte 4 is " + std::to_string(version) +
                       (is_swapped ? ": a big-endian GGUF file; Luna reads little-endian ones"
                                   : ": Luna reads GGUF versions 2 and 3")};
    }
    file_.version_ = version;
    LUNA_TRY(const auto n_tensors, read_count("tensor_count", kTensorBytesMin));
    LUNA_TRY(const auto n_entries, read_count("metadata_kv_count", kEntryBytesMin));
    n_tensors_ = n_tensors;
    n_entries_ = n_entries;
    return {};
  }

  /// A count of things that take at least `bytes_each` of the rest of the file.
  Result<std::uint64_t> read_count(std::string_view field, std::uint64_t bytes_each) {
    LUNA_TRY(const auto n, read<std::uint64_t>(field));
    if (n > left() / bytes_each) {
      return corrupt(
          field,
          std::to_string(n) + ", but the file has only " + std::to_string(left()) + " bytes left");
    }
    return n;
  }

  Result<void> read_metadata() {
    file_.metadata_.reserve(n_entries_);
    for (std::uint64_t i = 0; i < n_entries_; ++i) {
      const std::string field = "key " + std::to_string(i);
      LUNA_TRY(const auto key, read_string(field, kNameBytesMax));
      if (key.empty()) return corrupt(field, "empty");
      MetadataEntry& entry = file_.metadata_.emplace_back();
      entry.key = key;
      LUNA_TRY(const auto type, read_type(printable(key)));
      entry.type = type;
      entry.offset = position_;
      LUNA_TRY(read_value(entry));
    }
    return {};
  }

  Result<ValueType> read_type(const std::string& field) {
    LUNA_TRY(const auto number, read<std::uint32_t>(field));
    if (number > static_cast<std::uint32_t>(ValueType::f64))
      return corrupt(field, "unknown value type " + std::to_string(number));
    return static_cast<ValueType>(number);
  }

  template <typename T, typename Wide>
  Result<void> read_scalar(MetadataEntry& entry) {
    LUNA_TRY(const auto value, read<T>(printable(entry.key)));
    entry.value = static_cast<Wide>(value);
    return {};
  }

  Result<void> read_value(MetadataEntry& entry) {
    switch (entry.type) {
      case ValueType::u8:
        return read_scalar<std::uint8_t, std::uint64_t>(entry);
      case ValueType::u16:
        return read_scalar<std::uint16_t, std::uint64_t>(entry);
      case ValueType::u32:
        return read_scalar<std::uint32_t, std::uint64_t>(entry);
      case ValueType::u64:
        return read_scalar<std::uint64_t, std::uint64_t>(entry);
      case ValueType::i8:
        return read_scalar<std::int8_t, std::int64_t>(entry);
      case ValueType::i16:
        return read_scalar<std::int16_t, std::int64_t>(entry);
      case ValueType::i32:
        return read_scalar<std::int32_t, std::int64_t>(entry);
      case ValueType::i64:
        return read_scalar<std::int64_t, std::int64_t>(entry);
      case ValueType::f32:
        return read_scalar<float, double>(entry);
      case ValueType::f64:
        return read_scalar<double, double>(entry);
      case ValueType::boolean:
        return read_flag(entry);
      case ValueType::string: {
        LUNA_TRY(const auto text, read_string(printable(entry.key), bytes_.size()));
        entry.value = text;
        return {};
      }
      case ValueType::array: {
        LUNA_TRY(const auto array, read_array(printable(entry.key), 1));
        entry.value = array;
        return {};
      }
    }
    return {};
  }

  Result<void> read_flag(MetadataEntry& entry) {
    const std::string field = printable(entry.key);
    LUNA_TRY(const auto value, read<std::uint8_t>(field));
    if (value > 1) return corrupt(field, "a bool of value " + std::to_string(value));
    entry.value = value == 1;
    return {};
  }

  Result<MetadataArray> read_array(const std::string& field, int depth) {
    LUNA_TRY(const auto element, read_type(field));
    // Each element takes bytes: a string its length, an array its type and count.
    const std::uint64_t bytes_each = element == ValueType::string  ? 8
                                     : element == ValueType::array ? 12
                                                                   : scalar_bytes(element);
    LUNA_TRY(const auto n, read_count(field, bytes_each));
    const std::uint64_t first = position_;
    if (element == ValueType::string) {
      for (std::uint64_t i = 0; i < n; ++i)
        LUNA_TRY(read_string(field, bytes_.size()));
    } else if (element == ValueType::array) {
      if (depth == kArrayDepthMax) {
        return corrupt(field, "arrays nested deeper than " + std::to_string(kArrayDepthMax));
      }
      for (std::uint64_t i = 0; i < n; ++i)
        LUNA_TRY(read_array(field, depth + 1));
    } else {
      position_ += n * bytes_each;
    }
    return MetadataArray{element, n, bytes_.subspan(first, position_ - first)};
  }

  Result<void> index_metadata() {
    for (std::size_t i = 0; i < file_.metadata_.size(); ++i) {
      const MetadataEntry& entry = file_.metadata_[i];
      field_at_ = entry.offset;
      if (!file_.metadata_idx_by_key_.emplace(entry.key, i).second)
        return corrupt(printable(entry.key), "the key stands in the file twice");
    }
    return {};
  }

  /// Keys that say how the rest of the file is to be read.
  Result<void> check_special_keys() {
    if (const MetadataEntry* entry = file_.find_metadata("general.alignment")) {
      field_at_ = entry->offset;
      const auto* value = std::get_if<std::uint64_t>(&entry->value);
      if (value == nullptr || entry->type != ValueType::u32) {
        return corrupt("general.alignment",
                       "of type " + std::string(value_type_name(entry->type)) + ", expected u32");
      }
      if (*value < 8 || *value > kAlignmentMax || (*value & (*value - 1)) != 0) {
        return corrupt("general.alignment",
                       std::to_string(*value) + ": must be a power of two in 8.." +
                           std::to_string(kAlignmentMax));
      }
      file_.alignment_ = *value;
    }
    LUNA_TRY(const auto n_parts, find_unsigned(file_, "split.count"));
    if (n_parts.value_or(1) > 1) {
      return Error{Code::unsupported,
                   "split.count = " + std::to_string(*n_parts) +
                       ": a model in several files; join them first (llama-gguf-split --merge)"};
    }
    return {};
  }

  Result<void> read_tensors() {
    if (n_tensors_ > left() / kTensorBytesMin) {
      field_at_ = 8;
      return corrupt("tensor_count",
                     std::to_string(n_tensors_) + ", but only " + std::to_string(left()) +
                         " bytes follow the keys");
    }
    file_.tensors_.reserve(n_tensors_);
    for (std::uint64_t i = 0; i < n_tensors_; ++i)
      LUNA_TRY(read_tensor(i));
    for (std::size_t i = 0; i < file_.tensors_.size(); ++i) {
      const TensorInfo& tensor = file_.tensors_[i];
      if (!file_.tensor_idx_by_name_.emplace(tensor.name, i).second) {
        return corrupt("tensor " + printable(tensor.name), "the name stands in the file twice");
      }
    }
    return {};
  }

  Result<void> read_tensor(std::uint64_t index) {
    const std::string place = "tensor " + std::to_string(index);
    LUNA_TRY(const auto name, read_string(place + " name", kNameBytesMax));
    if (name.empty()) return corrupt(place + " name", "empty");
    TensorInfo& tensor = file_.tensors_.emplace_back();
    tensor.name = name;
    const std::string field = "tensor " + printable(name);
    LUNA_TRY(const auto rank, read<std::uint32_t>(field + " n_dimensions"));
    if (rank > kRankMax) {
      return corrupt(field + " n_dimensions",
                     std::to_string(rank) + ", allowed are at most " + std::to_string(kRankMax));
    }
    tensor.rank = rank;
    for (std::uint32_t i = 0; i < rank; ++i) {
      LUNA_TRY(const auto dim, read<std::uint64_t>(field + " dimensions"));
      if (dim == 0) return corrupt(field + " dimensions", "a dimension of 0");
      tensor.dims[rank - 1 - i] = dim;  // the file has the fastest first
    }
    LUNA_TRY(const auto type, read<std::uint32_t>(field + " type"));
    const GgufType* known = gguf_type_by_number(type);
    if (known == nullptr) {
      return corrupt(field + " type", "unknown tensor type " + std::to_string(type));
    }
    tensor.type = type;
    tensor.type_name = known->name;
    LUNA_TRY(const auto offset, read<std::uint64_t>(field + " offset"));
    if (offset % file_.alignment_ != 0) {
      return corrupt(
          field + " offset",
          std::to_string(offset) + " is no multiple of " + std::to_string(file_.alignment_));
    }
    tensor.offset = offset;  // within the data section until place_tensors()
    return {};
  }

  /// Bytes of a tensor, or an error where the product does not fit.
  Result<std::uint64_t> tensor_bytes(const TensorInfo& tensor) const {
    const GgufType& type = *gguf_type_by_number(tensor.type);
    const std::string field = "tensor " + printable(tensor.name);
    const std::uint64_t n_cols = tensor.rank == 0 ? 1 : tensor.dims[tensor.rank - 1];
    if (n_cols % type.block_values != 0) {
      return Error{Code::corrupt,
                   field + " dimensions: a row of " + std::to_string(n_cols) +
                       " values is no whole number of " + std::string(type.name) + " blocks of " +
                       std::to_string(type.block_values)};
    }
    const auto n_bytes = gguf_tensor_bytes(type, {tensor.dims.data(), tensor.rank});
    if (!n_bytes) {
      return Error{Code::corrupt, field + " dimensions: the size does not fit 64 bits"};
    }
    return *n_bytes;
  }

  Result<void> place_tensors() {
    if (file_.tensors_.empty()) return {};
    const std::uint64_t base = round_up<std::uint64_t>(position_, file_.alignment_);
    const std::uint64_t n_data = base < bytes_.size() ? bytes_.size() - base : 0;
    for (TensorInfo& tensor : file_.tensors_) {
      LUNA_TRY(const auto n_bytes, tensor_bytes(tensor));
      if (n_bytes > n_data || tensor.offset > n_data - n_bytes) {
        return Error{Code::corrupt,
                     "tensor " + printable(tensor.name) + " offset: " + std::to_string(n_bytes) +
                         " bytes at " + std::to_string(tensor.offset) +
                         " of the data section, which begins at byte " + std::to_string(base) +
                         " and has " + std::to_string(n_data) + " bytes: the file is cut short"};
      }
      tensor.offset += base;
      tensor.bytes = bytes_.subspan(tensor.offset, n_bytes);
      tensor.n_bytes = n_bytes;
    }
    return {};
  }

  [[nodiscard]] Result<void> check_overlap() const {
    std::vector<const TensorInfo*> by_offset;
    by_offset.reserve(file_.tensors_.size());
    for (const TensorInfo& tensor : file_.tensors_)
      by_offset.push_back(&tensor);
    std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
      return a->offset < b->offset;
    });
    for (std::size_t i = 1; i < by_offset.size(); ++i) {
      const TensorInfo& before = *by_offset[i - 1];
      const TensorInfo& tensor = *by_offset[i];
      if (tensor.offset < before.offset + before.bytes.size()) {
        return Error{Code::corrupt,
                     "tensor " + printable(tensor.name) + " offset: at byte " +
                         std::to_string(tensor.offset) + " it overlaps tensor " +
                         printable(before.name)};
      }
    }
    return {};
  }

  GgufFile& file_;
  const std::span<const std::byte> bytes_;
  std::uint64_t position_ = 0;
  std::uint64_t field_at_ = 0;
  std::uint64_t n_tensors_ = 0;
  std::uint64_t n_entries_ = 0;
};

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  LUNA_TRY(auto mapped, MappedFile::open(path));
  auto file = adopt(std::move(mapped));
  if (!file) return file.error().in(path.string());
  return file;
}

Result<GgufFile> GgufFile::adopt(MappedFile mapped) {
  LUNA_TRY(auto file, parse(mapped.bytes()));
  file.mapped_ = std::move(mapped);
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes) {
  GgufFile file(bytes);
  LUNA_TRY(GgufParser(file).parse());
  return file;
}

std::uint32_t GgufFile::container() const {
  return LUNA_CONTAINER_GGUF;
}

std::string GgufFile::description() const {
  return "GGUF version " + std::to_string(version_) + ", " + std::to_string(metadata_.size()) +
         " keys, " + std::to_string(tensors_.size()) + " tensors, alignment " +
         std::to_string(alignment_);
}

const MetadataEntry* GgufFile::find_metadata(std::string_view key) const {
  const auto found = metadata_idx_by_key_.find(key);
  return found == metadata_idx_by_key_.end() ? nullptr : &metadata_[found->second];
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_idx_by_name_.find(name);
  return found == tensor_idx_by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace luna::model
