#include "core/model/gguf_writer.hpp"

#include "core/base/units.hpp"
#include "core/model/gguf_types.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace luna::model {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kNameBytesMax = 65535;   // the specification's bound of a key
constexpr std::size_t kRankMax = 4;            // GGML_MAX_DIMS
constexpr std::uint64_t kAlignmentMax = kMiB;  // as the reader has it
constexpr std::string_view kAlignmentKey = "general.alignment";

void put_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  const std::size_t at = out.size();
  out.resize(at + bytes.size());
  if (!bytes.empty()) std::memcpy(out.data() + at, bytes.data(), bytes.size());
}

template <typename T>
void put(std::vector<std::byte>& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  put_bytes(out, std::as_bytes(std::span(&value, 1)));
}

void put_text(std::vector<std::byte>& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  put_bytes(out, std::as_bytes(std::span(text.data(), text.size())));
}

Error refused(std::string_view what, std::string_view name, std::string_view why) {
  // A name is outside data of any length.
  return Error{Code::invalid_argument,
               std::string(what) + " " + printable(name.substr(0, 100)) + ": " + std::string(why)};
}

Result<void> check_name(std::string_view what, std::string_view name) {
  if (!name.empty() && name.size() <= kNameBytesMax) return {};
  return refused(what,
                 name,
                 "a name of " + std::to_string(name.size()) + " bytes, allowed are 1.." +
                     std::to_string(kNameBytesMax));
}

/// Writes integers in the width of their type; false where the value is none of that type.
class ValueWriter {
 public:
  ValueWriter(std::vector<std::byte>& out, ValueType type) : out_(out), type_(type) {}

  bool operator()(std::uint64_t value) const {
    switch (type_) {
      case ValueType::u8:
        return narrow<std::uint8_t>(value);
      case ValueType::u16:
        return narrow<std::uint16_t>(value);
      case ValueType::u32:
        return narrow<std::uint32_t>(value);
      case ValueType::u64:
        return narrow<std::uint64_t>(value);
      default:
        return false;
    }
  }
  bool operator()(std::int64_t value) const {
    switch (type_) {
      case ValueType::i8:
        return narrow<std::int8_t>(value);
      case ValueType::i16:
        return narrow<std::int16_t>(value);
      case ValueType::i32:
        return narrow<std::int32_t>(value);
      case ValueType::i64:
        return narrow<std::int64_t>(value);
      default:
        return false;
    }
  }
  bool operator()(double value) const {
    if (type_ == ValueType::f32) put(out_, static_cast<float>(value));
    if (type_ == ValueType::f64) put(out_, value);
    return type_ == ValueType::f32 || type_ == ValueType::f64;
  }
  bool operator()(bool value) const {
    put<std::uint8_t>(out_, value ? 1 : 0);
    return type_ == ValueType::boolean;
  }
  bool operator()(std::string_view value) const {
    put_text(out_, value);
    return type_ == ValueType::string;
  }
  bool operator()(const MetadataArray& array) const {
    put(out_, static_cast<std::uint32_t>(array.element));
    put(out_, array.n_elements);
    put_bytes(out_, array.bytes);
    return type_ == ValueType::array;
  }

 private:
  template <typename T, typename Wide>
  bool narrow(Wide value) const {
    if (!std::in_range<T>(value)) return false;
    put(out_, static_cast<T>(value));
    return true;
  }

  std::vector<std::byte>& out_;
  const ValueType type_;
};

}  // namespace

Result<void> GgufLayout::begin_key(std::string_view key, ValueType type) {
  LUNA_TRY(check_name("key", key));
  if (!names_.insert("k" + std::string(key)).second) return refused("key", key, "added twice");
  put_text(keys_, key);
  put(keys_, static_cast<std::uint32_t>(type));
  ++n_keys_;
  return {};
}

Result<void> GgufLayout::set_alignment(const MetadataEntry& entry) {
  const auto* value = std::get_if<std::uint64_t>(&entry.value);
  if (entry.type != ValueType::u32 || value == nullptr || *value < 8 || *value > kAlignmentMax ||
      (*value & (*value - 1)) != 0) {
    return refused("key",
                   entry.key,
                   "must be a u32 and a power of two in 8.." + std::to_string(kAlignmentMax));
  }
  alignment_ = *value;
  return {};
}

Result<void> GgufLayout::add_key(const MetadataEntry& entry) {
  if (entry.key == kAlignmentKey) LUNA_TRY(set_alignment(entry));
  LUNA_TRY(begin_key(entry.key, entry.type));
  if (std::visit(ValueWriter(keys_, entry.type), entry.value)) return {};
  return refused(
      "key", entry.key, "a value that is no " + std::string(value_type_name(entry.type)));
}

Result<void> GgufLayout::add_text(std::string_view key, std::string_view text) {
  LUNA_TRY(begin_key(key, ValueType::string));
  put_text(keys_, text);
  return {};
}

Result<void> GgufLayout::add_count(std::string_view key, std::uint32_t count) {
  MetadataEntry entry;
  entry.key = key;
  entry.type = ValueType::u32;
  entry.value = std::uint64_t{count};
  return add_key(entry);
}

