#include "core/model/hf_names.hpp"

#include <algorithm>
#include <array>

namespace luna::model {
namespace {

constexpr std::array<HfModule, 3> kModules = {
    {{"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}}};
/// Of layers, where the family has no other name.
constexpr std::array<HfModule, 11> kLayerModules = {{{"input_layernorm", "attn_norm"},
                                                     {"self_attn.q_proj", "attn_q"},
                                                     {"self_attn.k_proj", "attn_k"},
                                                     {"self_attn.v_proj", "attn_v"},
                                                     {"self_attn.q_norm", "attn_q_norm"},
                                                     {"self_attn.k_norm", "attn_k_norm"},
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

/// Which name of a module is given, and which is wanted.
struct Direction {
  std::string_view HfModule::*from;
  std::string_view HfModule::*to;
  std::string_view layers_from;
  std::string_view layers_to;
};
constexpr Direction kFromHf = {&HfModule::hf, &HfModule::ours, kHfLayers, kOurLayers};
constexpr Direction kToHf = {&HfModule::ours, &HfModule::hf, kOurLayers, kHfLayers};

/// Translates `module`, or gives nothing.
std::string translate(std::span<const HfModule> modules,
                      std::string_view module,
                      const Direction& direction) {
  for (const HfModule& known : modules) {
    const std::string_view from = known.*direction.from;
    const std::string_view to = known.*direction.to;
    const std::size_t star = from.find('*');
    if (star == std::string_view::npos) {
      if (from == module) return std::string(to);
      continue;
    }
    const std::string_view begin = from.substr(0, star);
    const std::string_view end = from.substr(star + 1);
    if (module.size() <= begin.size() + end.size() || !module.starts_with(begin) ||
        !module.ends_with(end))
      continue;
    const std::string_view number =
        module.substr(begin.size(), module.size() - begin.size() - end.size());
    if (!is_plain_number(number)) continue;
    const std::size_t to_star = to.find('*');
    return std::string(to.substr(0, to_star)) + std::string(number) +
           std::string(to.substr(to_star + 1));
  }
  return {};
}

std::string rename(const Architecture& architecture,
                   std::string_view name,
                   const Direction& direction) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::string(name);
  const std::string_view module = name.substr(0, dot);
  const std::string part(name.substr(dot));
  if (const auto found = translate(kModules, module, direction); !found.empty())
    return found + part;
  if (!module.starts_with(direction.layers_from)) return std::string(name);
  const std::string_view rest = module.substr(direction.layers_from.size());
  const std::string_view number = rest.substr(0, rest.find('.'));
  if (!is_plain_number(number) || number.size() == rest.size()) return std::string(name);
  const std::string_view in_layer = rest.substr(number.size() + 1);
  auto found = translate(architecture.hf_modules, in_layer, direction);
  if (found.empty()) found = translate(kLayerModules, in_layer, direction);
  if (found.empty()) return std::string(name);
  return std::string(direction.layers_to) + std::string(number) + "." + found + part;
}

}  // namespace

std::string name_from_hf(const Architecture& architecture, std::string_view hf_name) {
  return rename(architecture, hf_name, kFromHf);
}

std::string name_to_hf(const Architecture& architecture, std::string_view name) {
  return rename(architecture, name, kToHf);
}

}  // namespace luna::model
