#include "core/plugin/settings_rows.hpp"

#include "core/config/nearest_key.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <type_traits>

namespace luna::plugin {
namespace {

using config::RawSetting;
using config::RawValue;

constexpr std::uint32_t kParamsMax = 256;  // a plugin that declares more is broken

template <typename Number>
std::optional<Number> parse(const char* text) {
  if (text == nullptr) return std::nullopt;
  const std::string_view all(text);
  Number value{};
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (error != std::errc{} || end != all.data() + all.size()) return std::nullopt;
  return value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

template <typename Number>
bool in_range(const luna_param& param, Number value) {
  const auto min = parse<Number>(param.min);
  const auto max = parse<Number>(param.max);
  return (!min || value >= *min) && (!max || value <= *max);
}

bool is_choice(const luna_param& param, const std::string& value) {
  if (param.choices == nullptr) return true;
  return std::ranges::count(split(param.choices, '|'), value) != 0;
}

/// List elements and map entries as the ABI wants them: each text followed by a zero byte.
void append(std::string& joined, std::string_view text) {
  joined += text;
  joined += '\0';
}

std::optional<double> as_number(const RawValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  return std::nullopt;
}

/// A list as the ABI wants it. nullopt: not a list, or an element is no choice.
std::optional<std::string> joined_list(const luna_param& param, const RawValue& value) {
  const auto* list = std::get_if<std::vector<std::string>>(&value);
  if (list == nullptr) return std::nullopt;
  std::string joined;
  for (const std::string& element : *list) {
    if (element.find('\0') != std::string::npos || !is_choice(param, element)) return std::nullopt;
    append(joined, element);
  }
  return joined;
}

/// A map as the ABI wants it. nullopt: not a map.
std::optional<std::string> joined_map(const RawValue& value) {
  const auto* map = std::get_if<std::vector<std::pair<std::string, std::string>>>(&value);
  if (map == nullptr) return std::nullopt;
  std::string joined;
  for (const auto& [key, element] : *map) {
    if ((key + element).find('\0') != std::string::npos) return std::nullopt;
    append(joined, key);
    append(joined, element);
  }
  return joined;
}

/// Puts the value into the rows. False: wrong type, out of range or not among the choices.
bool add_value(SettingRows& rows, const luna_param& param, const RawValue& value) {
  switch (param.type) {
    case LUNA_TYPE_BOOL: {
      const auto* flag = std::get_if<bool>(&value);
      if (flag == nullptr) return false;
      rows.add_flag(param.key, *flag);
      return true;
    }
    case LUNA_TYPE_INT: {
      const auto* integer = std::get_if<std::int64_t>(&value);
      if (integer == nullptr || !in_range(param, *integer)) return false;
      rows.add_integer(param.key, *integer);
      return true;
    }
    case LUNA_TYPE_FLOAT: {
      const std::optional<double> number = as_number(value);
      if (!number || !std::isfinite(*number) || !in_range(param, *number)) return false;
      rows.add_number(param.key, *number);
      return true;
    }
    case LUNA_TYPE_STRING: {
      const auto* text = std::get_if<std::string>(&value);
      if (text == nullptr || !is_choice(param, *text)) return false;
      rows.add_text(param.key, param.type, *text);
      return true;
    }
    case LUNA_TYPE_STRING_LIST:
    case LUNA_TYPE_STRING_MAP: {
      std::optional<std::string> joined =
          param.type == LUNA_TYPE_STRING_LIST ? joined_list(param, value) : joined_map(value);
      if (!joined) return false;
      rows.add_text(param.key, param.type, *std::move(joined));
      return true;
    }
    default:
      return false;
  }
}

std::string print_value(const RawValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) {
          return v ? "true" : "false";
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
          return std::to_string(v);
        } else if constexpr (std::is_same_v<T, double>) {
          char text[32];
          const auto end = std::to_chars(text, text + sizeof(text), v).ptr;
          return std::string(text, end);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return '"' + v + '"';
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return "a list of " + std::to_string(v.size()) + " texts";
        } else {
          return "a table of " + std::to_string(v.size()) + " texts";
        }
      },
      value);
}

Error unknown_key(const config::RawGroup& settings,
                  const RawSetting& setting,
                  const std::vector<const luna_param*>& params) {
  std::vector<std::string> known = settings.core_keys;
  for (const luna_param* param : params)
    known.emplace_back(param->key);
  const std::string hint = known.empty() ? "; this plugin takes no settings"
                                         : config::nearest_key_hint(setting.key, known);
  return Error{Code::invalid_argument,
               "unknown key '" + setting.key + "' in " + settings.table + hint + " (" +
                   config::locate(settings.file, setting.key_at) + ")"};
}

}  // namespace

