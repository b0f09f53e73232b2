#include "intent_settings.hpp"

#include <boost/json.hpp>

#include <algorithm>

namespace luna::intent {
namespace {

namespace json = boost::json;

constexpr std::size_t kLabelsMax = 64;

Error wrong(std::string_view key, std::string_view label, std::string_view why) {
  return {Code::invalid_argument,
          std::string(key) + ": label '" + std::string(label) + "' " + std::string(why)};
}

Result<std::size_t> find(const std::vector<Label>& labels,
                         std::string_view key,
                         std::string_view name) {
  const auto found =
      std::find_if(labels.begin(), labels.end(), [&](const Label& l) { return l.name == name; });
  if (found == labels.end()) return wrong(key, name, "is not among labels");
  return static_cast<std::size_t>(found - labels.begin());
}

Result<void> read_labels(const Settings& settings, IntentSettings& out) {
  json::array names;
  for (std::string& name : settings.list("labels")) {
    if (name.empty()) return wrong("labels", name, "is empty");
    if (find(out.labels, "labels", name)) return wrong("labels", name, "is there twice");
    names.emplace_back(name);
    out.labels_text += (out.labels.empty() ? "" : ", ") + name;
    out.choices.append(name).push_back('\0');
    json::object update;
    update["intent"] = name;
    out.labels.push_back({std::move(name), json::serialize(update), std::nullopt});
  }
  if (out.labels.size() < 2 || out.labels.size() > kLabelsMax) {
    return Error{Code::invalid_argument,
                 "labels: there are " + std::to_string(out.labels.size()) + ", must be 2.." +
                     std::to_string(kLabelsMax)};
  }
  out.labels_json = json::serialize(names);
  return {};
}

Result<void> read_patterns(const Settings& settings, IntentSettings& out) {
  const std::vector<std::string> table = settings.list("patterns");
  for (std::size_t i = 0; i + 1 < table.size(); i += 2) {
    LUNA_TRY(const std::size_t idx, find(out.labels, "patterns", table[i]));
    auto compiled = pattern::Pattern::compile(table[i + 1], pattern::Pattern::Extent::anywhere);
    if (!compiled) return compiled.error().in("patterns: label '" + table[i] + "'");
    out.labels[idx].pattern = *std::move(compiled);
    out.order.push_back(idx);
  }
  if (out.method == IntentSettings::Method::regex && out.order.empty()) {
    return Error{Code::invalid_argument, "patterns: method \"regex\" needs at least one"};
  }
  if (out.method == IntentSettings::Method::model && !out.order.empty()) {
    return Error{Code::invalid_argument, "patterns: only for method \"regex\""};
  }
  return {};
}

/// What an update may hold is the host's to say; here it must be a flat object.
Result<void> read_updates(const Settings& settings, IntentSettings& out) {
  const std::vector<std::string> table = settings.list("updates");
  for (std::size_t i = 0; i + 1 < table.size(); i += 2) {
    LUNA_TRY(const std::size_t idx, find(out.labels, "updates", table[i]));
    boost::system::error_code error;
    json::value parsed = json::parse(table[i + 1], error);
    if (error || !parsed.is_object()) {
      return wrong("updates", table[i], "must have a JSON object, not " + table[i + 1]);
    }
    for (const auto& [key, value] : parsed.get_object()) {
      if (!value.is_number() && !value.is_string() && !value.is_bool()) {
        return wrong("updates",
                     table[i],
                     "has key '" + std::string(key) + "' that is no number, string or boolean");
      }
    }
    parsed.get_object()["intent"] = table[i];
    out.labels[idx].update_json = json::serialize(parsed);
  }
  return {};
}

}  // namespace

Result<IntentSettings> IntentSettings::read(const Settings& settings) {
  IntentSettings out;
  out.method = settings.text("method") == "regex" ? Method::regex : Method::model;
  out.prompt = settings.text("prompt");
  out.text_bytes_max = static_cast<std::size_t>(settings.integer("text_bytes_max"));
  LUNA_TRY(read_labels(settings, out));
  LUNA_TRY(read_patterns(settings, out));
  LUNA_TRY(read_updates(settings, out));
  out.default_idx = out.labels.size() - 1;
  if (const std::string name = settings.text("default_label"); !name.empty()) {
    LUNA_TRY(out.default_idx, find(out.labels, "default_label", name));
  }
  return out;
}

}  // namespace luna::intent
