#include "core/model/hf_config.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>

namespace luna::model {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kSizeMax = 1U << 24;  // as in model_config: products fit 64 bits
constexpr std::uint64_t kLayersMax = 1U << 20;
constexpr std::uint64_t kIdMax = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kEndIdsMax = 64;          // real files have up to five
constexpr std::size_t kQuantKeysMax = 100'000;  // an override a module of the largest models

/// Families that compute what GGUF calls "llama", and the class that says so.
struct Family {
  std::string_view model_type;
  std::string_view architecture;
};
constexpr std::array<Family, 2> kFamilies = {
    {{"llama", "LlamaForCausalLM"}, {"mistral", "MistralForCausalLM"}}};

Error corrupt(const std::string& field, const std::string& why) {
  return Error{Code::corrupt, field + why};
}

/// A value as it stands in the file, cut short.
std::string shown(const json::value& value) {
  constexpr std::size_t kBytesMax = 60;
  const std::string text = printable(json::serialize(value));
  return text.size() <= kBytesMax ? text : text.substr(0, kBytesMax) + "...";
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

/// A member that is there and not null.
const json::value* member(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

/// Reads the members of one object; `prefix` says in messages where it stands.
class Fields {
 public:
  explicit Fields(const json::object& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  [[nodiscard]] std::string full(std::string_view name) const {
    return prefix_ + std::string(name);
  }
  [[nodiscard]] const json::value* find(std::string_view name) const {
    return member(object_, name);
  }

  [[nodiscard]] Result<std::optional<std::uint32_t>> find_count(std::string_view name,
                                                                std::uint64_t max) const {
    const json::value* value = find(name);
    if (value == nullptr) return std::optional<std::uint32_t>{};
    const bool is_right = value->is_int64() && value->get_int64() >= 1 &&
                          static_cast<std::uint64_t>(value->get_int64()) <= max;
    if (!is_right) return refused(name, "must be a whole number in 1.." + std::to_string(max));
    return std::optional<std::uint32_t>{static_cast<std::uint32_t>(value->get_int64())};
  }
  [[nodiscard]] Result<std::uint32_t> count(std::string_view name, std::uint64_t max) const {
    LUNA_TRY(const auto value, find_count(name, max));
    if (!value) return corrupt(full(name), ": the field is missing");
    return *value;
  }
  /// A finite number above 0.
  [[nodiscard]] Result<std::optional<double>> find_positive(std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr) return std::optional<double>{};
    json::error_code error;
    const double number = value->is_number() ? value->to_number<double>(error) : 0.0;
    if (error || !std::isfinite(number) || number <= 0.0)
      return refused(name, "must be a number above 0");
    return std::optional<double>{number};
  }
  [[nodiscard]] Result<double> positive(std::string_view name) const {
    LUNA_TRY(const auto value, find_positive(name));
    if (!value) return corrupt(full(name), ": the field is missing");
    return *value;
  }
  [[nodiscard]] Result<bool> flag_or(std::string_view name, bool otherwise) const {
    const json::value* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_bool()) return refused(name, "must be true or false");
    return value->get_bool();
  }
  [[nodiscard]] Result<std::optional<std::string_view>> find_text(std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr) return std::optional<std::string_view>{};
    if (!value->is_string()) return refused(name, "must be a string");
    const json::string& text = value->get_string();
    return std::optional<std::string_view>{std::string_view(text.data(), text.size())};
  }
  [[nodiscard]] Error refused(std::string_view name, const std::string& allowed) const {
    return corrupt(full(name), " = " + shown(*find(name)) + ": " + allowed);
  }
  [[nodiscard]] Error unsupported(std::string_view name, const std::string& why) const {
    return Error{Code::unsupported, full(name) + " = " + shown(*find(name)) + ": " + why};
  }

 private:
  const json::object& object_;
  const std::string prefix_;
};

/// An id, or a list of ids, as `eos_token_id` is written.
Result<std::vector<std::uint32_t>> read_ids(const Fields& fields, std::string_view name) {
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

class HfConfigReader {
 public:
  explicit HfConfigReader(const json::object& root) : fields_(root) {}

  Result<HfConfig> read() {
    LUNA_TRY(read_family());
    LUNA_TRY(read_sizes());
    LUNA_TRY(refuse_features());
    LUNA_TRY(read_rope());
    LUNA_TRY(config_.tied_head, fields_.flag_or("tie_word_embeddings", false));
    LUNA_TRY(config_.end_ids, read_ids(fields_, "eos_token_id"));
    LUNA_TRY(read_quantization());
    return std::move(config_);
  }

 private:
  void add(const std::string& key, ValueType type, decltype(MetadataEntry::value) value) {
    MetadataEntry& entry = config_.metadata.emplace_back();
    entry.key = key;
    entry.type = type;
    entry.value = value;
  }
  void add_count(std::string_view name, std::uint32_t value) {
    add("llama." + std::string(name), ValueType::u32, std::uint64_t{value});
  }
  void add_number(std::string_view name, double value) {
    add("llama." + std::string(name), ValueType::f64, value);
  }
  void add_text(const std::string& key, std::string_view text) {
    config_.texts.push_back(std::make_unique<const std::string>(text));
    add(key, ValueType::string, std::string_view(*config_.texts.back()));
  }

  Result<void> read_family() {
    LUNA_TRY(const auto type, fields_.find_text("model_type"));
    if (!type) return corrupt("model_type", ": the field is missing");
    std::string known;
    const Family* family = nullptr;
    for (const Family& candidate : kFamilies) {
      if (candidate.model_type == *type) family = &candidate;
      known += (known.empty() ? "" : ", ") + std::string(candidate.model_type);
    }
    if (family == nullptr) return fields_.unsupported("model_type", "Luna knows " + known);
    if (const json::value* classes = fields_.find("architectures"); classes != nullptr) {
      const json::array* list = classes->if_array();
      const bool is_right = list != nullptr && list->size() == 1 && list->front().is_string() &&
                            std::string_view(list->front().get_string()) == family->architecture;
      if (!is_right) {
        return fields_.unsupported("architectures",
                                   "Luna runs " + std::string(family->architecture));
      }
    }
    add_text("general.architecture", "llama");
    LUNA_TRY(const auto name, fields_.find_text("_name_or_path"));
    if (name && !name->empty()) add_text("general.name", *name);
    return {};
  }

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
    head_dim_ = head_dim.value_or(hidden_size / n_heads);
    if (head_dim_ % 2 != 0) {
      return fields_.refused(
          head_dim ? "head_dim" : "hidden_size",
          "a head of " + std::to_string(head_dim_) + " elements has no rotary pairs: must be even");
    }
    add_count("block_count", n_layers);
    add_count("embedding_length", hidden_size);
    add_count("feed_forward_length", ffn_size);
    add_count("context_length", context);
    add_count("attention.head_count", n_heads);
    add_count("attention.head_count_kv", n_kv_heads.value_or(n_heads));
    add_count("attention.key_length", head_dim_);
    add_count("attention.value_length", head_dim_);
    add_number("attention.layer_norm_rms_epsilon", norm_eps);
    context_ = context;
    return {};
  }

  Result<void> refuse_features() const {
    LUNA_TRY(const auto act, fields_.find_text("hidden_act"));
    if (act.value_or("silu") != "silu")
      return fields_.unsupported("hidden_act", "only \"silu\" is built");
    LUNA_TRY(const auto window, fields_.find_count("sliding_window", kIdMax));
    if (window && *window < context_)
      return fields_.unsupported("sliding_window", "a sliding window is not built");
    LUNA_TRY(const auto share, fields_.find_positive("partial_rotary_factor"));
    if (share.value_or(1.0) != 1.0)
      return fields_.unsupported("partial_rotary_factor", "only whole heads are rotated so far");
    return {};
  }

  /// `rope_scaling` of older files, `rope_parameters` of newer ones.
  Result<void> read_rope() {
    const bool is_new = fields_.find("rope_parameters") != nullptr;
    const std::string name = is_new ? "rope_parameters" : "rope_scaling";
    const json::value* value = fields_.find(name);
    if (value != nullptr && !value->is_object()) return fields_.refused(name, "must be an object");
    static const json::object kNone;
    const Fields scaling(value == nullptr ? kNone : value->get_object(), name + ".");
    LUNA_TRY(const auto inner_base, scaling.find_positive("rope_theta"));
    LUNA_TRY(const auto outer_base, fields_.find_positive("rope_theta"));
    const double base = inner_base ? *inner_base : outer_base.value_or(10000.0);
    if (base <= 1.0)
      return (inner_base ? scaling : fields_).refused("rope_theta", "must be above 1");
    add_number("rope.freq_base", base);
    LUNA_TRY(const auto type, scaling.find_text("rope_type"));
    LUNA_TRY(const auto old_type, scaling.find_text("type"));
    const std::string kind(type ? *type : old_type.value_or("default"));
    if (kind == "default") return {};
    if (kind == "linear") return read_linear(scaling);
    if (kind == "yarn") return read_yarn(scaling);
    if (kind == "llama3") return read_llama3(scaling, base);
    return scaling.unsupported(type ? "rope_type" : "type",
                               "Luna knows default, linear, llama3, yarn");
  }

  Result<void> read_linear(const Fields& scaling) {
    LUNA_TRY(const double factor, scaling.positive("factor"));
    add_text("llama.rope.scaling.type", "linear");
    add_number("rope.scaling.factor", factor);
    return {};
  }

  Result<void> read_yarn(const Fields& scaling) {
    for (const std::string_view name : {"attention_factor", "mscale", "mscale_all_dim"})
      if (scaling.find(name) != nullptr)
        return scaling.unsupported(name, "a magnitude of its own is not built");
    LUNA_TRY(const bool truncates, scaling.flag_or("truncate", true));
    if (!truncates) return scaling.unsupported("truncate", "a ramp of real numbers is not built");
    LUNA_TRY(const double factor, scaling.positive("factor"));
    LUNA_TRY(const auto context, scaling.find_count("original_max_position_embeddings", kIdMax));
    LUNA_TRY(const auto beta_fast, scaling.find_positive("beta_fast"));
    LUNA_TRY(const auto beta_slow, scaling.find_positive("beta_slow"));
    add_text("llama.rope.scaling.type", "yarn");
    add_number("rope.scaling.factor", factor);
    add_count("rope.scaling.original_context_length", context.value_or(context_));
    add_number("rope.scaling.yarn_beta_fast", beta_fast.value_or(32.0));
    add_number("rope.scaling.yarn_beta_slow", beta_slow.value_or(1.0));
    return {};
  }

  /// Slow pairs are stretched by `factor`, fast ones stay, those between are mixed.
  Result<void> read_llama3(const Fields& scaling, double base) {
    LUNA_TRY(const double factor, scaling.positive("factor"));
    LUNA_TRY(const double low, scaling.positive("low_freq_factor"));
    LUNA_TRY(const double high, scaling.positive("high_freq_factor"));
    LUNA_TRY(const std::uint32_t context,
             scaling.count("original_max_position_embeddings", kIdMax));
    if (high <= low) {
      return scaling.refused("high_freq_factor",
                             "must be above low_freq_factor = " + std::to_string(low));
    }
    for (std::uint32_t pair = 0; pair < head_dim_ / 2; ++pair) {
      const double frequency = std::pow(base, -2.0 * pair / head_dim_);
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
        add_text(key, std::string_view(text->data(), text->size()));
      } else if (const bool* flag = value.if_bool()) {
        add(key, ValueType::boolean, *flag);
      } else if (const std::int64_t* number = value.if_int64()) {
        add(key, ValueType::i64, *number);
      } else if (const double* real = value.if_double()) {
        add(key, ValueType::f64, *real);
      }
    }
    return {};
  }

  const Fields fields_;
  HfConfig config_;
  std::uint32_t head_dim_ = 0;
  std::uint32_t context_ = 0;
};

}  // namespace

Result<HfConfig> parse_hf_config(std::string_view text) {
  LUNA_TRY(const json::value root, parse_json(text));
  if (!root.is_object()) return corrupt("", "not a JSON object");
  return HfConfigReader(root.get_object()).read();
}

Result<std::vector<std::uint32_t>> parse_generation_end_ids(std::string_view text) {
  LUNA_TRY(const json::value root, parse_json(text));
  if (!root.is_object()) return corrupt("", "not a JSON object");
  return read_ids(Fields(root.get_object()), "eos_token_id");
}

}  // namespace luna::model
