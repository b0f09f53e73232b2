#include "core/bench/completion_event.hpp"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

namespace luna::bench {
namespace {

namespace json = boost::json;

constexpr std::size_t kErrorTextMax = 300;

const json::object* object_at(const json::object& parent, std::string_view key) {
  const json::value* value = parent.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

bool has_text(const json::object& parent, std::string_view key) {
  const json::value* value = parent.if_contains(key);
  const json::string* text = value == nullptr ? nullptr : value->if_string();
  return text != nullptr && !text->empty();
}

std::uint32_t count_at(const json::object& parent, std::string_view key) {
  const json::value* value = parent.if_contains(key);
  if (value == nullptr) return 0;
  boost::system::error_code failed;
  const auto n = value->to_number<std::uint32_t>(failed);
  return failed ? 0 : n;
}

ServerUsage read_usage(const json::object& usage) {
  ServerUsage read{count_at(usage, "prompt_tokens"), 0, count_at(usage, "completion_tokens")};
  if (const json::object* details = object_at(usage, "prompt_tokens_details"))
    read.n_cached = count_at(*details, "cached_tokens");
  return read;
}

/// A completion's event is a token's even when its text is empty, as the first half of a character
/// is; the last one, with the reason of the end, needs text. In a chat the role comes alone, first.
bool has_token(const json::object& choice) {
  if (const json::object* delta = object_at(choice, "delta"))
    return has_text(*delta, "content") || has_text(*delta, "reasoning_content") ||
           delta->contains("tool_calls");
  const json::value* finish = choice.if_contains("finish_reason");
  const bool is_last = finish != nullptr && !finish->is_null();
  return has_text(choice, "text") || (choice.contains("text") && !is_last);
}

}  // namespace

CompletionEvent read_completion_event(std::string_view data) {
  CompletionEvent event;
  if (data == "[DONE]") {
    event.is_done = true;
    return event;
  }
  boost::system::error_code failed;
  const json::value parsed = json::parse(data, failed);
  const json::object* root = failed ? nullptr : parsed.if_object();
  if (root == nullptr) {
    event.error = "an event is no JSON object: " + std::string(data.substr(0, kErrorTextMax));
    return event;
  }
  if (const json::value* error = root->if_contains("error"); error != nullptr && !error->is_null())
    event.error = json::serialize(*error).substr(0, kErrorTextMax);
  if (const json::object* usage = object_at(*root, "usage")) event.usage = read_usage(*usage);
  const json::value* choices = root->if_contains("choices");
  if (choices == nullptr || !choices->is_array()) return event;
  for (const json::value& choice : choices->get_array())
    if (choice.is_object() && has_token(choice.get_object())) event.has_token = true;
  return event;
}

}  // namespace luna::bench
