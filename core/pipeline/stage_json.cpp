#include "core/pipeline/stage_json.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace luna::pipeline {
namespace {

namespace json = boost::json;

constexpr std::size_t kNotesMax = 64;
constexpr std::size_t kStopStringsMax = 16;
constexpr double kTemperatureMax = 100.0;

constexpr std::array<std::string_view, 8> kCoreNames = {
    "id", "endpoint", "stage", "choice", "n", "messages", "prompt", "stop"};

Error bad(std::string_view key, std::string_view why) {
  return {Code::invalid_argument, std::string(key) + " " + std::string(why)};
}

Result<json::object> parse_object(std::string_view text) {
  boost::system::error_code error;
  json::value parsed = json::parse(text, error);
  if (error) return Error{Code::invalid_argument, "not JSON: " + error.message()};
  if (!parsed.is_object()) return Error{Code::invalid_argument, "not a JSON object"};
  return std::move(parsed.get_object());
}

Result<std::uint32_t> read_count(std::string_view key,
                                 const json::value& value,
                                 std::uint32_t min) {
  boost::system::error_code error;
  const auto number = value.to_number<std::uint32_t>(error);
  if (error || number < min) {
    return bad(key, "must be a whole number of at least " + std::to_string(min));
  }
  return number;
}

Result<float> read_number(std::string_view key, const json::value& value, double max) {
  boost::system::error_code error;
  const auto number = value.to_number<double>(error);
  if (error || !(number >= 0.0 && number <= max)) {
    return bad(key, "must be a number in 0.." + std::to_string(max));
  }
  return static_cast<float>(number);
}

/// Takes the key if it is one of the overrides'. Returns whether it was.
Result<bool> read_override(std::string_view key, const json::value& value, RunOverrides& out) {
  if (key == "max_tokens") {
    LUNA_TRY(out.n_generated_max, read_count(key, value, 1));
  } else if (key == "top_k") {
    LUNA_TRY(out.top_k, read_count(key, value, 0));
  } else if (key == "temperature") {
    LUNA_TRY(out.temperature, read_number(key, value, kTemperatureMax));
  } else if (key == "top_p") {
    LUNA_TRY(out.top_p, read_number(key, value, 1.0));
  } else if (key == "min_p") {
    LUNA_TRY(out.min_p, read_number(key, value, 1.0));
  } else {
    return false;
  }
  return true;
}

Result<std::vector<std::string>> read_strings(std::string_view key, const json::value& value) {
  const auto* array = value.if_array();
  if (array == nullptr) return bad(key, "must be a list of strings");
  std::vector<std::string> strings;
  for (const json::value& element : *array) {
    if (!element.is_string()) return bad(key, "must be a list of strings");
    strings.emplace_back(element.get_string());
  }
  return strings;
}

Result<void> read_wish_key(std::string_view key, const json::value& value, ModelWish& wish) {
  if (key == "messages") {
    if (!value.is_array()) return bad(key, "must be a list");
    wish.template_variables.emplace();
    (*wish.template_variables)["messages"] = value;
    (*wish.template_variables)["add_generation_prompt"] = true;
  } else if (key == "prompt") {
    if (!value.is_string()) return bad(key, "must be a string");
    wish.prompt = std::string(value.get_string());
  } else if (key == "allowed_text") {
    LUNA_TRY(wish.allowed_text, read_strings(key, value));
    if (wish.allowed_text.empty()) return bad(key, "must have at least one string");
  } else if (key == "stop") {
    LUNA_TRY(wish.stop_strings, read_strings(key, value));
    if (wish.stop_strings->size() > kStopStringsMax) return bad(key, "has more than 16 strings");
  } else {
    LUNA_TRY(const bool known, read_override(key, value, wish.overrides));
    if (!known) return bad(key, "is no key of a model request");
  }
  return {};
}

}  // namespace

