#include "core/model/hf_names.hpp"

#include <algorithm>
#include <array>

namespace luna::model {
namespace {

struct NamePair {
  std::string_view hf;
  std::string_view ours;
};

constexpr std::array<NamePair, 3> kModules = {
    {{"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}}};
constexpr std::array<NamePair, 9> kLayerModules = {{{"input_layernorm", "attn_norm"},
                                                    {"self_attn.q_proj", "attn_q"},
                                                    {"self_attn.k_proj", "attn_k"},
                                                    {"self_attn.v_proj", "attn_v"},
                                                    {"self_attn.o_proj", "attn_output"},
                                                    {"post_attention_layernorm", "ffn_norm"},
                                                    {"mlp.gate_proj", "ffn_gate"},
                                                    {"mlp.up_proj", "ffn_up"},
                                                    {"mlp.down_proj", "ffn_down"}}};
constexpr std::string_view kHfLayers = "model.layers.";
constexpr std::string_view kOurLayers = "blk.";

/// A number as it is printed: no sign, no leading zero, so that no two names become one.
bool is_plain_number(std::string_view text) {
  return !text.empty() && (text.size() == 1 || text.front() != '0') &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// Translates `module`, or gives nothing.
template <std::size_t N>
std::string_view translate(const std::array<NamePair, N>& pairs,
                           std::string_view module,
                           std::string_view NamePair::*from,
                           std::string_view NamePair::*to) {
  for (const NamePair& pair : pairs)
    if (pair.*from == module) return pair.*to;
  return {};
}

std::string rename(std::string_view name,
                   std::string_view NamePair::*from,
                   std::string_view NamePair::*to) {
  const bool is_from_hf = from == &NamePair::hf;
  const std::string_view layers = is_from_hf ? kHfLayers : kOurLayers;
  const std::string_view layers_to = is_from_hf ? kOurLayers : kHfLayers;
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::string(name);
  const std::string_view module = name.substr(0, dot);
  const std::string part(name.substr(dot));
  if (const auto found = translate(kModules, module, from, to); !found.empty())
    return std::string(found) + part;
  if (!module.starts_with(layers)) return std::string(name);
  const std::string_view rest = module.substr(layers.size());
  const std::string_view number = rest.substr(0, rest.find('.'));
  if (!is_plain_number(number) || number.size() == rest.size()) return std::string(name);
  const auto found = translate(kLayerModules, rest.substr(number.size() + 1), from, to);
  if (found.empty()) return std::string(name);
  return std::string(layers_to) + std::string(number) + "." + std::string(found) + part;
}

}  // namespace

std::string name_from_hf(std::string_view hf_name) {
  return rename(hf_name, &NamePair::hf, &NamePair::ours);
}

std::string name_to_hf(std::string_view name) {
  return rename(name, &NamePair::ours, &NamePair::hf);
}

}  // namespace luna::model
