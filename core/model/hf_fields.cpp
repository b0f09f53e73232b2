#include "core/model/hf_fields.hpp"

#include "core/model/config_keys.hpp"

#include <boost/json.hpp>

#include <cmath>

namespace luna::model {
namespace {

namespace json = boost::json;

/// A value as it stands in the file, cut short.
std::string shown(const json::value& value) {
  constexpr std::size_t kBytesMax = 60;
  const std::string text = printable(json::serialize(value));
  return text.size() <= kBytesMax ? text : text.substr(0, kBytesMax) + "...";
}

}  // namespace

const json::value* HfFields::find(std::string_view name) const {
  const json::value* value = object_.if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::optional<std::uint32_t>> HfFields::find_count(std::string_view name,
                                                          std::uint64_t max) const {
  const json::value* value = find(name);
  if (value == nullptr) return std::optional<std::uint32_t>{};
  const bool is_right = value->is_int64() && value->get_int64() >= 1 &&
                        static_cast<std::uint64_t>(value->get_int64()) <= max;
  if (!is_right) return refused(name, "must be a whole number in 1.." + std::to_string(max));
  return std::optional<std::uint32_t>{static_cast<std::uint32_t>(value->get_int64())};
}

Result<std::uint32_t> HfFields::count(std::string_view name, std::uint64_t max) const {
  LUNA_TRY(const auto value, find_count(name, max));
  if (!value) return Error{Code::corrupt, full(name) + ": the field is missing"};
  return *value;
}

Result<std::optional<double>> HfFields::find_positive(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) return std::optional<double>{};
  json::error_code error;
  const double number = value->is_number() ? value->to_number<double>(error) : 0.0;
  if (error || !std::isfinite(number) || number <= 0.0)
    return refused(name, "must be a number above 0");
  return std::optional<double>{number};
}

Result<double> HfFields::positive(std::string_view name) const {
  LUNA_TRY(const auto value, find_positive(name));
  if (!value) return Error{Code::corrupt, full(name) + ": the field is missing"};
  return *value;
}

Result<bool> HfFields::flag_or(std::string_view name, bool otherwise) const {
  const json::value* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_bool()) return refused(name, "must be true or false");
  return value->get_bool();
}

Result<std::optional<std::string_view>> HfFields::find_text(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) return std::optional<std::string_view>{};
  if (!value->is_string()) return refused(name, "must be a string");
  const json::string& text = value->get_string();
  return std::optional<std::string_view>{std::string_view(text.data(), text.size())};
}

Result<std::optional<HfFields>> HfFields::find_object(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) return std::optional<HfFields>{};
  if (!value->is_object()) return refused(name, "must be an object");
  return std::optional<HfFields>(std::in_place, value->get_object(), full(name) + ".");
}

bool HfFields::has(std::string_view name) const {
  return object_.contains(json::string_view(name.data(), name.size()));
}

Result<std::vector<float>> HfFields::positive_list(std::string_view name) const {
  const json::value* value = find(name);
  if (value == nullptr) return Error{Code::corrupt, full(name) + ": the field is missing"};
  const json::array* list = value->if_array();
  std::vector<float> numbers;
  for (const json::value& number : list == nullptr ? json::array{} : *list) {
    json::error_code error;
    numbers.push_back(number.is_number() ? number.to_number<float>(error) : 0.0F);
    if (error || !std::isfinite(numbers.back()) || numbers.back() <= 0.0F)
      return refused(name, "must be a list of numbers above 0");
  }
  if (numbers.empty()) return refused(name, "must be a list of numbers above 0");
  return numbers;
}

Result<std::uint32_t> HfFields::window_period(std::uint32_t n_layers,
                                              std::uint32_t otherwise) const {
  const json::value* value = find("layer_types");
  if (value == nullptr) return otherwise;
  const json::array* types = value->if_array();
  if (types == nullptr || types->size() != n_layers)
    return refused("layer_types", "must be a list of " + std::to_string(n_layers) + " texts");
  const auto sees_all = [&](std::size_t layer) { return (*types)[layer] == "full_attention"; };
  std::size_t period = 0;
  while (period < n_layers && !sees_all(period))
    ++period;
  ++period;
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    const bool is_known = sees_all(layer) || (*types)[layer] == "sliding_attention";
    if (!is_known || sees_all(layer) != (layer % period == period - 1)) {
      return unsupported("layer_types",
                         "built are windows (\"sliding_attention\") in all layers but each n-th "
                         "(\"full_attention\")");
    }
  }
  return static_cast<std::uint32_t>(period);
}

Result<void> HfFields::need_text(std::string_view name, std::string_view built) const {
  LUNA_TRY(const auto text, find_text(name));
  if (text.value_or(built) == built) return {};
  return unsupported(name, "only \"" + std::string(built) + "\" is built");
}

Result<void> HfFields::refuse_window_below(std::uint32_t context_length) const {
  LUNA_TRY(const auto window, find_count("sliding_window", kWindowMax));
  if (!window || *window >= context_length) return {};
  return unsupported("sliding_window", "a sliding window is not built");
}

Result<void> HfFields::refuse_partial_rotary() const {
  LUNA_TRY(const auto share, find_positive("partial_rotary_factor"));
  if (share.value_or(1.0) == 1.0) return {};
  return unsupported("partial_rotary_factor", "only whole heads are rotated so far");
}

Result<void> HfFields::refuse_flag(std::string_view name) const {
  LUNA_TRY(const bool is_on, flag_or(name, false));
  if (!is_on) return {};
  return unsupported(name, "it is not built");
}

Error HfFields::refused(std::string_view name, const std::string& allowed) const {
  return Error{Code::corrupt, full(name) + " = " + shown(*find(name)) + ": " + allowed};
}

Error HfFields::unsupported(std::string_view name, const std::string& why) const {
  return Error{Code::unsupported, full(name) + " = " + shown(*find(name)) + ": " + why};
}

void HfKeys::add(const std::string& key, ValueType type, decltype(MetadataEntry::value) value) {
  MetadataEntry& entry = config_.metadata.emplace_back();
  entry.key = key;
  entry.type = type;
  entry.value = value;
}

void HfKeys::add_whole_text(const std::string& key, std::string_view text) {
  config_.texts.push_back(std::make_unique<const std::string>(text));
  add(key, ValueType::string, std::string_view(*config_.texts.back()));
}

}  // namespace luna::model
