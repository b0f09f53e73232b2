#include "core/model/hf_config.hpp"

#include "core/model/architecture.hpp"
#include "core/model/config_keys.hpp"
#include "core/model/hf_fields.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>

namespace luna::model {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kIdMax = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kEndIdsMax = 64;          // real files have up to five
constexpr std::size_t kQuantKeysMax = 100'000;  // an override a module of the largest models

Error corrupt(const std::string& field, const std::string& why) {
  return Error{Code::corrupt, field + why};
}

Result<json::value> parse_json(std::string_view text) {
  try {
    json::error_code error;
    json::value value = json::parse(json::string_view(text.data(), text.size()), error);
    if (error) return corrupt("", "not valid JSON: " + error.message());
    return value;
  } catch (const std::exception& e) {
    return corrupt("", std::string("not valid JSON: ") + e.what());
  }
}

/// An id, or a list of ids, as `eos_token_id` is written.
Result<std::vector<std::uint32_t>> read_ids(const HfFields& fields, std::string_view name) {
  std::vector<std::uint32_t> ids;
  const json::value* value = fields.find(name);
  if (value == nullptr) return ids;
  const auto add = [&](const json::value& id) {
    if (!id.is_int64() || id.get_int64() < 0) return false;
    if (static_cast<std::uint64_t>(id.get_int64()) > kIdMax) return false;
    ids.push_back(static_cast<std::uint32_t>(id.get_int64()));
    return true;
  };
  const json::array* list = value->if_array();
  const bool is_right =
      list == nullptr ? add(*value) : list->size() <= kEndIdsMax && std::ranges::all_of(*list, add);
  if (!is_right) {
    return fields.refused(name,
                          "must be a token id, or a list of at most " + std::to_string(kEndIdsMax));
  }
  return ids;
}

/// What the family is, by "model_type" and "architectures".
struct Found {
  const Architecture* architecture = nullptr;
  const HfFamily* family = nullptr;
};

Result<Found> find_family(const HfFields& fields) {
  LUNA_TRY(const auto type, fields.find_text("model_type"));
  if (!type) return corrupt("model_type", ": the field is missing");
  std::string known;
  Found found;
  for (const Architecture* architecture : architectures()) {
    for (const HfFamily& family : architecture->hf_families) {
      if (family.model_type == *type) found = {architecture, &family};
      known += (known.empty() ? "" : ", ") + std::string(family.model_type);
    }
  }
  if (found.family == nullptr) return fields.unsupported("model_type", "Luna knows " + known);
  const json::value* classes = fields.find("architectures");
  if (classes == nullptr) return found;
  const json::array* list = classes->if_array();
  const bool is_right = list != nullptr && list->size() == 1 && list->front().is_string() &&
                        std::string_view(list->front().get_string()) == found.family->class_name;
  if (is_right) return found;
  return fields.unsupported("architectures", "Luna runs " + std::string(found.family->class_name));
}

class HfConfigReader {
 public:
  HfConfigReader(const HfFields& fields, const Found& found)
      : fields_(fields), found_(found), keys_(config_, found.architecture->gguf_name) {}

  Result<HfConfig> read() {
    config_.architecture = found_.architecture;
    keys_.add_whole_text("general.architecture", found_.architecture->gguf_name);
    LUNA_TRY(const auto name, fields_.find_text("_name_or_path"));
    if (name && !name->empty()) keys_.add_whole_text("general.name", *name);
    LUNA_TRY(read_sizes());
    LUNA_TRY(read_rope());
    LUNA_TRY(found_.architecture->translate_fields(fields_, keys_));
    LUNA_TRY(config_.tied_head,
             fields_.flag_or("tie_word_embeddings", found_.family->has_tied_head));
    LUNA_TRY(config_.end_ids, read_ids(fields_, "eos_token_id"));
    LUNA_TRY(read_quantization());
    return std::move(config_);
  }

