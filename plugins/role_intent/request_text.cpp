#include "request_text.hpp"

#include <boost/json.hpp>

namespace luna::intent {
namespace {

namespace json = boost::json;

// The host's own limit on a request's nesting is lower.
constexpr std::size_t kDepthMax = 256;

void append_text(const json::value& content, std::string& text) {
  if (const auto* string = content.if_string()) {
    text.append(string->data(), string->size());
    return;
  }
  const auto* parts = content.if_array();
  if (parts == nullptr) return;
  for (const json::value& part : *parts) {
    const auto* object = part.if_object();
    const auto* piece = object != nullptr ? object->if_contains("text") : nullptr;
    if (piece != nullptr && piece->is_string()) append_text(*piece, text);
  }
}

std::string last_user_text(const json::array& messages) {
  std::string text;
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    const auto* object = message->if_object();
    if (object == nullptr) continue;
    const auto* role = object->if_contains("role");
    const auto* content = object->if_contains("content");
    if (role == nullptr || content == nullptr || *role != "user") continue;
    append_text(*content, text);
    break;
  }
  return text;
}

/// Cuts at the border of a character.
void cut(std::string& text, std::size_t n_bytes_max) {
  if (text.size() <= n_bytes_max) return;
  std::size_t end = n_bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U)
    --end;
  text.resize(end);
}

}  // namespace

std::string text_of_request(std::string_view request_json, std::size_t text_bytes_max) {
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = kDepthMax;
  const json::value parsed = json::parse(request_json, error, {}, options);
  const auto* request = parsed.if_object();
  std::string text;
  if (error || request == nullptr) return text;
  if (const auto* messages = request->if_contains("messages");
      messages != nullptr && messages->is_array()) {
    text = last_user_text(messages->get_array());
  } else if (const auto* prompt = request->if_contains("prompt"); prompt != nullptr) {
    append_text(*prompt, text);
  }
  cut(text, text_bytes_max);
  return text;
}

std::string fill_prompt(std::string_view prompt, std::string_view text, std::string_view labels) {
  constexpr std::string_view kText = "{text}";
  constexpr std::string_view kLabels = "{labels}";
  std::string filled;
  while (!prompt.empty()) {
    if (prompt.starts_with(kText)) {
      filled += text;
      prompt.remove_prefix(kText.size());
    } else if (prompt.starts_with(kLabels)) {
      filled += labels;
      prompt.remove_prefix(kLabels.size());
    } else {
      filled += prompt.front();
      prompt.remove_prefix(1);
    }
  }
  return filled;
}

std::string model_request(std::string_view prompt, const std::string& labels_json) {
  json::object message;
  message["role"] = "user";
  message["content"] = prompt;
  return R"({"max_tokens":1,"temperature":0,"allowed_text":)" + labels_json + R"(,"messages":[)" +
         json::serialize(message) + "]}";
}

}  // namespace luna::intent
