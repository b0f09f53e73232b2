// The names that a family's files give to the weights of a layer, and the shapes they must have.
#pragma once

#include "core/model/layer_weight.hpp"
#include "core/model/model_config.hpp"
#include "core/model/placement.hpp"
#include "core/model/weight_file.hpp"

#include <luna/result.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace luna::model {

inline constexpr std::string_view kEmbeddingName =
    "token_embd.weight";  // [vocab_size, hidden_size]
inline constexpr std::string_view kOutputNormName = "output_norm.weight";  // [hidden_size]
inline constexpr std::string_view kHeadName = "output.weight";  // [vocab_size, hidden_size]
// Divisors of rotary frequencies, [n_rot / 2] each.
inline constexpr std::string_view kRopeFactorsName = "rope_freqs.weight";
inline constexpr std::string_view kLongRopeFactorsName = "rope_factors_long.weight";
inline constexpr std::string_view kShortRopeFactorsName = "rope_factors_short.weight";

constexpr bool is_rope_factors(std::string_view name) {
  return name == kRopeFactorsName || name == kLongRopeFactorsName || name == kShortRopeFactorsName;
}

/// "blk.3.attn_q.weight".
std::string layer_weight_name(std::uint32_t layer, LayerWeight weight);

/// Rows (of all experts, where there are several) and columns of a tensor.
WeightShape shape_of(const TensorInfo& tensor);
/// Whether a weight is the experts' of a layer together, or one expert's part of it.
bool is_of_experts(std::string_view name);

/// Its shape in a model of this configuration.
WeightShape layer_weight_shape(const ModelConfig& config, LayerWeight weight);
/// The shape of a weight by its name; none: not a weight of the model.
std::optional<WeightShape> weight_shape(const ModelConfig& config, std::string_view name);

/// Checks that each weight the family needs is in the file with its shape, and that no layer has
/// one that the family does not know (a bias left out silently would give wrong answers). The shape
/// of a weight that its format spreads over tensors is whoever describes it held to.
/// Errors  corrupt: the first weight that is missing or of another shape; unsupported: the first
///         that is not known
/// Cost    O(n_tensors)
Result<void> check_weights(const ModelConfig& config, const WeightFile& file);

/// What the parts of a model weigh in its file, which check_weights() has found whole. The head of
/// a model with a tied head weighs what its embedding does.
ModelBytes weigh_model(const ModelConfig& config, const WeightFile& file);

}  // namespace luna::model
