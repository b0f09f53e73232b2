#include "core/engine/live_request.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace luna::engine {
namespace {

using pipeline::FinishReason;
using pipeline::TokenId;

constexpr std::size_t kStopStringsMax = 16;

/// Bytes that one push() of the detokenizer can give: each byte may become U+FFFD.
std::size_t piece_bytes_max(const text::Tokenizer& tokenizer) {
  return pipeline::TokenStream::text_bytes_for(1, tokenizer.token_bytes_max()) + 9;
}

Error bad(std::string message) {
  return {Code::invalid_argument, std::move(message)};
}

Result<void> check_range(const char* name, float value, float min, float max) {
  if (value >= min && value <= max) return {};  // false for NaN
  return bad(std::string(name) + " = " + std::to_string(value) + ": must be in " +
             std::to_string(min) + ".." + std::to_string(max));
}

Result<void> check_ids(const char* name, std::span<const TokenId> ids, std::uint32_t vocab_size) {
  for (const TokenId id : ids) {
    if (id < vocab_size) continue;
    return bad(std::string(name) + ": token " + std::to_string(id) +
               " is beyond the vocabulary of " + std::to_string(vocab_size));
  }
  return {};
}

Result<void> check_sampling(const pipeline::SamplingParams& params, std::uint32_t vocab_size) {
  LUNA_TRY(check_range("temperature", params.temperature, 0.0F, 100.0F));
  LUNA_TRY(check_range("top_p", params.top_p, 0.0F, 1.0F));
  LUNA_TRY(check_range("min_p", params.min_p, 0.0F, 1.0F));
  LUNA_TRY(check_range("typical_p", params.typical_p, 0.0F, 1.0F));
  LUNA_TRY(check_range("repetition_penalty", params.repetition_penalty, 0.01F, 100.0F));
  LUNA_TRY(check_range("presence_penalty", params.presence_penalty, -100.0F, 100.0F));
  LUNA_TRY(check_range("frequency_penalty", params.frequency_penalty, -100.0F, 100.0F));
  LUNA_TRY(check_ids("allowed_tokens", params.allowed_tokens, vocab_size));
  for (const auto& [id, bias] : params.logit_bias) {
    LUNA_TRY(check_ids("logit_bias", std::span(&id, 1), vocab_size));
    LUNA_TRY(check_range("logit_bias", bias, -1e6F, 1e6F));
  }
  return {};
}

Result<void> check_streams(const SequenceRequest& request, const text::Tokenizer& tokenizer) {
  const std::size_t n_bytes = pipeline::TokenStream::text_bytes_for(request.stop.n_generated_max,
                                                                    tokenizer.token_bytes_max());
  for (const auto& stream : request.streams) {
    if (stream == nullptr) return bad("streams: one is missing");
    if (stream->n_tokens_max() < request.stop.n_generated_max ||
        stream->text_bytes_max() < n_bytes ||
        (request.logprobs.enabled && stream->n_top() < request.logprobs.n_top)) {
      return bad("streams: one has less room than " + std::to_string(request.stop.n_generated_max) +
                 " tokens, " + std::to_string(n_bytes) + " bytes and the alternatives asked for");
    }
  }
  return {};
}

Result<void> check_request(const SequenceRequest& request,
                           const RequestLimits& limits,
                           const text::Tokenizer& tokenizer) {
  // Sizes first: they bound what follows.
  if (request.prompt.size() > limits.n_positions_max) {
    return bad("the prompt has " + std::to_string(request.prompt.size()) +
               " tokens, the context is " + std::to_string(limits.n_positions_max));
  }
  LUNA_TRY(check_fit(
      limits,
      static_cast<std::uint32_t>(request.prompt.size()),
      request.stop.n_generated_max,
      static_cast<std::uint32_t>(std::min<std::size_t>(request.streams.size(), UINT32_MAX))));
  LUNA_TRY(check_ids("prompt", request.prompt, limits.vocab_size));
  LUNA_TRY(check_ids("stop_token_ids", request.stop.stop_token_ids, limits.vocab_size));
  LUNA_TRY(check_sampling(request.sampling, limits.vocab_size));
  if (request.stop.stop_strings.size() > kStopStringsMax) {
    return bad("stop: " + std::to_string(request.stop.stop_strings.size()) +
               " strings, at most 16 are allowed");
  }
  if (request.logprobs.n_top > limits.vocab_size) {
    return bad("logprobs: " + std::to_string(request.logprobs.n_top) +
               " alternatives of a vocabulary of " + std::to_string(limits.vocab_size));
  }
  if (request.prompt_chunk_tokens_max == 0U)
    return bad("prompt_chunk_tokens_max is 0: must be at least 1");
  if (request.cache_salt.size() > pipeline::kCacheSaltBytesMax) {
    return bad("cache_salt: " + std::to_string(request.cache_salt.size()) + " bytes, at most " +
               std::to_string(pipeline::kCacheSaltBytesMax) + " are allowed");
  }
  return check_streams(request, tokenizer);
}

void sort_unique(std::vector<TokenId>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

Choice::Choice(const SequenceRequest& asked,
               std::size_t idx,
               const text::Tokenizer& tokenizer,
               const NgramLengths& ngrams)
    : n_generated_max_(asked.stop.n_generated_max),
      ngrams_(ngrams, asked.stop.n_generated_max),
      n_indexed_(static_cast<std::uint32_t>(asked.prompt.size())),
      detokenizer_(tokenizer, text::Detokenizer::ControlText::hidden),
      matcher_(asked.stop.stop_strings, piece_bytes_max(tokenizer)),
      stream_(asked.streams[idx]) {
  generated.reserve(n_generated_max_);
}

std::optional<FinishReason> Choice::accept(TokenId token_id,
                                           bool ends,
                                           float logprob,
                                           std::span<const pipeline::TokenLogprob> top) {
  LUNA_ASSERT(!finished_);
  generated.push_back(token_id);
  if (ends) {
    stream_->append(token_id, logprob, top, {});
    flush_text();
    return FinishReason::stop;
  }
  const text::StopMatcher::Answer answer = matcher_.push(detokenizer_.push(token_id));
  stream_->append(token_id, logprob, top, answer.text);
  if (answer.stopped) {
    stream_->truncate(static_cast<std::uint32_t>(matcher_.n_tokens()));
    return FinishReason::stop;
  }
  if (generated.size() < n_generated_max_) return std::nullopt;
  return flush_text() ? FinishReason::stop : FinishReason::length;
}

// The end of the text: begun characters and held-back text go out. Returns whether a stop string
// was found in them.
bool Choice::flush_text() {
  bool stopped = false;
  if (const std::string_view tail = detokenizer_.flush(); !tail.empty()) {
    const text::StopMatcher::Answer answer = matcher_.push(tail);
    stream_->append_text(answer.text);
    stopped = answer.stopped;
  }
  if (!stopped) {
    const text::StopMatcher::Answer answer = matcher_.flush();
    stream_->append_text(answer.text);
    stopped = answer.stopped;
  }
  if (stopped) {
    const auto n_tokens = static_cast<std::uint32_t>(matcher_.n_tokens());
    stream_->truncate(std::min(n_tokens, stream_->n_tokens()));
  }
  return stopped;
}

void Choice::finish(const pipeline::StreamEnd& end) {
  LUNA_ASSERT(!finished_);
  // A sequence that is cut off between a stop string and its decision keeps to the stop.
  if (matcher_.n_tokens() < stream_->n_tokens() && end.reason != FinishReason::stop)
    stream_->truncate(std::max(static_cast<std::uint32_t>(matcher_.n_tokens()), n_published_));
  stream_->finish(end);
  finished_ = true;
}

std::uint32_t Choice::publish() {
  const bool undecided = matcher_.n_tokens() < stream_->n_tokens();
  if (undecided && !finished_) return 0;
  stream_->publish();
  const std::uint32_t n_new = stream_->n_tokens() - n_published_;
  n_published_ = stream_->n_tokens();
  return n_new;
}

std::optional<NgramMatch> Choice::look_up(const SplitText& text,
                                          const NgramLengths& lengths,
                                          const NgramIndex& prompt) {
  // What ends the text is looked for, and joins later: it would find itself.
  while (n_indexed_ + 1 < text.size())
    ngrams_.add(text, ++n_indexed_);
  return longest_match(text, lengths, prompt, ngrams_);
}

Result<void> check_fit(const RequestLimits& limits,
                       std::uint32_t n_prompt,
                       std::uint32_t n_generated_max,
                       std::uint32_t n_choices) {
  const std::string wanted = std::to_string(n_prompt) + " prompt tokens and " +
                             std::to_string(n_generated_max) + " output tokens";
  if (n_prompt == 0) return bad("the prompt is empty");
  if (n_generated_max == 0) return bad(wanted + ": at least one output token must be allowed");
  if (n_choices == 0 || n_choices > limits.n_choices_max) {
    return bad(std::to_string(n_choices) + " choices: must be in 1.." +
               std::to_string(limits.n_choices_max));
  }
  const std::uint64_t n_tokens = std::uint64_t{n_prompt} + n_generated_max;
  if (n_tokens > limits.n_positions_max) {
    return bad(wanted + " are " + std::to_string(n_tokens) + ", the context is " +
               std::to_string(limits.n_positions_max));
  }
  const std::uint64_t n_blocks = div_ceil(n_tokens, std::uint64_t{limits.kv_block_tokens});
  if (n_blocks > limits.n_kv_blocks) {
    return bad(wanted + " need " + std::to_string(n_blocks) + " KV blocks of " +
               std::to_string(limits.kv_block_tokens) + " tokens, there are " +
               std::to_string(limits.n_kv_blocks));
  }
  return {};
}

Result<std::unique_ptr<LiveRequest>> LiveRequest::make(std::unique_ptr<SequenceRequest> request,
                                                       const RequestLimits& limits,
                                                       const text::Tokenizer& tokenizer) {
  LUNA_TRY(check_request(*request, limits, tokenizer));
  auto live = std::make_unique<LiveRequest>();
  live->end_ids = request->stop.stop_token_ids;
  if (!request->stop.ignore_eos) {
    const auto ends = tokenizer.end_of_generation_ids();
    live->end_ids.insert(live->end_ids.end(), ends.begin(), ends.end());
  }
  sort_unique(live->end_ids);
  live->allowed_ids = request->sampling.allowed_tokens;
  sort_unique(live->allowed_ids);
  live->choices.reserve(request->streams.size());
  for (std::size_t c = 0; c < request->streams.size(); ++c)
    live->choices.emplace_back(*request, c, tokenizer, limits.ngrams);
  const auto n_prompt = static_cast<std::uint32_t>(request->prompt.size());
  live->prompt_ngrams = NgramIndex(limits.ngrams, n_prompt);
  for (std::uint32_t end = 1; limits.ngrams.n_max > 0 && end <= n_prompt; ++end)
    live->prompt_ngrams.add({.prompt = request->prompt, .output = {}}, end);
  live->n_open = static_cast<std::uint32_t>(request->streams.size());
  live->asked = std::move(request);
  live->scope = {.tenant = limits.prefix_per_tenant ? live->asked->tenant : 0,
                 .salt = live->asked->cache_salt};
  return live;
}

void LiveRequest::note(Disturbance disturbance, std::uint32_t choice_idx) {
  const auto bit = static_cast<std::uint8_t>(disturbance);
  if (forked) {
    choices[choice_idx].disturbances |= bit;
    return;
  }
  for (Choice& choice : choices)
    choice.disturbances |= bit;
}

bool LiveRequest::ends_with(TokenId id) const {
  return std::binary_search(end_ids.begin(), end_ids.end(), id);
}

}  // namespace luna::engine