 private:
  Result<void> read_sizes() {
    LUNA_TRY(const std::uint32_t n_layers, fields_.count("num_hidden_layers", kLayersMax));
    LUNA_TRY(const std::uint32_t hidden_size, fields_.count("hidden_size", kSizeMax));
    LUNA_TRY(const std::uint32_t ffn_size, fields_.count("intermediate_size", kSizeMax));
    LUNA_TRY(const std::uint32_t context, fields_.count("max_position_embeddings", kIdMax));
    LUNA_TRY(const std::uint32_t n_heads, fields_.count("num_attention_heads", kSizeMax));
    LUNA_TRY(const auto n_kv_heads, fields_.find_count("num_key_value_heads", kSizeMax));
    LUNA_TRY(const auto head_dim, fields_.find_count("head_dim", kSizeMax));
    LUNA_TRY(const double norm_eps, fields_.positive("rms_norm_eps"));
    LUNA_TRY(config_.vocab_size, fields_.count("vocab_size", kSizeMax));
    if (n_heads % n_kv_heads.value_or(n_heads) != 0) {
      return fields_.refused("num_key_value_heads",
                             "must divide num_attention_heads = " + std::to_string(n_heads));
    }
    if (!head_dim && hidden_size % n_heads != 0) {
      return fields_.refused("hidden_size",
                             "without head_dim it must be a multiple of num_attention_heads = " +
                                 std::to_string(n_heads));
    }
    keys_.head_dim = head_dim.value_or(hidden_size / n_heads);
    if (keys_.head_dim % 2 != 0) {
      return fields_.refused(head_dim ? "head_dim" : "hidden_size",
                             "a head of " + std::to_string(keys_.head_dim) +
                                 " elements has no rotary pairs: must be even");
    }
    keys_.n_layers = n_layers;
    keys_.context_length = context;
    keys_.add_count("block_count", n_layers);
    keys_.add_count("embedding_length", hidden_size);
    keys_.add_count("feed_forward_length", ffn_size);
    keys_.add_count("context_length", context);
    keys_.add_count("attention.head_count", n_heads);
    keys_.add_count("attention.head_count_kv", n_kv_heads.value_or(n_heads));
    keys_.add_count("attention.key_length", keys_.head_dim);
    keys_.add_count("attention.value_length", keys_.head_dim);
    keys_.add_number("attention.layer_norm_rms_epsilon", norm_eps);
    return {};
  }

  /// `rope_scaling` of older files, `rope_parameters` of newer ones.
  Result<void> read_rope() {
    LUNA_TRY(const auto newer, fields_.find_object("rope_parameters"));
    LUNA_TRY(const auto older, fields_.find_object("rope_scaling"));
    static const json::object kNone;
    // Newer files of families with windows describe each kind of layers; the family reads the
    // others.
    std::optional<HfFields> of_full;
    if (newer) {
      LUNA_TRY(auto found, newer->find_object("full_attention"));
      if (found) of_full.emplace(*found);
    }
    const HfFields scaling = of_full ? *of_full : newer ? *newer : older ? *older : HfFields(kNone);
    LUNA_TRY(const auto inner_base, scaling.find_positive("rope_theta"));
    LUNA_TRY(const auto outer_base, fields_.find_positive("rope_theta"));
    const double base = inner_base ? *inner_base : outer_base.value_or(found_.family->rope_base);
    if (base <= 1.0)
      return (inner_base ? scaling : fields_).refused("rope_theta", "must be above 1");
    keys_.add_number("rope.freq_base", base);
    LUNA_TRY(read_rotated(scaling));
    LUNA_TRY(const auto type, scaling.find_text("rope_type"));
    LUNA_TRY(const auto old_type, scaling.find_text("type"));
    const std::string kind(type ? *type : old_type.value_or("default"));
    if (kind == "default") return {};
    if (kind == "linear") return read_linear(scaling);
    if (kind == "yarn") return read_yarn(scaling);
    if (kind == "llama3") return read_llama3(scaling, base);
    if (kind == "longrope" || kind == "su") return read_longrope(scaling);
    return scaling.unsupported(type ? "rope_type" : "type",
                               "Luna knows default, linear, llama3, longrope, yarn");
  }

  /// The share of a head that is rotated.
  Result<void> read_rotated(const HfFields& scaling) {
    LUNA_TRY(const auto outer, fields_.find_positive("partial_rotary_factor"));
    LUNA_TRY(const auto inner, scaling.find_positive("partial_rotary_factor"));
    const double share = inner ? *inner : outer.value_or(1.0);
    const double n_rot = std::floor(share * keys_.head_dim);
    if (share > 1.0 || n_rot < 2.0 || std::fmod(n_rot, 2.0) != 0.0) {
      return (inner ? scaling : fields_)
          .refused("partial_rotary_factor",
                   "must leave an even number of " + std::to_string(keys_.head_dim) +
                       " elements, at least 2");
    }
    keys_.add_count("rope.dimension_count", static_cast<std::uint32_t>(n_rot));
    return {};
  }

  /// Divisors for programs of long and of short contexts; the magnitude is the same for both.
  Result<void> read_longrope(const HfFields& scaling) {
    LUNA_TRY(config_.long_rope_factors, scaling.positive_list("long_factor"));
    LUNA_TRY(config_.short_rope_factors, scaling.positive_list("short_factor"));
    LUNA_TRY(const auto inner, scaling.find_count("original_max_position_embeddings", kIdMax));
    LUNA_TRY(const auto outer, fields_.find_count("original_max_position_embeddings", kIdMax));
    const std::uint32_t original = inner ? *inner : outer.value_or(keys_.context_length);
    LUNA_TRY(const auto stated, scaling.find_positive("attention_factor"));
    const double stretch = double{1} * keys_.context_length / original;
    const double usual =
        stretch <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(stretch) / std::log(original));
    keys_.add_count("rope.scaling.original_context_length", original);
    keys_.add_number("rope.scaling.attn_factor", stated.value_or(usual));
    return {};
  }

