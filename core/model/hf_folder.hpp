// A Hugging Face folder as one model file: config.json, safetensors in one file or several.
#pragma once

#include "core/model/hf_config.hpp"
#include "core/model/safetensors_file.hpp"

#include <filesystem>
#include <map>
#include <unordered_map>

namespace luna::model {

inline constexpr std::string_view kHfConfigName = "config.json";
inline constexpr std::string_view kHfGenerationName = "generation_config.json";
inline constexpr std::string_view kHfWeightsName = "model.safetensors";
inline constexpr std::string_view kHfIndexName = "model.safetensors.index.json";

/// Which file of the folder holds a tensor, by the tensor's name.
using HfWeightMap = std::map<std::string, std::string>;

/// Reads the text of a `model.safetensors.index.json`.
/// Errors  corrupt: no JSON, no weight_map, a file that is not plainly a name within the folder
Result<HfWeightMap> parse_hf_index(std::string_view text);

/// Whether a folder is one of Hugging Face's: it has a config.json.
bool is_hf_folder(const std::filesystem::path& folder);

/// The tensors of a folder under our names, its configuration as metadata. What a format spreads
/// over entries ("blk.0.attn_q.qweight", "blk.0.attn_q.scales") stays spread: parts_of() has them
/// together. A resource: moved, never copied; owns the mappings that tensors point into.
class HfFolder final : public WeightFile {
 public:
  /// Reads configuration and index, maps all files and checks their headers and that what the
  /// index names is there. Errors name the file. [start-up]
  ///
  /// Errors  not_found: config.json, or a file of weights; corrupt, unsupported: file and field
  /// Cost    O(headers), touches no weight page
  static Result<HfFolder> open(const std::filesystem::path& folder);

  [[nodiscard]] std::uint32_t container() const override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::span<const MetadataEntry> metadata() const override {
    return config_.metadata;
  }
  [[nodiscard]] std::span<const TensorInfo> tensors() const override { return tensors_; }
  [[nodiscard]] const MetadataEntry* find_metadata(std::string_view key) const override;
  [[nodiscard]] const TensorInfo* find_tensor(std::string_view name) const override;
  [[nodiscard]] std::vector<const TensorInfo*> parts_of(std::string_view name) const override;
  [[nodiscard]] std::vector<std::string> stack_of(std::string_view name) const override;
  [[nodiscard]] std::string name_in_file(std::string_view name) const override;
  Result<void> open_tensors(std::span<const std::string> /*names*/) override { return {}; }

 private:
  explicit HfFolder(HfConfig config) : config_(std::move(config)) {}
  Result<void> open_files(const std::filesystem::path& folder);
  Result<void> open_file(const std::filesystem::path& path);
  Result<void> add_tensors(const SafetensorsFile& file, const std::string& file_name);
  void add_rope_factors(std::string_view name, const std::vector<float>& factors);
  static void set_values(TensorInfo& tensor, const std::vector<float>& values);
  Result<void> add_one(TensorInfo& norm);
  Result<void> check_vocab_size() const;

  HfConfig config_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::unique_ptr<const std::vector<float>>> norms_;  // as they multiply
  std::unordered_map<std::string, std::size_t> tensor_idx_by_name_;
  std::unordered_map<std::string, std::vector<std::size_t>> tensor_idxs_by_module_;
};

}  // namespace luna::model