void RunOverrides::apply(SamplingParams& sampling) const {
  if (temperature) sampling.temperature = *temperature;
  if (top_p) sampling.top_p = *top_p;
  if (min_p) sampling.min_p = *min_p;
  if (top_k) sampling.top_k = *top_k;
}

Result<void> StageUpdates::merge(std::string_view update_json) {
  LUNA_TRY(const json::object update, parse_object(update_json));
  for (const auto& [key, value] : update) {
    if (std::find(kCoreNames.begin(), kCoreNames.end(), std::string_view(key)) !=
        kCoreNames.end()) {
      return bad(key, "cannot be updated");
    }
    const std::optional<std::uint32_t> limit_before = overrides_.n_generated_max;
    LUNA_TRY(const bool known, read_override(key, value, overrides_));
    if (known) {
      if (limit_before) {
        overrides_.n_generated_max = std::min(*limit_before, *overrides_.n_generated_max);
      }
      continue;
    }
    if (!value.is_string() && !value.is_number() && !value.is_bool()) {
      return bad(key, "must be a string, a number or a boolean");
    }
    const std::string name(key);
    std::erase_if(notes_, [&](const auto& entry) { return entry.first == name; });
    if (notes_.size() == kNotesMax) {
      return Error{Code::unsupported, "more than 64 keys of updates"};
    }
    notes_.emplace_back(name, json::serialize(value));
  }
  return {};
}

std::uint32_t StageUpdates::settle_length(std::uint32_t n_generated_max) const {
  return std::min(n_generated_max, overrides_.n_generated_max.value_or(n_generated_max));
}

std::string StageUpdates::note(std::string_view key) const {
  for (const auto& [name, value] : notes_) {
    if (name != key) continue;
    const json::value parsed = json::parse(value);  // our own serialization
    if (parsed.is_string()) return std::string(parsed.get_string());
  }
  return {};
}

Result<ModelWish> ModelWish::parse(std::string_view wish_json) {
  ModelWish wish;
  LUNA_TRY(const json::object object, parse_object(wish_json));
  for (const auto& [key, value] : object)
    LUNA_TRY(read_wish_key(key, value, wish));
  if (wish.template_variables && wish.prompt) {
    return bad("prompt", "and messages exclude each other");
  }
  if (!wish.is_clients_prompt() && wish.allowed_text.empty() && !wish.overrides.n_generated_max) {
    return bad("max_tokens", "is needed with a prompt of the role's own");
  }
  return wish;
}

RequestItemWriter::RequestItemWriter(const Request& request) {
  json::object head;
  head["id"] = request.id;
  head["endpoint"] = request.endpoint == Endpoint::chat ? "chat" : "completion";
  head["n"] = request.n_choices;
  if (request.endpoint == Endpoint::chat) {
    if (const auto* messages = request.template_variables.if_contains("messages")) {
      head["messages"] = *messages;
    }
  } else if (request.prompt_ids.empty()) {
    head["prompt"] = request.prompt_text;
  }
  json::array stops;
  for (const std::string& stop : request.stop.stop_strings)
    stops.emplace_back(stop);
  head["stop"] = std::move(stops);
  head_ = json::serialize(head);
  head_.pop_back();
}

std::string RequestItemWriter::write(Place place,
                                     const Request& request,
                                     const StageUpdates& updates) const {
  SamplingParams sampling = request.sampling;
  updates.overrides().apply(sampling);
  json::object rest;
  rest["stage"] = place.stage;
  rest["choice"] = place.choice;
  rest["max_tokens"] = updates.settle_length(request.stop.n_generated_max);
  rest["temperature"] = sampling.temperature;
  rest["top_p"] = sampling.top_p;
  rest["min_p"] = sampling.min_p;
  rest["top_k"] = sampling.top_k;
  for (const auto& [key, value] : updates.notes())
    rest[key] = json::parse(value);
  const std::string tail = json::serialize(rest);
  return head_ + ',' + tail.substr(1);
}

}  // namespace luna::pipeline