  Result<void> read_linear(const HfFields& scaling) {
    LUNA_TRY(const double factor, scaling.positive("factor"));
    keys_.add_text("rope.scaling.type", "linear");
    keys_.add_number("rope.scaling.factor", factor);
    return {};
  }

  Result<void> read_yarn(const HfFields& scaling) {
    for (const std::string_view name : {"attention_factor", "mscale", "mscale_all_dim"})
      if (scaling.find(name) != nullptr)
        return scaling.unsupported(name, "a magnitude of its own is not built");
    LUNA_TRY(const bool truncates, scaling.flag_or("truncate", true));
    if (!truncates) return scaling.unsupported("truncate", "a ramp of real numbers is not built");
    LUNA_TRY(const double factor, scaling.positive("factor"));
    LUNA_TRY(const auto context, scaling.find_count("original_max_position_embeddings", kIdMax));
    LUNA_TRY(const auto beta_fast, scaling.find_positive("beta_fast"));
    LUNA_TRY(const auto beta_slow, scaling.find_positive("beta_slow"));
    keys_.add_text("rope.scaling.type", "yarn");
    keys_.add_number("rope.scaling.factor", factor);
    keys_.add_count("rope.scaling.original_context_length", context.value_or(keys_.context_length));
    keys_.add_number("rope.scaling.yarn_beta_fast", beta_fast.value_or(32.0));
    keys_.add_number("rope.scaling.yarn_beta_slow", beta_slow.value_or(1.0));
    return {};
  }

  /// Slow pairs are stretched by `factor`, fast ones stay, those between are mixed.
  Result<void> read_llama3(const HfFields& scaling, double base) {
    LUNA_TRY(const double factor, scaling.positive("factor"));
    LUNA_TRY(const double low, scaling.positive("low_freq_factor"));
    LUNA_TRY(const double high, scaling.positive("high_freq_factor"));
    LUNA_TRY(const std::uint32_t context,
             scaling.count("original_max_position_embeddings", kIdMax));
    if (high <= low) {
      return scaling.refused("high_freq_factor",
                             "must be above low_freq_factor = " + std::to_string(low));
    }
    for (std::uint32_t pair = 0; pair < keys_.head_dim / 2; ++pair) {
      const double frequency = std::pow(base, -2.0 * pair / keys_.head_dim);
      const double n_turns = context * frequency / (2.0 * std::numbers::pi);
      const double kept = std::clamp((n_turns - low) / (high - low), 0.0, 1.0);
      config_.rope_factors.push_back(static_cast<float>(1.0 / (kept + (1.0 - kept) / factor)));
    }
    return {};
  }

  Result<void> read_quantization() {
    const json::value* value = fields_.find("quantization_config");
    if (value == nullptr) return {};
    if (!value->is_object()) return fields_.refused("quantization_config", "must be an object");
    return flatten(value->get_object(), "quantization_config");
  }

  /// The parser bounds the depth. Lists and nulls are left out: plugins read scalars and texts.
  Result<void> flatten(const json::object& object, const std::string& prefix) {
    for (const auto& [name, value] : object) {
      const std::string key = prefix + "." + std::string(name.data(), name.size());
      if (config_.metadata.size() > kQuantKeysMax)
        return corrupt("quantization_config",
                       ": more than " + std::to_string(kQuantKeysMax) + " fields");
      if (const json::object* inner = value.if_object()) {
        LUNA_TRY(flatten(*inner, key));
      } else if (const json::string* text = value.if_string()) {
        keys_.add_whole_text(key, std::string_view(text->data(), text->size()));
      } else if (const bool* flag = value.if_bool()) {
        keys_.add(key, ValueType::boolean, *flag);
      } else if (const std::int64_t* number = value.if_int64()) {
        keys_.add(key, ValueType::i64, *number);
      } else if (const double* real = value.if_double()) {
        keys_.add(key, ValueType::f64, *real);
      }
    }
    return {};
  }

  const HfFields& fields_;
  const Found found_;
  HfConfig config_;
  HfKeys keys_;
};

}  // namespace

Result<HfConfig> parse_hf_config(std::string_view text) {
  LUNA_TRY(const json::value root, parse_json(text));
  if (!root.is_object()) return corrupt("", "not a JSON object");
  const HfFields fields(root.get_object());
  LUNA_TRY(const Found found, find_family(fields));
  return HfConfigReader(fields, found).read();
}

Result<std::vector<std::uint32_t>> parse_generation_end_ids(std::string_view text) {
  LUNA_TRY(const json::value root, parse_json(text));
  if (!root.is_object()) return corrupt("", "not a JSON object");
  return read_ids(HfFields(root.get_object()), "eos_token_id");
}

}  // namespace luna::model
