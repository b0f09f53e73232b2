// `config.json` and `generation_config.json` of a Hugging Face folder, as the keys of a GGUF file.
#pragma once

#include "core/model/architecture.hpp"
#include "core/model/weight_file.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace luna::model {

/// Of `config.json` what the runtime needs. Moved, never copied: entries point into its texts.
struct HfConfig {
  const Architecture* architecture = nullptr;
  /// The hyper-parameters under the names of GGUF ("llama.block_count"), then what
  /// "quantization_config" says, flattened ("quantization_config.config_groups.group_0.format").
  std::vector<MetadataEntry> metadata;
  std::vector<std::unique_ptr<const std::string>> texts;
  /// Divisors of the rotary frequencies, [head_dim / 2]; empty unless the scaling is llama 3's.
  std::vector<float> rope_factors;
  /// LongRoPE's divisors for long and for short contexts, [n_rot / 2] each, or empty.
  std::vector<float> long_rope_factors;
  std::vector<float> short_rope_factors;
  std::uint32_t vocab_size = 0;
  bool tied_head = false;              // the head is the embedding, whatever else the files hold
  std::vector<std::uint32_t> end_ids;  // eos_token_id: a number or a list
};

/// Reads the text of a `config.json`. [start-up]
///
/// Errors  corrupt: no JSON, or a field that is missing, of another type or out of range (field,
///         value, what is allowed); unsupported: a family or feature that is not built, by name
/// Source  LlamaConfig and modeling_rope_utils of huggingface/transformers
Result<HfConfig> parse_hf_config(std::string_view text);

/// The ids that end generation by a `generation_config.json`; empty where it names none.
/// Errors  corrupt: no JSON; eos_token_id is neither an id nor a list of ids
Result<std::vector<std::uint32_t>> parse_generation_end_ids(std::string_view text);

}  // namespace luna::model