Result<void> GgufLayout::add_tensor(std::string_view name,
                                    std::uint32_t type,
                                    std::span<const std::uint64_t> dims) {
  LUNA_TRY(check_name("tensor", name));
  const GgufType* known = gguf_type_by_number(type);
  if (known == nullptr)
    return refused("tensor", name, "unknown tensor type " + std::to_string(type));
  if (dims.size() > kRankMax || std::ranges::find(dims, 0U) != dims.end()) {
    return refused(
        "tensor", name, "at most " + std::to_string(kRankMax) + " dimensions, none of them 0");
  }
  const auto n_bytes = gguf_tensor_bytes(*known, dims);
  if (!n_bytes) {
    return refused("tensor",
                   name,
                   "rows must be whole blocks of " + std::to_string(known->block_values) +
                       " values, and the size must fit 64 bits");
  }
  if (!names_.insert("t" + std::string(name)).second) return refused("tensor", name, "added twice");
  tensors_.push_back({std::string(name), type, {dims.begin(), dims.end()}, *n_bytes});
  return {};
}

std::uint64_t GgufLayout::n_header_bytes() const {
  std::uint64_t n = kMagic.size() + sizeof(kVersion) + 2 * sizeof(std::uint64_t) + keys_.size();
  for (const Tensor& tensor : tensors_) {
    n += sizeof(std::uint64_t) + tensor.name.size() + 2 * sizeof(std::uint32_t);
    n += (tensor.dims.size() + 1) * sizeof(std::uint64_t);
  }
  return tensors_.empty() ? n : round_up(n, alignment_);
}

std::vector<std::byte> GgufLayout::header() const {
  std::vector<std::byte> out;
  out.reserve(n_header_bytes());
  put_bytes(out, std::as_bytes(std::span(kMagic.data(), kMagic.size())));
  put(out, kVersion);
  put<std::uint64_t>(out, tensors_.size());
  put(out, n_keys_);
  put_bytes(out, keys_);
  std::uint64_t offset = 0;  // within the tensors' part
  for (const Tensor& tensor : tensors_) {
    put_text(out, tensor.name);
    put(out, static_cast<std::uint32_t>(tensor.dims.size()));
    for (std::size_t i = tensor.dims.size(); i-- > 0;)
      put(out, tensor.dims[i]);  // the file has the fastest first
    put(out, tensor.type);
    put(out, offset);
    offset = round_up(offset + tensor.n_bytes, alignment_);
  }
  out.resize(n_header_bytes());
  return out;
}

std::vector<GgufLayout::Place> GgufLayout::places() const {
  std::vector<Place> places;
  std::uint64_t offset = n_header_bytes();
  for (const Tensor& tensor : tensors_) {
    places.push_back({offset, tensor.n_bytes});
    offset = round_up(offset + tensor.n_bytes, alignment_);
  }
  return places;
}

Result<std::uint64_t> GgufLayout::n_file_bytes() const {
  std::uint64_t n = n_header_bytes();
  for (const Tensor& tensor : tensors_) {
    // The padding included, and that of a later sum: nothing may come near the end of 64 bits.
    if (__builtin_add_overflow(n, tensor.n_bytes, &n) ||
        n > std::numeric_limits<std::int64_t>::max() - kAlignmentMax)
      return refused("tensor", tensor.name, "with it the file's size does not fit 63 bits");
    n = round_up(n, alignment_);
  }
  return n;
}

GgufWriter::GgufWriter(const GgufLayout& layout, Sink sink)
    : alignment_(layout.alignment()),
      header_(layout.header()),
      places_(layout.places()),
      sink_(std::move(sink)) {}

Result<void> GgufWriter::write_header() {
  return sink_(header_);
}

Result<void> GgufWriter::append(std::span<const std::byte> piece) {
  if (tensor_idx_ == places_.size())
    return Error{Code::invalid_argument, "bytes behind the last tensor"};
  const std::uint64_t n_bytes = places_[tensor_idx_].n_bytes;
  if (piece.size() > n_bytes - n_written_) {
    return Error{Code::invalid_argument,
                 "tensor " + std::to_string(tensor_idx_) + ": " + std::to_string(piece.size()) +
                     " bytes where " + std::to_string(n_bytes - n_written_) + " are missing"};
  }
  LUNA_TRY(sink_(piece));
  n_written_ += piece.size();
  return n_written_ == n_bytes ? pad() : Result<void>{};
}

/// The tensor is whole: fills up to where the next begins.
Result<void> GgufWriter::pad() {
  const std::uint64_t end = places_[tensor_idx_].offset + places_[tensor_idx_].n_bytes;
  const std::vector<std::byte> zeros(round_up(end, alignment_) - end);
  ++tensor_idx_;
  n_written_ = 0;
  return zeros.empty() ? Result<void>{} : sink_(zeros);
}

Result<void> GgufWriter::finish() const {
  if (tensor_idx_ == places_.size()) return {};
  return Error{Code::invalid_argument,
               "tensor " + std::to_string(tensor_idx_) + ": " + std::to_string(n_written_) +
                   " of " + std::to_string(places_[tensor_idx_].n_bytes) + " bytes were written"};
}

}  // namespace luna::model
