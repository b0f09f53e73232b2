#include "core/pipeline/output_text.hpp"

#include "core/text/utf8.hpp"

#include <algorithm>
#include <utility>

namespace luna::pipeline {

void OutputText::follow(std::shared_ptr<TokenStream> stream, bool wants_tokens) {
  stream_ = std::move(stream);
  wants_tokens_ = wants_tokens;
}

void OutputText::append(std::string_view text) {
  text_ += text;
  if (!wants_tokens_ || is_changed_) return;
  const std::string_view model_text = stream_->view().text.substr(n_equal_);
  const std::size_t n = std::min(text.size(), model_text.size());
  const auto differs = std::mismatch(text.begin(), text.begin() + n, model_text.begin()).first;
  n_equal_ += static_cast<std::size_t>(differs - text.begin());
  is_changed_ = differs != text.end();
}

void OutputText::finish(FinishReason reason) {
  finish_ = reason;
}

std::optional<OutputEvent> OutputText::take(std::uint32_t choice) {
  OutputEvent event;
  event.choice = choice;
  event.text = std::exchange(text_, {});
  if (wants_tokens_) take_tokens(event);
  if (finish_ && !finish_taken_) {
    event.finish = finish_;
    finish_taken_ = true;
  }
  if (event.text.empty() && event.tokens.empty() && !event.finish) return std::nullopt;
  return event;
}

void OutputText::take_tokens(OutputEvent& event) {
  const TokenStream::View view = stream_->view();
  const std::size_t stride = stream_->n_top();
  while (n_tokens_ < view.tokens.size() && view.tokens[n_tokens_].text_end <= n_equal_) {
    const TokenRecord& record = view.tokens[n_tokens_];
    const auto top = view.top.subspan(n_tokens_ * stride, record.n_top);
    const std::size_t begin = n_tokens_ == 0 ? 0 : view.tokens[n_tokens_ - 1].text_end;
    const std::string_view text = view.text.substr(begin, record.text_end - begin);
    event.tokens.push_back({record.token_id,
                            record.logprob,
                            {top.begin(), top.end()},
                            static_cast<std::uint32_t>(text::count_characters(text))});
    ++n_tokens_;
  }
}

}  // namespace luna::pipeline
