// Tokens on their way from the engine to the pipeline: an append-only log with room for all that a
// sequence can make, allocated before the sequence enters the engine.
#pragma once

#include "core/pipeline/request.hpp"

#include <luna/result.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace luna::pipeline {

/// One generated token. Its text is what it released: the bytes of held-back characters come with
/// the token that completes them, so the text of one token may be empty.
struct TokenRecord {
  TokenId token_id;
  float logprob;           ///< of this token; 0 when not asked for
  std::uint32_t text_end;  ///< the token's text ends here in the stream's text
  std::uint32_t n_top;     ///< alternatives, in the stream's top list
};

/// How a sequence was computed. Whoever asks whether that matters compares `logits_hash`.
struct ComputeTrace {
  std::uint64_t logits_hash = 0;  ///< over the bits of every row a token was drawn from, if asked
  std::uint32_t n_prompt_steps = 0;      ///< steps that computed tokens of its prompt
  std::uint32_t n_beside_max = 0;        ///< most other sequences in a step with it
  std::uint32_t n_steps_beside_max = 0;  ///< most other steps in flight when one of its own began
  std::uint32_t n_preempted = 0;
  std::uint32_t n_drafted = 0;  ///< tokens of drafts that its steps verified
};

/// How long a request would have waited, and how long one may.
struct QueueWait {
  std::uint32_t ms = 0;  ///< an estimate
  std::uint32_t ms_max = 0;
};

/// How a sequence ended, and what it cost.
struct StreamEnd {
  FinishReason reason = FinishReason::stop;
  std::uint32_t n_cached = 0;
  Code code = Code::internal;   ///< FinishReason::failed: what kind of failure
  std::string_view error = {};  ///< FinishReason::failed: static text
  std::optional<QueueWait> queue_wait = std::nullopt;  ///< of one that was refused for its wait
  ComputeTrace trace = {};
};

/// One producer (the engine thread), one consumer (the pipeline thread). The producer writes
/// records and text, then publishes all of it with one store; nothing published is ever changed, so
/// neither side waits, and a slow consumer costs memory that was counted when the request was
/// admitted.
class TokenStream {
 public:
  static constexpr std::uint32_t kTokensMax = (1U << 31U) - 1;
  static constexpr std::size_t kTextBytesMax = (std::size_t{1} << 32U) - 1;

  /// Bytes of text that so many tokens can make: a byte that belongs to no character becomes
  /// U+FFFD, three bytes, and a begun character at the end one more.
  static constexpr std::size_t text_bytes_for(std::size_t n_tokens, std::size_t token_bytes_max) {
    return (n_tokens * token_bytes_max + 1) * 3;
  }

  /// The memory is reserved, and touched only as it fills.
  ///
  /// n_tokens_max      the sequence's n_generated_max, at most kTokensMax
  /// text_bytes_max    all text the tokens can make, at most kTextBytesMax
  /// n_top             alternatives kept for each token
  TokenStream(std::uint32_t n_tokens_max, std::size_t text_bytes_max, std::uint32_t n_top);

  // ---- producer [engine]
  /// Adds a token and the text it released. Not visible before publish().
  void append(TokenId token_id,
              float logprob,
              std::span<const TokenLogprob> top,
              std::string_view text);
  /// Text that belongs to no new token: what was held back, released at the end.
  void append_text(std::string_view text);
  /// Takes back tokens that were never published, past a stop that was decided later. Their text,
  /// if any was released, stays.
  void truncate(std::uint32_t n_tokens);
  /// Marks the end; the last publish() follows.
  void finish(const StreamEnd& end);
  void publish();

  // ---- consumer [pipeline]
  struct View {
    std::span<const TokenRecord> tokens;  ///< all published so far
    std::string_view text;                ///< all published so far
    std::span<const TokenLogprob> top;    ///< [tokens, n_top] flattened
    std::optional<StreamEnd> end;
  };
  [[nodiscard]] View view() const;

  // ---- either side
  [[nodiscard]] std::uint32_t n_tokens_max() const { return n_tokens_max_; }
  [[nodiscard]] std::size_t text_bytes_max() const { return text_bytes_max_; }
  [[nodiscard]] std::uint32_t n_top() const { return n_top_; }
  /// Tokens appended, published or not. [engine]
  [[nodiscard]] std::uint32_t n_tokens() const { return n_tokens_; }

 private:
  const std::uint32_t n_tokens_max_;
  const std::size_t text_bytes_max_;
  const std::uint32_t n_top_;
  const std::unique_ptr<TokenRecord[]> tokens_;
  const std::unique_ptr<TokenLogprob[]> top_;  // [n_tokens_max, n_top]
  const std::unique_ptr<char[]> text_;
  std::uint32_t n_tokens_ = 0;    // producer's
  std::size_t n_text_bytes_ = 0;  // producer's
  bool ended_ = false;            // producer's
  StreamEnd end_;                 // written before the end is published
  // One word, so that a view is one moment: bit 63 the end, bits 32..62 tokens, bits 0..31 bytes.
  std::atomic<std::uint64_t> published_{0};
};

}  // namespace luna::pipeline
