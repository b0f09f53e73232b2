// Writes a Hugging Face folder with packed weights beside the texts of the folder it was made of.
#pragma once

#include "core/base/output_file.hpp"
#include "core/model/architecture.hpp"
#include "core/model/packed_quantizer.hpp"
#include "core/model/weight_file.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace luna::model {

/// A folder that is being written. Its files have temporary names until finish(); destroying it
/// before leaves nothing. A resource: neither copied nor moved.
class PackedFolder {
 public:
  /// source  the folder that config.json and the tokenizer's files are taken from
  PackedFolder(std::filesystem::path source,
               std::filesystem::path folder,
               const Architecture& architecture);
  PackedFolder(const PackedFolder&) = delete;
  PackedFolder& operator=(const PackedFolder&) = delete;
  ~PackedFolder();

  /// Makes the folder, and config.json with this `quantization_config`.
  /// Errors  corrupt: the source's config.json; io
  Result<void> begin(const std::string& quantization_config);
  /// A tensor as it is. Names are ours.
  Result<void> copy(const TensorInfo& tensor);
  /// The parts of a packed weight.
  Result<void> add(const std::string& weight_name, std::vector<PackedPart> parts);
  /// Writes what is left, the index and the texts, and gives all files their names.
  /// Returns  the bytes of the weights
  Result<std::uint64_t> finish();

 private:
  struct Tensor {
    std::string name;  // as the folder has it
    PackedPart part;
  };
  Result<void> take(Tensor tensor);
  Result<void> write_tensors();
  Result<void> write_text(const std::string& name, const std::string& text);
  Result<void> copy_texts();

  const std::filesystem::path source_;
  const std::filesystem::path folder_;
  const Architecture& architecture_;
  bool made_folder_ = false;
  bool is_finished_ = false;
  std::string config_;
  std::vector<Tensor> waiting_;
  std::uint64_t n_waiting_bytes_ = 0;
  std::uint64_t n_bytes_ = 0;
  std::uint32_t n_files_ = 0;
  std::vector<std::pair<std::string, std::string>> index_;  // tensor, file
  std::vector<OutputFile> files_;                           // whole, in the order of their naming
};

}  // namespace luna::model
