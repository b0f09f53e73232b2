// The hyper-parameters of a model, by their names in the papers.
#pragma once

#include <luna/result.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace luna::model {

/// How rotary positions are computed.
struct RopeConfig {
  bool interleaved = true;  ///< pairs (2p, 2p+1); otherwise (p, p + n_rot/2)
  std::uint32_t n_rot = 0;  ///< elements of a head that are rotated
  double base = 10000.0;
  double magnitude = 1.0;           ///< factor on sine and cosine (YaRN)
  std::vector<double> frequencies;  ///< [n_rot / 2], scaling already applied: radians per position
  /// LongRoPE: the frequencies of programs with more positions than `original_context`; empty where
  /// there are none of their own.
  std::vector<double> long_frequencies;
  std::uint32_t original_context = 0;
};

/// Layers that see the last positions only.
struct SlidingWindow {
  std::uint32_t n_tokens =
      0;                     ///< positions seen at most, a row's own included; 0: no layer has one
  std::uint32_t period = 0;  ///< the last of each so many layers sees all; 0: none does
};

/// The FFNs of a mixture of experts.
struct ExpertConfig {
  std::uint32_t n = 0;         ///< of a layer; 0: the FFN is one
  std::uint32_t n_used = 0;    ///< by a row
  std::uint32_t ffn_size = 0;  ///< of one expert
  bool normalizes = true;      ///< the routes of a row add up to 1
};

struct ModelConfig {
  std::string architecture;  ///< name of an Architecture: "llama"
  std::string name;          ///< general.name, for people
  std::uint32_t hidden_size = 0;
  std::uint32_t n_layers = 0;
  std::uint32_t n_heads = 0;
  std::uint32_t n_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t ffn_size = 0;
  std::uint32_t vocab_size = 0;
  std::uint32_t context_length = 0;  ///< positions the model was trained for
  float norm_eps = 0.0F;
  float attention_scale = 0.0F;
  bool tied_head = false;  ///< the head reads the embedding's weight
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  ///< of layers with a window, where it is another
  SlidingWindow window;
  ExpertConfig experts;
  float attention_softcap = 0.0F;  ///< c * tanh(score / c); 0: none
  float logit_softcap = 0.0F;      ///< the same for logits
  float embedding_scale = 1.0F;

  /// Positions that a layer sees at most; 0: all.
  [[nodiscard]] std::uint32_t window_of(std::uint32_t layer) const {
    const bool sees_all = window.period != 0 && layer % window.period == window.period - 1;
    return sees_all ? 0 : window.n_tokens;
  }
};

class WeightFile;

/// The hyper-parameters that a GGUF file or a Hugging Face folder states, checked against each
/// other and for the features that Luna computes. [start-up] Errors  corrupt (key, value, what is
/// allowed); unsupported (architecture or feature by name)
Result<ModelConfig> read_model_config(const WeightFile& file);

}  // namespace luna::model
