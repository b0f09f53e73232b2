// A client's request as plain values: what to generate, how to sample, when to stop.
#pragma once

#include <boost/json/value.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace luna::pipeline {

using TokenId = std::uint32_t;

inline constexpr std::size_t kCacheSaltBytesMax = 128;

/// How a token is drawn. The defaults are OpenAI's; neutral values switch a filter off.
struct SamplingParams {
  float temperature = 1.0F;  ///< 0: greedy, ties to the lowest id
  std::uint32_t top_k = 0;   ///< 0: all
  float top_p = 1.0F;
  float min_p = 0.0F;
  float typical_p = 1.0F;
  float repetition_penalty = 1.0F;  ///< over prompt and output
  float presence_penalty = 0.0F;    ///< over the output
  float frequency_penalty = 0.0F;   ///< over the output
  std::vector<std::pair<TokenId, float>> logit_bias;
  /// Only these tokens may be drawn; empty: all. Used by roles that choose among labels.
  std::vector<TokenId> allowed_tokens;
  std::uint64_t seed = 0;  ///< set by the pipeline when the client gave none
};

/// When a sequence ends.
struct StopCriteria {
  std::uint32_t n_generated_max = 0;      ///< tokens; settled by the pipeline
  std::uint32_t n_generated_min = 0;      ///< no end token before
  std::vector<std::string> stop_strings;  ///< at most 16; never part of the output
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
};

/// Which log-probabilities the client wants.
struct LogprobParams {
  bool enabled = false;
  std::uint32_t n_top = 0;  ///< alternatives a token, 0..20
};

enum class Endpoint { chat, completion };

/// One request, checked, in the order the fields are used. A value.
struct Request {
  std::string id;  ///< "chatcmpl-..." or "cmpl-..."
  Endpoint endpoint = Endpoint::chat;
  std::string model;  ///< as asked for
  /// Chat: variables of the template: messages, tools, chat_template_kwargs ... as they came.
  boost::json::object template_variables;
  /// Completion: one of these is set.
  std::string prompt_text;
  std::vector<TokenId> prompt_ids;
  bool echo = false;  ///< completion: the prompt precedes the output
  std::uint32_t n_choices = 1;
  bool streaming = false;
  bool add_special_tokens = true;  ///< completion: the model's own begin token is put first
  SamplingParams sampling;
  bool has_seed = false;  ///< the client chose sampling.seed
  /// Output tokens that the client allows, 0 included; none: as many as the context has room for.
  /// The pipeline settles stop.n_generated_max from it.
  std::optional<std::uint32_t> n_generated_max;
  StopCriteria stop;
  LogprobParams logprobs;
  std::int32_t priority = 0;
  std::uint32_t tenant = 0;
  std::string cache_salt;  ///< requests share cached prefixes with those of the same salt only
  std::optional<std::chrono::milliseconds> deadline;
};

enum class FinishReason { stop, length, cancelled, failed };

/// The words for it, in items of stages, in the log and in what commands print.
inline constexpr std::array<std::string_view, 4> kFinishReasonNames = {
    "stop", "length", "cancelled", "failed"};

constexpr std::string_view finish_reason_name(FinishReason reason) {
  return kFinishReasonNames[static_cast<std::size_t>(reason)];
}

/// The reason that a word means, if it is one of the names.
constexpr std::optional<FinishReason> parse_finish_reason(std::string_view name) {
  for (std::size_t i = 0; i < kFinishReasonNames.size(); ++i)
    if (kFinishReasonNames[i] == name) return static_cast<FinishReason>(i);
  return std::nullopt;
}

/// One alternative of a token's position.
struct TokenLogprob {
  TokenId token_id;
  float logprob;  ///< natural logarithm, before penalties, temperature and masks
};

/// Tokens counted for one request, all choices together.
struct Usage {
  std::uint32_t n_prompt = 0;
  std::uint32_t n_cached = 0;
  std::uint32_t n_generated = 0;
};

}  // namespace luna::pipeline
