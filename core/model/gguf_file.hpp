// The GGUF container, versions 2 and 3, little-endian.
#pragma once

#include "core/base/mapped_file.hpp"
#include "core/model/weight_file.hpp"

#include <unordered_map>

namespace luna::model {

/// A mapped GGUF file whose header and tables were checked. A resource: moved, never copied; owns
/// the mapping that its metadata and tensors point into.
class GgufFile final : public WeightFile {
 public:
  /// Maps a file and checks header, keys, tensor table and bounds; reads no weights. [start-up]
  ///
  /// Returns  the file; its tensors point into the mapping and live as long as it
  /// Errors   not_found; io; corrupt (field and offset); unsupported (version, byte order, parts)
  /// Cost     O(header), touches no weight page
  /// Source   GGUF specification, version 3 (docs/gguf.md of ggml-org/ggml)
  static Result<GgufFile> open(const std::filesystem::path& path);

  /// The same for a mapping that is taken over. Errors name no path.
  static Result<GgufFile> adopt(MappedFile mapped);
  /// The same for bytes that the caller lends and that outlive the file.
  static Result<GgufFile> parse(std::span<const std::byte> bytes);

  [[nodiscard]] std::uint32_t container() const override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::span<const MetadataEntry> metadata() const override { return metadata_; }
  [[nodiscard]] std::span<const TensorInfo> tensors() const override { return tensors_; }
  [[nodiscard]] const MetadataEntry* find_metadata(std::string_view key) const override;
  [[nodiscard]] const TensorInfo* find_tensor(std::string_view name) const override;
  Result<void> open_tensors(std::span<const std::string> /*names*/) override { return {}; }

  [[nodiscard]] std::uint32_t version() const { return version_; }
  [[nodiscard]] std::uint64_t alignment() const { return alignment_; }
  /// The whole file.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  friend class GgufParser;
  explicit GgufFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::optional<MappedFile> mapped_;  // absent where the caller lent the bytes
  std::span<const std::byte> bytes_;
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = 32;
  std::vector<MetadataEntry> metadata_;
  std::vector<TensorInfo> tensors_;
  // Keys are views of the vectors' strings: the vectors are complete before these are filled, and
  // moving a vector moves no element.
  std::unordered_map<std::string_view, std::size_t> metadata_idx_by_key_;
  std::unordered_map<std::string_view, std::size_t> tensor_idx_by_name_;
};

}  // namespace luna::model
