// A family of models: the names of its files, the weights of its layers, what it reads of a
// configuration, and how its layer computes. One object each, in architectures/; docs/formats.md
// says how to add one.
#pragma once

#include "core/model/layer_weight.hpp"

#include <luna/op_program.hpp>
#include <luna/result.hpp>

#include <optional>
#include <span>
#include <string_view>

namespace luna::model {

struct ModelConfig;
class ConfigKeys;
class HfFields;
class HfKeys;
class LayerOps;

/// A kind of Hugging Face folder that a family's models come in.
struct HfFamily {
  std::string_view model_type;
  std::string_view class_name;  // the only entry of "architectures"
  bool has_tied_head = false;   // where "tie_word_embeddings" is not stated
  double rope_base = 10000.0;   // where "rope_theta" is not stated
};

/// A module of a layer by its name in Hugging Face folders and in GGUF files; a star in both stands
/// for an expert's number.
struct HfModule {
  std::string_view hf;    // "self_attn.q_proj"
  std::string_view ours;  // "attn_q"
};

struct Architecture {
  std::string_view name;
  std::string_view gguf_name;                  ///< general.architecture of its files
  std::span<const LayerWeight> layer_weights;  ///< of every layer, in the order of their use
  std::span<const HfFamily> hf_families;
  std::span<const HfModule> hf_modules;  ///< where it differs from the usual names
  /// GGUF files hold rows of Q and K permuted, so that pairs are (2p, 2p + 1); other files as
  /// trained: (p, p + n_rot / 2).
  bool has_permuted_gguf_heads = false;
  /// Folders hold norm weights less one; GGUF files as they multiply.
  bool has_hf_norms_less_one = false;
  /// Why its layers are not split by columns over devices; nothing: they are.
  std::optional<std::string_view> why_no_tensor_split = std::nullopt;

  /// Reads the keys that are not common to all families, and refuses those of features that the
  /// family is not built with. The common part of the configuration is there already.
  Result<void> (*read_keys)(const ConfigKeys& keys, ModelConfig& config);
  /// Turns the fields of a config.json that are not common to all into such keys.
  Result<void> (*translate_fields)(const HfFields& fields, HfKeys& keys);
  /// Writes one layer: x += attention, x += ffn.   x: [n, hidden_size]
  void (*write_layer)(LayerOps& ops, ViewId x);
};

/// All that are built. They live as long as the program.
std::span<const Architecture* const> architectures();
/// Nothing: not built.
const Architecture* find_architecture(std::string_view name);
/// Of a configuration that was read, or that names one that is built.
const Architecture& architecture_of(const ModelConfig& config);
/// "gemma3, llama, qwen2": for messages.
std::string known_architectures();

}  // namespace luna::model
