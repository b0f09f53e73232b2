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

/// How a sequence ended, and what it cost.
struct StreamEnd {
  FinishReason reason = FinishReason::stop;
  std::uint32_t n_cached = 0;
  std::string_view error;  ///< FinishReason::failed: static text
};

/// One producer (the engine thread), one consumer (the pipeline thread). The producer writes
/// records and text, then publishes both with one store; nothing is ever overwritten, so neither
/// side waits, and a slow consumer costs memory that was counted when the request was admitted.
class TokenStream {
 public:
  /// n_tokens_max      the sequence's n_generated_max
  /// text_bytes_max    all text the tokens can make
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

  /// When each step published, for latency: filled by the producer. [engine]
  [[nodiscard]] std::uint32_t n_tokens() const { return n_tokens_; }

 private:
  struct Published;
  const std::uint32_t n_top_;
  const std::unique_ptr<TokenRecord[]> tokens_;
  const std::unique_ptr<TokenLogprob[]> top_;
  const std::unique_ptr<char[]> text_;
  const std::uint32_t n_tokens_max_;
  const std::size_t text_bytes_max_;
  std::uint32_t n_tokens_ = 0;  // producer's
  std::size_t text_bytes_ = 0;  // producer's
  StreamEnd end_;
  bool ended_ = false;
  std::atomic<std::uint64_t> n_published_tokens_{0};
  std::atomic<std::uint64_t> n_published_text_bytes_{0};
  std::atomic<bool> end_published_{false};
};

}  // namespace luna::pipeline
