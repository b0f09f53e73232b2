#include "core/text/chat_template.hpp"

#include "core/text/template_eval.hpp"
#include "core/text/template_parser.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <array>

namespace luna::text {
namespace {

namespace json = boost::json;
using jinja::Value;

constexpr std::array<std::string_view, 8> kRoles = {
    "system", "user", "assistant", "tool", "developer", "function", "ipython", "model"};

std::string_view view(json::string_view text) {
  return {text.data(), text.size()};
}

/// Turns variables into values; all of them untrusted.
class Importer {
 public:
  Result<Value> import(const json::value& value) {
    switch (value.kind()) {
      case json::kind::null:
        return Value::none(false);
      case json::kind::bool_:
        return Value::boolean(value.get_bool(), false);
      case json::kind::int64:
        return Value::integer(value.get_int64(), false);
      case json::kind::double_:
        return Value::real(value.get_double(), false);
      case json::kind::string:
        return Value::text(view(value.get_string()), false);
      case json::kind::array:
        return import_array(value.get_array());
      case json::kind::object:
        return import_object(value.get_object());
      case json::kind::uint64:
        break;
    }
    return Error{
        Code::invalid_argument,
        std::to_string(value.get_uint64()) + " does not fit into a signed integer of 64 bits"};
  }

  /// The messages: as anything else, but for the roles.
  Result<Value> import_messages(const json::value& messages) {
    if (!messages.is_array()) return import(messages);
    std::vector<Value> items;
    for (const json::value& message : messages.get_array()) {
      LUNA_TRY(Value item, import(message));
      items.push_back(std::move(item));
    }
    // The dictionaries are new and nobody else's yet, so the role may still be put into them.
    for (std::size_t i = 0; i < items.size(); ++i) {
      const json::object* message = messages.get_array()[i].if_object();
      const json::value* role = message == nullptr ? nullptr : message->if_contains("role");
      if (role == nullptr || !role->is_string()) continue;
      const std::string_view word = view(role->get_string());
      if (std::find(kRoles.begin(), kRoles.end(), word) == kRoles.end()) continue;
      auto trusted = std::make_shared<jinja::Dict>(items[i].as_dict());
      trusted->set(Value::text("role", false), Value::text(word, true));
      items[i] = Value::of(std::move(trusted));
    }
    return finished(std::move(items));
  }

 private:
  static Result<Value> finished(std::vector<Value> items) {
    auto list = jinja::make_list(std::move(items));
    list->trusted = false;
    if (list->depth > jinja::kValueDepthMax) return too_deep();
    return Value::of(std::move(list));
  }

  static Error too_deep() {
    return {
        Code::invalid_argument,
        "values are nested more than " + std::to_string(jinja::kValueDepthMax) + " levels deep"};
  }

  Result<Value> import_array(const json::array& array) {
    std::vector<Value> items;
    items.reserve(array.size());
    if (++depth_ > jinja::kValueDepthMax) return too_deep();
    for (const json::value& element : array) {
      LUNA_TRY(Value item, import(element));
      items.push_back(std::move(item));
    }
    --depth_;
    return finished(std::move(items));
  }

  Result<Value> import_object(const json::object& object) {
    auto dict = std::make_shared<jinja::Dict>();
    dict->trusted = false;
    if (++depth_ > jinja::kValueDepthMax) return too_deep();
    for (const auto& [key, element] : object) {
      LUNA_TRY(Value item, import(element));
      dict->set(Value::text(view(key), false), std::move(item));
    }
    --depth_;
    return Value::of(std::move(dict));
  }

  std::uint32_t depth_ = 0;
};

}  // namespace

struct ChatTemplate::Parts {
  jinja::Template parsed;
  std::string bos;
  std::string eos;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::create(std::string_view source,
                                          std::string bos,
                                          std::string eos) {
  LUNA_TRY(jinja::Template parsed, jinja::parse_template(source));
  return ChatTemplate(
      std::make_unique<Parts>(Parts{std::move(parsed), std::move(bos), std::move(eos)}));
}

Result<std::vector<TextRun>> ChatTemplate::render(const json::object& variables,
                                                  std::chrono::system_clock::time_point now) const {
  jinja::Variables values;
  Importer importer;
  std::uint64_t weight = 0;
  for (const auto& [key, element] : variables) {
    const std::string_view name = view(key);
    if ((name == "bos_token" && !parts_->bos.empty()) ||
        (name == "eos_token" && !parts_->eos.empty())) {
      continue;
    }
    LUNA_TRY(Value value,
             name == "messages" ? importer.import_messages(element) : importer.import(element));
    weight += jinja::weight_of(value);
    values.emplace_back(std::string(name), std::move(value));
  }
  if (!parts_->bos.empty()) values.emplace_back("bos_token", Value::text(parts_->bos, true));
  if (!parts_->eos.empty()) values.emplace_back("eos_token", Value::text(parts_->eos, true));
  jinja::RenderLimits limits;
  // A template goes over its input some times; long conversations need more than short ones.
  constexpr std::uint64_t kPassesOverInput = 64;
  limits.n_units_max += kPassesOverInput * weight;
  LUNA_TRY(const MarkedText rendered, jinja::run_template(parts_->parsed, values, now, limits));
  return rendered.runs();
}

}  // namespace luna::text
