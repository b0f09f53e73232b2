// What the two containers of weights (GGUF, safetensors) have in common.
#pragma once

#include <luna/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace luna::model {

/// Types of metadata values; the numbers are GGUF's.
enum class ValueType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// "u32", "string" ... as messages name it.
std::string_view value_type_name(ValueType type);

/// An array as it lies in the file: its elements were checked, not copied.
struct MetadataArray {
  ValueType element = ValueType::u8;
  std::uint64_t n_elements = 0;
  std::span<const std::byte> bytes;
};

/// One key of a file. Strings and arrays point into the file's mapping.
struct MetadataEntry {
  std::string key;
  ValueType type = ValueType::u8;
  std::variant<std::uint64_t, std::int64_t, double, bool, std::string_view, MetadataArray> value;
  std::uint64_t offset = 0;  // of the value, bytes from the file's start
};

/// One tensor of a file. A value; `bytes` points into the file's mapping, and is empty while the
/// shard that holds the tensor is closed.
struct TensorInfo {
  std::string name;
  std::uint32_t type = 0;      // GGUF: ggml_type; safetensors: LUNA_DTYPE_*
  std::string_view type_name;  // "Q4_1", "BF16"; static storage
  std::uint32_t rank = 0;
  std::array<std::uint64_t, 4> dims{1, 1, 1, 1};  // [0, rank), slowest first
  std::uint64_t offset = 0;                       // bytes from the file's start
  std::uint64_t n_bytes = 0;
  std::span<const std::byte> bytes;

  [[nodiscard]] std::uint64_t n_elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

/// A checked container of weights: reading it further cannot leave the file. An interface; the
/// implementations own the mapping that all spans point into.
class WeightFile {
 public:
  virtual ~WeightFile() = default;

  /// LUNA_CONTAINER_*.
  [[nodiscard]] virtual std::uint32_t container() const = 0;
  /// "GGUF version 3, 24 keys, 272 tensors": for people.
  [[nodiscard]] virtual std::string description() const = 0;
  [[nodiscard]] virtual std::span<const MetadataEntry> metadata() const = 0;
  /// In the order of the file's table.
  [[nodiscard]] virtual std::span<const TensorInfo> tensors() const = 0;

  [[nodiscard]] virtual const MetadataEntry* find_metadata(std::string_view key) const = 0;
  [[nodiscard]] virtual const TensorInfo* find_tensor(std::string_view name) const = 0;
  /// The tensors that make a weight: the one of its name, or those over which its format spreads
  /// it, in the order of tensors(). Empty where there are none.
  [[nodiscard]] virtual std::vector<const TensorInfo*> parts_of(std::string_view name) const;
  /// The weights that a weight is made of, one below the other, where a file has them apart: the
  /// experts of a layer. Empty: it is not.
  [[nodiscard]] virtual std::vector<std::string> stack_of(std::string_view /*name*/) const {
    return {};
  }
  /// What the file itself calls it: for messages.
  [[nodiscard]] virtual std::string name_in_file(std::string_view name) const;

  /// Makes the bytes of these tensors readable, where a container keeps parts of itself closed
  /// until they are needed. Tensors that are not in the container are none of its business.
  /// Errors  of a part: not_found; io; corrupt, unsupported (shard, file, and what to do)
  virtual Result<void> open_tensors(std::span<const std::string> names) = 0;
};

/// Whether a path is a folder that holds a model: shards, or a Hugging Face folder.
bool is_model_folder(const std::filesystem::path& path);

/// Opens a file of either kind, told apart by its first bytes, a folder of shards, which has a
/// manifest.json, or one of Hugging Face's, which has a config.json. [start-up]
///
/// Returns  the file, header and tables checked; of a folder one shard is open, for its keys
/// Errors   not_found; io; corrupt (field and offset); unsupported
/// Cost     O(header), touches no weight page
Result<std::unique_ptr<WeightFile>> open_weight_file(const std::filesystem::path& path);

// Typed reading of metadata. Each answers nothing where the key is absent, and an Error naming key,
// type and offset where the value is of another type or range.
Result<std::optional<std::uint64_t>> find_unsigned(const WeightFile& file, std::string_view key);
Result<std::optional<double>> find_number(const WeightFile& file, std::string_view key);
Result<std::optional<bool>> find_flag(const WeightFile& file, std::string_view key);
Result<std::optional<std::string_view>> find_text(const WeightFile& file, std::string_view key);
Result<std::optional<MetadataArray>> find_array(const WeightFile& file, std::string_view key);

/// The strings of a checked array, in order.
/// Errors  corrupt: the elements are no strings
Result<std::vector<std::string_view>> strings_of(const MetadataArray& array, std::string_view key);
/// The integers of a checked array, in order.
/// Errors  corrupt: the elements are no integers
Result<std::vector<std::int64_t>> integers_of(const MetadataArray& array, std::string_view key);

/// `text` with control characters and broken UTF-8 written as \xNN: names come from outside.
std::string printable(std::string_view text);

}  // namespace luna::model