luna_kv& SettingRows::add(std::string_view key, std::uint32_t type) {
  rows_.push_back(luna_kv{{key.data(), key.size()}, type, 0, 0, 0.0, {nullptr, 0}});
  return rows_.back();
}
void SettingRows::add_flag(std::string_view key, bool value) {
  add(key, LUNA_TYPE_BOOL).i = value ? 1 : 0;
}
void SettingRows::add_integer(std::string_view key, std::int64_t value) {
  add(key, LUNA_TYPE_INT).i = value;
}
void SettingRows::add_number(std::string_view key, double value) {
  add(key, LUNA_TYPE_FLOAT).f = value;
}
void SettingRows::add_text(std::string_view key, std::uint32_t type, std::string value) {
  const std::string& kept = texts_.emplace_back(std::move(value));
  add(key, type).s = {kept.data(), kept.size()};
}

std::vector<const luna_param*> params_of(const luna_if& head) {
  std::vector<const luna_param*> params;
  if (head.params == nullptr) return params;
  const auto* at = reinterpret_cast<const unsigned char*>(head.params);
  for (std::uint32_t i = 0; i < head.n_params && i < kParamsMax; ++i) {
    const auto* param = reinterpret_cast<const luna_param*>(at);
    if (!LUNA_HAS(param, luna_param, help) || param->key == nullptr) break;
    params.push_back(param);
    at += param->struct_size;
  }
  return params;
}

std::string describe_param(const luna_param& param) {
  std::string text;
  switch (param.type) {
    case LUNA_TYPE_BOOL:
      return "true or false";
    case LUNA_TYPE_INT:
      text = "a whole number";
      break;
    case LUNA_TYPE_FLOAT:
      text = "a number";
      break;
    case LUNA_TYPE_STRING_LIST:
      text = "a list of texts";
      break;
    case LUNA_TYPE_STRING_MAP:
      text = "a table of texts";
      break;
    default:
      text = "a text";
      break;
  }
  if (param.choices != nullptr) text += " among " + std::string(param.choices);
  if (param.min != nullptr && param.max != nullptr)
    text += " in " + std::string(param.min) + ".." + param.max;
  else if (param.min != nullptr)
    text += " of at least " + std::string(param.min);
  else if (param.max != nullptr)
    text += " of at most " + std::string(param.max);
  return text;
}

std::optional<RawValue> parse_setting(const luna_param& param, const char* written) {
  const std::string_view text(written);
  switch (param.type) {
    case LUNA_TYPE_BOOL:
      if (text != "true" && text != "false") return std::nullopt;
      return RawValue(text == "true");
    case LUNA_TYPE_INT:
      if (const auto value = parse<std::int64_t>(written)) return RawValue(*value);
      return std::nullopt;
    case LUNA_TYPE_FLOAT:
      if (const auto value = parse<double>(written)) return RawValue(*value);
      return std::nullopt;
    case LUNA_TYPE_STRING:
      return RawValue(std::string(text));
    case LUNA_TYPE_STRING_LIST:
      return RawValue(split(text, '|'));
    case LUNA_TYPE_STRING_MAP: {
      std::vector<std::pair<std::string, std::string>> map;
      for (const std::string& entry : split(text, '|')) {
        const std::size_t equals = entry.find('=');
        if (equals == std::string::npos) return std::nullopt;
        map.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
      }
      return RawValue(std::move(map));
    }
    default:
      return std::nullopt;
  }
}

CheckedRows check_rows(const luna_if& head, const config::RawGroup& settings) {
  CheckedRows checked;
  const std::vector<const luna_param*> params = params_of(head);
  for (const RawSetting& setting : settings.rows) {
    const auto is_it = [&](const luna_param* param) { return setting.key == param->key; };
    if (std::ranges::none_of(params, is_it))
      checked.errors.push_back(unknown_key(settings, setting, params));
  }
  for (const luna_param* param : params) {
    const auto found = std::ranges::find(settings.rows, param->key, &RawSetting::key);
    const std::string name = settings.table + "." + param->key;
    if (found != settings.rows.end()) {
      if (!add_value(checked.rows, *param, found->value))
        checked.errors.emplace_back(Code::invalid_argument,
                                    name + " = " + print_value(found->value) + ": must be " +
                                        describe_param(*param) + " (" +
                                        config::locate(settings.file, found->value_at) + ")");
    } else if (param->dflt == nullptr) {
      checked.errors.emplace_back(Code::invalid_argument,
                                  name + " is missing: must be " + describe_param(*param) + " (" +
                                      config::locate(settings.file, settings.at) + ")");
    } else {
      const auto value = parse_setting(*param, param->dflt);
      if (!value || !add_value(checked.rows, *param, *value))
        checked.errors.emplace_back(Code::corrupt,
                                    "the plugin's own default for " + name + " is '" + param->dflt +
                                        "': must be " + describe_param(*param));
    }
  }
  return checked;
}

}  // namespace luna::plugin
