#include "core/app/plan_text.hpp"

#include "core/config/settings_value.hpp"
#include "core/config/toml_document.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace luna::app {
namespace {

std::string toml_string(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7F) {
      out += "\\u00";
      out += kHex[code >> 4U];
      out += kHex[code & 15U];
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

/// A number that reads back to the same bits, and as a number that is not an integer.
std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> digits{};
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  std::string text(digits.data(), written.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string value_text(const config::RawValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return number_text(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return toml_string(*text);
  std::string out;
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& element : *list)
      out += (out.empty() ? "" : ", ") + toml_string(element);
    return "[" + out + "]";
  }
  for (const auto& [key, element] : std::get<5>(value))
    out += (out.empty() ? "" : ", ") + toml_string(key) + " = " + toml_string(element);
  return "{" + out + "}";
}

}  // namespace

std::string print_plan_text(const PlanText& text) {
  std::string out = "model = " + toml_string(text.model) +
                    "\npolicy = " + toml_string(text.policy) +
                    "\nplugin_version = " + toml_string(text.plugin_version) + "\n\n[settings]\n";
  for (const config::RawSetting& row : text.settings.rows)
    out += toml_string(row.key) + " = " + value_text(row.value) + "\n";
  return out;
}

Result<PlanText> parse_plan_text(std::string_view text, const std::string& file) {
  auto root = config::parse_toml(text, file);
  if (!root) return Error{Code::corrupt, root.error().message()};
  PlanText read;
  const std::array<std::pair<std::string_view, std::string*>, 3> texts = {
      {{"model", &read.model}, {"policy", &read.policy}, {"plugin_version", &read.plugin_version}}};
  const auto* table = std::get_if<config::TomlNode::Table>(&root->value);
  if (table == nullptr) return Error{Code::corrupt, file + ": its text is no table"};
  for (const config::TomlEntry& entry : *table) {
    for (const auto& [key, to] : texts)
      if (const auto* value = std::get_if<std::string>(&entry.node.value);
          value != nullptr && entry.key == key)
        *to = *value;
    const auto* settings = std::get_if<config::TomlNode::Table>(&entry.node.value);
    if (entry.key != "settings" || settings == nullptr) continue;
    for (const config::TomlEntry& setting : *settings) {
      auto value = config::convert_raw(setting.node);
      if (!value) return Error{Code::corrupt, file + ": setting '" + setting.key + "' is no value"};
      read.settings.rows.push_back(
          {setting.key, *std::move(value), setting.key_at, setting.node.at});
    }
  }
  if (read.policy.empty()) return Error{Code::corrupt, file + ": it does not name its policy"};
  read.settings.file = file;
  read.settings.table = "scheduler." + read.policy;
  return read;
}

}  // namespace luna::app
