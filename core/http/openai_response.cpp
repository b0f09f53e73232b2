#include "core/http/openai_response.hpp"

#include "core/text/utf8.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include <utility>

namespace luna::http {
namespace {

namespace json = boost::json;
using pipeline::Endpoint;
using pipeline::OutputToken;

// What OpenAI writes for a probability of zero.
constexpr double kLogprobFloor = -9999.0;

/// Code points of valid UTF-8.
std::size_t count_characters(std::string_view text) {
  std::size_t n = 0;
  for (const char c : text)
    n += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return n;
}

std::string quoted(std::string_view text) {
  return json::serialize(json::string(text));
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

json::value chat_logprobs(const std::vector<OutputToken>& tokens, const TokenBytes& token_bytes) {
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

json::value completion_logprobs(const std::vector<OutputToken>& tokens,
                                const TokenBytes& token_bytes) {
  json::array names, logprobs, tops, offsets;
  std::size_t offset = 0;
  for (const OutputToken& token : tokens) {
    const std::string name = replace_invalid_utf8(token_bytes(token.token_id));
    json::object top;
    for (const auto& alternative : token.top)
      top[replace_invalid_utf8(token_bytes(alternative.token_id))] = shown(alternative.logprob);
    names.push_back(json::string(name));
    logprobs.push_back(shown(token.logprob));
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += count_characters(name);
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
  switch (reason) {
    case pipeline::FinishReason::stop:
      return "stop";
    case pipeline::FinishReason::length:
      return "length";
    case pipeline::FinishReason::cancelled:
    case pipeline::FinishReason::failed:
      break;
  }
  // Clients know no other word for an answer that was cut.
  return "length";
}

OpenaiResponse::OpenaiResponse(Options options) : options_(std::move(options)) {
  const bool chat = options_.endpoint == Endpoint::chat;
  chunk_head_ = R"({"id":)" + quoted(options_.id) + R"(,"object":")" +
                (chat ? "chat.completion.chunk" : "text_completion") + R"(","created":)" +
                std::to_string(options_.created_s) + R"(,"model":)" + quoted(options_.model) +
                R"(,"system_fingerprint":"luna",)";
  if (options_.include_usage) chunk_head_ += R"("usage":null,)";
}

std::string OpenaiResponse::chunk(std::uint32_t choice,
                                  std::string_view payload,
                                  std::string_view logprobs,
                                  std::string_view finish) const {
  std::string text = chunk_head_;
  text += R"("choices":[{"index":)";
  text += std::to_string(choice);
  text += ',';
  text += payload;
  text += R"(,"logprobs":)";
  text += logprobs;
  text += R"(,"finish_reason":)";
  text += finish;
  text += "}]}";
  return text;
}

std::string OpenaiResponse::role_chunk(std::uint32_t choice) const {
  return chunk(choice, R"("delta":{"role":"assistant","content":""})", "null", "null");
}

std::string OpenaiResponse::text_chunk(std::uint32_t choice,
                                       std::string_view text,
                                       const std::vector<OutputToken>& tokens) const {
  const bool chat = options_.endpoint == Endpoint::chat;
  std::string logprobs = "null";
  if (options_.logprobs)
    logprobs = json::serialize(chat ? chat_logprobs(tokens, options_.token_bytes)
                                    : completion_logprobs(tokens, options_.token_bytes));
  const std::string payload =
      chat ? R"("delta":{"content":)" + quoted(text) + "}" : R"("text":)" + quoted(text);
  return chunk(choice, payload, logprobs, "null");
}

std::string OpenaiResponse::finish_chunk(std::uint32_t choice,
                                         pipeline::FinishReason reason) const {
  const bool chat = options_.endpoint == Endpoint::chat;
  return chunk(choice,
               chat ? R"("delta":{})" : R"("text":"")",
               "null",
               '"' + std::string(finish_name(reason)) + '"');
}

std::string OpenaiResponse::usage_chunk(const pipeline::Usage& usage) const {
  std::string text = chunk_head_;
  // The head says "usage":null for the chunks before this one.
  const std::string null_usage = R"("usage":null,)";
  text.erase(text.size() - null_usage.size());
  text += R"("choices":[],"usage":)" + json::serialize(usage_object(usage)) + "}";
  return text;
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
    if (options_.logprobs)
      object["logprobs"] = chat ? chat_logprobs(choice.tokens, options_.token_bytes)
                                : completion_logprobs(choice.tokens, options_.token_bytes);
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
