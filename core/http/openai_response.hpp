// Requests' results in OpenAI's shapes: whole answers and the chunks of a stream.
#pragma once

#include "core/pipeline/pipeline.hpp"
#include "core/pipeline/request.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::http {

/// What one choice has so far.
struct ChoiceText {
  std::string text;
  std::vector<pipeline::OutputToken> tokens;
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

  // ---- chunks: JSON texts, one an event
  /// Chat only: opens a choice.
  [[nodiscard]] std::string role_chunk(std::uint32_t choice) const;
  [[nodiscard]] std::string text_chunk(std::uint32_t choice,
                                       std::string_view text,
                                       const std::vector<pipeline::OutputToken>& tokens) const;
  [[nodiscard]] std::string finish_chunk(std::uint32_t choice, pipeline::FinishReason reason) const;
  [[nodiscard]] std::string usage_chunk(const pipeline::Usage& usage) const;

 private:
  [[nodiscard]] std::string chunk(std::uint32_t choice,
                                  std::string_view payload,
                                  std::string_view logprobs,
                                  std::string_view finish) const;
  Options options_;
  std::string chunk_head_;  // up to the choices; equal in every chunk
};

/// The text with each maximal invalid part replaced by U+FFFD: JSON carries valid UTF-8 alone.
std::string replace_invalid_utf8(std::string_view bytes);

std::string_view finish_name(pipeline::FinishReason reason);

}  // namespace luna::http
