#include "core/http/openai_response.hpp"

#include "core/text/json_text.hpp"
#include "core/text/utf8.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include <array>
#include <charconv>
#include <optional>
#include <utility>

namespace luna::http {
namespace {

namespace json = boost::json;
using pipeline::Endpoint;
using pipeline::OutputToken;

// What OpenAI writes for a probability of zero.
constexpr double kLogprobFloor = -9999.0;

std::string quoted(std::string_view text) {
  std::string out;
  text::append_json_string(out, text);
  return out;
}

json::object usage_object(const pipeline::Usage& usage) {
  json::object object;
  object["prompt_tokens"] = usage.n_prompt;
  object["completion_tokens"] = usage.n_generated;
  object["total_tokens"] = usage.n_prompt + usage.n_generated;
  object["prompt_tokens_details"] = json::object{{"cached_tokens", usage.n_cached}};
  object["completion_tokens_details"] = json::object{{"reasoning_tokens", 0}};
  return object;
}

double shown(float logprob) {
  return logprob < kLogprobFloor ? kLogprobFloor : static_cast<double>(logprob);
}

using TokenBytes = std::function<std::string(pipeline::TokenId)>;

json::object chat_token(pipeline::TokenId id, float logprob, const TokenBytes& token_bytes) {
  const std::string bytes = token_bytes(id);
  json::object object;
  object["token"] = replace_invalid_utf8(bytes);
  object["logprob"] = shown(logprob);
  json::array list;
  for (const char c : bytes)
    list.push_back(static_cast<unsigned char>(c));
  object["bytes"] = std::move(list);
  return object;
}

json::value chat_logprobs(std::span<const OutputToken> tokens, const TokenBytes& token_bytes) {
  json::array content;
  for (const OutputToken& token : tokens) {
    json::object entry = chat_token(token.token_id, token.logprob, token_bytes);
    json::array top;
    for (const auto& alternative : token.top)
      top.push_back(chat_token(alternative.token_id, alternative.logprob, token_bytes));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  json::object object;
  object["content"] = std::move(content);
  object["refusal"] = nullptr;
  return object;
}

/// offset   characters of the choice's text before the first token; moved past the last
json::value completion_logprobs(std::span<const OutputToken> tokens,
                                const TokenBytes& token_bytes,
                                std::size_t& offset) {
  json::array names, logprobs, tops, offsets;
  for (const OutputToken& token : tokens) {
    json::object top;
    for (const auto& alternative : token.top)
      top[replace_invalid_utf8(token_bytes(alternative.token_id))] = shown(alternative.logprob);
    names.push_back(json::string(replace_invalid_utf8(token_bytes(token.token_id))));
    logprobs.push_back(shown(token.logprob));
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += token.n_characters;
  }
  json::object object;
  object["tokens"] = std::move(names);
  object["token_logprobs"] = std::move(logprobs);
  object["top_logprobs"] = std::move(tops);
  object["text_offset"] = std::move(offsets);
  return object;
}

}  // namespace

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const text::Utf8Prefix front = text::utf8_front(bytes);
    if (front.kind == text::Utf8Front::character) {
      text.append(bytes.substr(0, front.n_bytes));
    } else {
      text.append("\xEF\xBF\xBD");
    }
    bytes.remove_prefix(front.n_bytes);
  }
  return text;
}

std::string_view finish_name(pipeline::FinishReason reason) {
  const bool is_stop = reason == pipeline::FinishReason::stop;
  return pipeline::finish_reason_name(is_stop ? reason : pipeline::FinishReason::length);
}

OpenaiResponse::OpenaiResponse(Options options) : options_(std::move(options)) {
  const bool chat = options_.endpoint == Endpoint::chat;
  event_head_ = R"({"id":)" + quoted(options_.id) + R"(,"object":")" +
                (chat ? "chat.completion.chunk" : "text_completion") + R"(","created":)" +
                std::to_string(options_.created_s) + R"(,"model":)" + quoted(options_.model) +
                R"(,"system_fingerprint":"luna",)";
  choice_head_ =
      event_head_ + (options_.include_usage ? R"("usage":null,)" : "") + R"("choices":[{"index":)";
}

