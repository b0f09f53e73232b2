#include "core/http/chat_messages.hpp"

#include "core/text/json_text.hpp"

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace luna::http {
namespace {

namespace json = boost::json;

constexpr std::size_t kMessagesMax = 4096;
constexpr std::size_t kToolsMax = 512;

std::string at(std::string_view list, std::size_t i) {
  return std::string(list) + "[" + std::to_string(i) + "]";
}

/// A list of text parts as one text; two parts are two paragraphs of one message.
std::optional<std::string> join_parts(const json::array& parts,
                                      const std::string& where,
                                      FieldReader& fields) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string here = at(where + ".content", i);
    const auto* part = parts[i].if_object();
    const auto* type = part == nullptr ? nullptr : part->if_contains("type");
    if (type == nullptr || !type->is_string()) {
      fields.fail(invalid_request(here, here + " must be an object with a 'type'"));
      return std::nullopt;
    }
    if (type->get_string() != "text") {
      fields.fail(invalid_request(here + ".type",
                                  "content of type '" + std::string(type->get_string()) +
                                      "' is not supported: this model reads text only"));
      return std::nullopt;
    }
    const auto* part_text = part->if_contains("text");
    if (part_text == nullptr || !part_text->is_string()) {
      fields.fail(invalid_request(here + ".text", here + ".text must be a string"));
      return std::nullopt;
    }
    if (i > 0) text += '\n';
    text += std::string_view(part_text->get_string());
  }
  return text;
}

/// Arguments come as JSON text; templates want the object. What does not parse stays text.
void open_arguments(json::object& call) {
  auto* function = call.if_contains("function");
  if (function == nullptr || !function->is_object()) return;
  auto* arguments = function->get_object().if_contains("arguments");
  if (arguments == nullptr || !arguments->is_string()) return;
  json::value parsed;
  if (text::parse_json(std::string_view(arguments->get_string()), parsed) && parsed.is_object())
    *arguments = std::move(parsed);
}

bool read_tool_calls(json::object& message, const std::string& where, FieldReader& fields) {
  auto* calls = message.if_contains("tool_calls");
  if (calls == nullptr || calls->is_null()) return false;
  if (!calls->is_array()) {
    fields.fail(invalid_request(where + ".tool_calls", where + ".tool_calls must be an array"));
    return false;
  }
  for (std::size_t i = 0; i < calls->get_array().size(); ++i) {
    json::value& call = calls->get_array()[i];
    const std::string here = at(where + ".tool_calls", i);
    const auto* function = call.is_object() ? call.get_object().if_contains("function") : nullptr;
    if (function == nullptr || !function->is_object() || !function->get_object().contains("name")) {
      fields.fail(invalid_request(here, here + " must be an object with 'function.name'"));
      return false;
    }
    open_arguments(call.get_object());
  }
  return !calls->get_array().empty();
}

void read_content(json::object& message,
                  const std::string& where,
                  bool may_be_empty,
                  FieldReader& fields) {
  auto* content = message.if_contains("content");
  if (content == nullptr || content->is_null()) {
    if (!may_be_empty)
      fields.fail(invalid_request(where + ".content", where + ".content is missing"));
    message["content"] = "";
    return;
  }
  if (content->is_string()) return;
  if (const auto* parts = content->if_array()) {
    if (auto text = join_parts(*parts, where, fields)) message["content"] = *text;
    return;
  }
  fields.fail(invalid_request(where + ".content",
                              where + ".content must be a string or a list of parts, not " +
                                  std::string(kind_name(*content))));
}

void read_message(json::value& value, std::size_t i, FieldReader& fields) {
  const std::string where = at("messages", i);
  if (!value.is_object()) {
    fields.fail(
        invalid_request(where, where + " must be an object, not " + std::string(kind_name(value))));
    return;
  }
  json::object& message = value.get_object();
  const auto* role = message.if_contains("role");
  if (role == nullptr || !role->is_string()) {
    fields.fail(invalid_request(where + ".role", where + ".role must be a string"));
    return;
  }
  const std::string name(role->get_string());
  if (name != "system" && name != "developer" && name != "user" && name != "assistant" &&
      name != "tool" && name != "function") {
    fields.fail(invalid_request(
        where + ".role",
        where + ".role is '" + name + "': must be system, developer, user, assistant or tool"));
    return;
  }
  if (name == "developer") message["role"] = "system";
  const bool has_calls = name == "assistant" && read_tool_calls(message, where, fields);
  read_content(message, where, has_calls, fields);
}

void read_tools(const json::array& tools, FieldReader& fields) {
  if (tools.size() > kToolsMax) {
    fields.fail(invalid_request("tools",
                                "'tools' has " + std::to_string(tools.size()) +
                                    " entries: at most " + std::to_string(kToolsMax)));
    return;
  }
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string where = at("tools", i);
    const auto* tool = tools[i].if_object();
    const auto* function = tool == nullptr ? nullptr : tool->if_contains("function");
    const auto* name = function != nullptr && function->is_object()
                           ? function->get_object().if_contains("name")
                           : nullptr;
    if (name == nullptr || !name->is_string())
      fields.fail(invalid_request(where, where + " must be a function tool with 'function.name'"));
  }
}

/// Whether the model may see the tools; forcing a call needs constrained decoding.
bool read_tool_choice(FieldReader& fields) {
  const json::value* choice = fields.find("tool_choice");
  if (choice == nullptr) return true;
  if (const auto* word = choice->if_string()) {
    if (*word == "auto") return true;
    if (*word == "none") return false;
    if (*word == "required") {
      fields.fail(unsupported_parameter(
          "tool_choice", "tool_choice 'required' is not supported yet; use 'auto' or 'none'"));
      return false;
    }
  } else if (choice->is_object()) {
    fields.fail(unsupported_parameter(
        "tool_choice", "a forced tool_choice is not supported yet; use 'auto' or 'none'"));
    return false;
  }
  fields.fail(invalid_request("tool_choice",
                              "'tool_choice' must be 'none', 'auto', 'required' or an object"));
  return false;
}

}  // namespace

json::object read_template_variables(FieldReader& fields) {
  json::object variables;
  const json::array* messages = fields.array("messages");
  if (messages == nullptr) {
    fields.fail(
        invalid_request("messages", "'messages' is missing: a list of at least one message"));
    return variables;
  }
  if (messages->empty() || messages->size() > kMessagesMax) {
    fields.fail(invalid_request("messages",
                                "'messages' has " + std::to_string(messages->size()) +
                                    " entries: must be between 1 and " +
                                    std::to_string(kMessagesMax)));
    return variables;
  }
  json::array checked = *messages;
  for (std::size_t i = 0; i < checked.size(); ++i)
    read_message(checked[i], i, fields);
  variables["messages"] = std::move(checked);

  const json::array* tools = fields.array("tools");
  if (tools != nullptr) read_tools(*tools, fields);
  const bool show_tools = read_tool_choice(fields);
  if (tools != nullptr && !tools->empty() && show_tools) variables["tools"] = *tools;
  for (const char* key : {"functions", "function_call"})
    if (fields.find(key) != nullptr)
      fields.fail(
          unsupported_parameter(key, std::string("'") + key + "' is not supported; use 'tools'"));

  variables["add_generation_prompt"] = fields.boolean("add_generation_prompt").value_or(true);
  if (const json::object* extra = fields.object("chat_template_kwargs"))
    for (const auto& [key, value] : *extra)
      if (key != "messages") variables[key] = value;
  return variables;
}

}  // namespace luna::http
