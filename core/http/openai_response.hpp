// Requests' results in OpenAI's shapes: whole answers and the chunks of a stream.
#pragma once

#include "core/pipeline/pipeline.hpp"
#include "core/pipeline/request.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::http {

/// What one choice has so far.
struct ChoiceText {
  std::string text;
  std::vector<pipeline::OutputToken> tokens;
  std::size_t n_echo_characters = 0;  ///< of the text: the prompt, before what the tokens made
  pipeline::FinishReason finish = pipeline::FinishReason::stop;
};

/// Writes one request's answer; the same id, time and model in every chunk. Used on one I/O thread.
class OpenaiResponse {
 public:
  /// token_bytes   the bytes of a token, for log-probabilities
  struct Options {
    std::string id;
    std::string model;
    std::int64_t created_s = 0;
    pipeline::Endpoint endpoint = pipeline::Endpoint::chat;
    bool logprobs = false;
    bool include_usage = false;
    std::function<std::string(pipeline::TokenId)> token_bytes;
  };
  explicit OpenaiResponse(Options options);

  /// The whole answer.
  [[nodiscard]] std::string whole(const std::vector<ChoiceText>& choices,
                                  const pipeline::Usage& usage) const;

  // ---- chunks: each adds one JSON text, of one event, to `out`
  /// Chat only: opens a choice.
  void role_chunk(std::string& out, std::uint32_t choice) const;
  /// Completions only: the prompt, before the choice's first text.
  void echo_chunk(std::string& out, std::uint32_t choice, std::string_view prompt);
  void text_chunk(std::string& out,
                  std::uint32_t choice,
                  std::string_view text,
                  std::span<const pipeline::OutputToken> tokens);
  void finish_chunk(std::string& out, std::uint32_t choice, pipeline::FinishReason reason) const;
  void usage_chunk(std::string& out, const pipeline::Usage& usage) const;

 private:
  struct Payload;
  void chunk(std::string& out, std::uint32_t choice, const Payload& payload) const;
  std::size_t& text_offset(std::uint32_t choice);

  Options options_;
  std::string event_head_;                 // up to the choices; equal in every chunk
  std::string choice_head_;                // up to a choice's index
  std::vector<std::size_t> text_offsets_;  // characters told before the next token, by choice
};

/// The text with each maximal invalid part replaced by U+FFFD: JSON carries valid UTF-8 alone.
std::string replace_invalid_utf8(std::string_view bytes);

/// In OpenAI's words, which has two: an answer that was cut for another reason is "length" too.
std::string_view finish_name(pipeline::FinishReason reason);

}  // namespace luna::http
