// The weights of an open file through the quantization plugins.
#pragma once

#include "core/model/program_builder.hpp"
#include "core/model/weight_file.hpp"
#include "core/plugin/instance.hpp"

#include <luna/abi/quant.h>
#include <luna/result.hpp>

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace luna::model {

using QuantInstances = std::span<const plugin::Instance<luna_quant_if>>;

/// Finds for each weight the plugin that decodes it, and decodes ranges of rows. File,
/// configuration and plugins outlive it. Not copied or moved: the table that plugins read lies
/// within.
class WeightSource {
 public:
  WeightSource(const WeightFile& file, const ModelConfig& config, QuantInstances quants);
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  /// Describes a weight and remembers who decodes it. [start-up]
  /// Errors  not_found: not in the file; unsupported: no plugin decodes its type; what the plugin
  ///         answers; internal: the plugin's description does not fit the file
  Result<ShardWeight> describe(const std::string& name);

  /// Decodes rows of a weight that was described, counted from its first here. Disjoint ranges in
  /// parallel. [load]
  Result<void> decode(const ShardWeight& weight, const luna_weight_rows& rows) const;

 private:
  struct Decoder {
    std::uint64_t entry = UINT64_MAX;  // of the weight's name; none where it is spread over others
    std::uint64_t file_bytes = 0;
    const plugin::Instance<luna_quant_if>* quant = nullptr;
  };

  Result<ShardWeight> describe_stack(const std::string& name, std::span<const std::string> stack);
  Result<ShardWeight> describe_one(const std::string& name);
  Result<void> decode_stack(std::span<const std::string> stack,
                            const ShardWeight& weight,
                            const luna_weight_rows& rows) const;
  [[nodiscard]] Result<Decoder> find_decoder(const std::string& name) const;

  [[nodiscard]] Result<void> check_shape(const std::string& name,
                                         const luna_weight_desc& desc) const;

  const WeightFile& file_;
  const ModelConfig& config_;
  const QuantInstances quants_;
  std::vector<luna_tensor_entry> entries_;
  std::vector<luna_kv> metadata_;
  luna_tensor_table table_{};
  std::unordered_map<std::string, Decoder> decoders_;
  std::unordered_map<std::string, std::vector<std::string>> stacks_;  // weights below each other
};

}  // namespace luna::model