/// What differs between chunks of a choice. JSON but for `text`, which is quoted on its way.
struct OpenaiResponse::Payload {
  std::string_view before = {};
  std::optional<std::string_view> text = {};
  std::string_view after = {};
  std::string_view logprobs = "null";
  std::string_view finish = "null";
};

void OpenaiResponse::chunk(std::string& out, std::uint32_t choice, const Payload& payload) const {
  std::array<char, 10> digits;
  const auto number = std::to_chars(digits.data(), digits.data() + digits.size(), choice);
  out += choice_head_;
  out.append(digits.data(), number.ptr);
  out += payload.before;
  if (payload.text) text::append_json_string(out, *payload.text);
  out += payload.after;
  out += R"(,"logprobs":)";
  out += payload.logprobs;
  out += R"(,"finish_reason":)";
  out += payload.finish;
  out += "}]}";
}

std::size_t& OpenaiResponse::text_offset(std::uint32_t choice) {
  if (text_offsets_.size() <= choice) text_offsets_.resize(choice + 1);
  return text_offsets_[choice];
}

void OpenaiResponse::role_chunk(std::string& out, std::uint32_t choice) const {
  chunk(out, choice, {.before = R"(,"delta":{"role":"assistant","content":""})"});
}

void OpenaiResponse::echo_chunk(std::string& out, std::uint32_t choice, std::string_view prompt) {
  text_offset(choice) += text::count_characters(prompt);
  chunk(out, choice, {.before = R"(,"text":)", .text = prompt});
}

void OpenaiResponse::text_chunk(std::string& out,
                                std::uint32_t choice,
                                std::string_view text,
                                std::span<const OutputToken> tokens) {
  const bool chat = options_.endpoint == Endpoint::chat;
  Payload payload{.text = text};
  payload.before = chat ? R"(,"delta":{"content":)" : R"(,"text":)";
  payload.after = chat ? "}" : "";
  std::string logprobs;
  if (options_.logprobs) {
    logprobs = json::serialize(
        chat ? chat_logprobs(tokens, options_.token_bytes)
             : completion_logprobs(tokens, options_.token_bytes, text_offset(choice)));
    payload.logprobs = logprobs;
  }
  chunk(out, choice, payload);
}

void OpenaiResponse::finish_chunk(std::string& out,
                                  std::uint32_t choice,
                                  pipeline::FinishReason reason) const {
  const std::string name = '"' + std::string(finish_name(reason)) + '"';
  Payload payload{.finish = name};
  payload.before = options_.endpoint == Endpoint::chat ? R"(,"delta":{})" : R"(,"text":"")";
  chunk(out, choice, payload);
}

void OpenaiResponse::usage_chunk(std::string& out, const pipeline::Usage& usage) const {
  out += event_head_;
  out += R"("choices":[],"usage":)";
  out += json::serialize(usage_object(usage));
  out += '}';
}

std::string OpenaiResponse::whole(const std::vector<ChoiceText>& choices,
                                  const pipeline::Usage& usage) const {
  const bool chat = options_.endpoint == Endpoint::chat;
  json::array list;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const ChoiceText& choice = choices[i];
    json::object object;
    object["index"] = i;
    if (chat) {
      json::object message;
      message["role"] = "assistant";
      message["content"] = choice.text;
      message["refusal"] = nullptr;
      object["message"] = std::move(message);
    } else {
      object["text"] = choice.text;
    }
    object["logprobs"] = nullptr;
    std::size_t offset = choice.n_echo_characters;
    if (options_.logprobs)
      object["logprobs"] = chat ? chat_logprobs(choice.tokens, options_.token_bytes)
                                : completion_logprobs(choice.tokens, options_.token_bytes, offset);
    object["finish_reason"] = finish_name(choice.finish);
    list.push_back(std::move(object));
  }
  json::object root;
  root["id"] = options_.id;
  root["object"] = chat ? "chat.completion" : "text_completion";
  root["created"] = options_.created_s;
  root["model"] = options_.model;
  root["system_fingerprint"] = "luna";
  root["choices"] = std::move(list);
  root["usage"] = usage_object(usage);
  return json::serialize(root);
}

}  // namespace luna::http
