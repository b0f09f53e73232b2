// The safetensors container: a JSON header of names, types, shapes and offsets, then the bytes.
#pragma once

#include "core/base/mapped_file.hpp"
#include "core/model/weight_file.hpp"

#include <unordered_map>

namespace luna::model {

/// A mapped safetensors file whose header was checked. A resource: moved, never copied; owns the
/// mapping that its tensors point into.
class SafetensorsFile final : public WeightFile {
 public:
  /// Checks header and offsets; reads no weights. Errors name no path. [start-up]
  ///
  /// Returns  the file; tensors in the order of their bytes, all bytes of the file covered
  /// Errors   corrupt (name and field); unsupported (dtype, rank)
  /// Cost     O(header), touches no weight page
  /// Source   the format's README (github.com/huggingface/safetensors)
  static Result<SafetensorsFile> adopt(MappedFile mapped);
  /// The same for bytes that the caller lends and that outlive the file.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes);

  [[nodiscard]] std::uint32_t container() const override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::span<const MetadataEntry> metadata() const override { return metadata_; }
  [[nodiscard]] std::span<const TensorInfo> tensors() const override { return tensors_; }
  [[nodiscard]] const MetadataEntry* find_metadata(std::string_view key) const override;
  [[nodiscard]] const TensorInfo* find_tensor(std::string_view name) const override;
  Result<void> open_tensors(std::span<const std::string> /*names*/) override { return {}; }

 private:
  friend class SafetensorsParser;
  explicit SafetensorsFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::optional<MappedFile> mapped_;  // absent where the caller lent the bytes
  std::span<const std::byte> bytes_;
  // Texts of __metadata__, which the header writes with JSON escapes; entries point into them.
  std::vector<std::unique_ptr<const std::string>> texts_;
  std::vector<MetadataEntry> metadata_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_idx_by_name_;
};

}  // namespace luna::model
