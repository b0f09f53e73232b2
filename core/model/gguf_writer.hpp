// Writes GGUF files, version 3, little-endian.
#pragma once

#include "core/model/weight_file.hpp"

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace luna::model {

/// Keys and tensor table of a file that is going to be written. What it accepts, GgufFile reads
/// back: names, types, shapes and sizes are checked as they are added. A value.
class GgufLayout {
 public:
  /// A tensor's place in the file.
  struct Place {
    std::uint64_t offset = 0;  // bytes from the file's start
    std::uint64_t n_bytes = 0;
  };

  /// Adds a key with its value; "general.alignment" sets the alignment of the tensors.
  /// Errors  invalid_argument: empty, too long or doubled key; a value that is not of its type
  Result<void> add_key(const MetadataEntry& entry);
  Result<void> add_text(std::string_view key, std::string_view text);
  /// As u32, which is how counts stand in GGUF files.
  Result<void> add_count(std::string_view key, std::uint32_t count);

  /// Adds a tensor behind those that are there.
  ///
  /// type     ggml_type
  /// dims     slowest first, none of them 0
  /// Errors   invalid_argument: name, rank, shape or type that no file may have, or a doubled name
  Result<void> add_tensor(std::string_view name,
                          std::uint32_t type,
                          std::span<const std::uint64_t> dims);

  /// Everything before the tensors' bytes, padding included.
  [[nodiscard]] std::vector<std::byte> header() const;
  /// Where the tensors lie, in the order in which they were added.
  [[nodiscard]] std::vector<Place> places() const;
  /// Of the whole file.
  /// Errors  invalid_argument: more than 64 bits can say
  [[nodiscard]] Result<std::uint64_t> n_file_bytes() const;
  [[nodiscard]] std::uint64_t alignment() const { return alignment_; }

 private:
  struct Tensor {
    std::string name;
    std::uint32_t type = 0;
    std::vector<std::uint64_t> dims;  // slowest first
    std::uint64_t n_bytes = 0;
  };
  Result<void> begin_key(std::string_view key, ValueType type);
  Result<void> set_alignment(const MetadataEntry& entry);
  [[nodiscard]] std::uint64_t n_header_bytes() const;

  std::uint64_t alignment_ = 32;
  std::uint64_t n_keys_ = 0;
  std::vector<std::byte> keys_;  // as they stand in the file
  std::vector<Tensor> tensors_;
  std::unordered_set<std::string> names_;  // of keys and, apart by their first byte, of tensors
};

/// Writes a file by its layout: header, then the tensors' bytes, which may come in pieces of any
/// size; padding is the writer's business. The layout outlives it.
class GgufWriter {
 public:
  /// Takes the file's bytes from its start to its end.
  using Sink = std::function<Result<void>(std::span<const std::byte>)>;

  GgufWriter(const GgufLayout& layout, Sink sink);

  Result<void> write_header();
  /// The next bytes of the tensors, in the layout's order. A piece ends where its tensor ends.
  /// Errors  invalid_argument: the piece reaches past the tensor; what the sink answers
  Result<void> append(std::span<const std::byte> piece);
  /// Errors  invalid_argument: bytes of a tensor are missing
  [[nodiscard]] Result<void> finish() const;

 private:
  Result<void> pad();

  const std::uint64_t alignment_;
  const std::vector<std::byte> header_;
  const std::vector<GgufLayout::Place> places_;
  Sink sink_;
  std::size_t tensor_idx_ = 0;
  std::uint64_t n_written_ = 0;  // of that tensor
};

}  // namespace luna::model
