// What of a request is classified.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace luna::intent {

/// The text of a REQUEST item's last user message, or its prompt; at most so many bytes from its
/// beginning, whole characters. Empty when there is none: other forms of request are no error here.
std::string text_of_request(std::string_view request_json, std::size_t text_bytes_max);

/// `prompt` with {text} and {labels} replaced, in one pass: braces inside `text` stay text.
std::string fill_prompt(std::string_view prompt, std::string_view text, std::string_view labels);

/// {"messages": [{"role": "user", "content": prompt}], "allowed_text": labels, ...} for one token.
std::string model_request(std::string_view prompt, const std::string& labels_json);

}  // namespace luna::intent
