#include "core/pipeline/token_stream.hpp"

#include "core/base/assert.hpp"

#include <algorithm>

namespace luna::pipeline {
namespace {

constexpr std::uint64_t kEndBit = std::uint64_t{1} << 63U;
constexpr unsigned kTokensShift = 32;
constexpr std::uint64_t kTokensMask = TokenStream::kTokensMax;
constexpr std::uint64_t kTextMask = TokenStream::kTextBytesMax;

}  // namespace

TokenStream::TokenStream(std::uint32_t n_tokens_max,
                         std::size_t text_bytes_max,
                         std::uint32_t n_top)
    : n_tokens_max_(n_tokens_max),
      text_bytes_max_(text_bytes_max),
      n_top_(n_top),
      tokens_(std::make_unique_for_overwrite<TokenRecord[]>(n_tokens_max)),
      top_(std::make_unique_for_overwrite<TokenLogprob[]>(std::size_t{n_tokens_max} * n_top)),
      text_(std::make_unique_for_overwrite<char[]>(text_bytes_max)) {
  LUNA_VERIFY(n_tokens_max <= kTokensMax);
  LUNA_VERIFY(text_bytes_max <= kTextBytesMax);
}

void TokenStream::append(TokenId token_id,
                         float logprob,
                         std::span<const TokenLogprob> top,
                         std::string_view text) {
  LUNA_VERIFY(n_tokens_ < n_tokens_max_);
  LUNA_ASSERT(!ended_);
  append_text(text);
  const auto n_top = static_cast<std::uint32_t>(std::min<std::size_t>(top.size(), n_top_));
  std::copy_n(top.begin(), n_top, top_.get() + std::size_t{n_tokens_} * n_top_);
  tokens_[n_tokens_] = {token_id, logprob, static_cast<std::uint32_t>(n_text_bytes_), n_top};
  ++n_tokens_;
}

void TokenStream::append_text(std::string_view text) {
  LUNA_VERIFY(text.size() <= text_bytes_max_ - n_text_bytes_);
  std::copy(text.begin(), text.end(), text_.get() + n_text_bytes_);
  n_text_bytes_ += text.size();
}

void TokenStream::truncate(std::uint32_t n_tokens) {
  const std::uint64_t word = published_.load(std::memory_order_relaxed);
  LUNA_VERIFY(n_tokens >= (word >> kTokensShift & kTokensMask));
  n_tokens_ = std::min(n_tokens_, n_tokens);
}

void TokenStream::finish(const StreamEnd& end) {
  LUNA_ASSERT(!ended_);
  end_ = end;
  ended_ = true;
}

void TokenStream::publish() {
  const std::uint64_t word = (ended_ ? kEndBit : 0) | std::uint64_t{n_tokens_} << kTokensShift |
                             std::uint64_t{n_text_bytes_};
  published_.store(word, std::memory_order_release);
}

TokenStream::View TokenStream::view() const {
  const std::uint64_t word = published_.load(std::memory_order_acquire);
  const std::size_t n_tokens = word >> kTokensShift & kTokensMask;
  View view{.tokens = {tokens_.get(), n_tokens},
            .text = {text_.get(), static_cast<std::size_t>(word & kTextMask)},
            .top = {top_.get(), n_tokens * n_top_},
            .end = std::nullopt};
  if ((word & kEndBit) != 0) view.end = end_;
  return view;
}

}  // namespace luna::pipeline
