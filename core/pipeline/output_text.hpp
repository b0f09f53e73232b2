// One choice's output between the last stage and the client.
#pragma once

#include "core/pipeline/pipeline.hpp"
#include "core/pipeline/token_stream.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace luna::pipeline {

/// Gathers what a choice puts out, and pairs it with the model's tokens where the client wants
/// their log-probabilities: a token is told once its text has left, and no token is told from the
/// point on where the stages changed the model's text, because it would describe other text.
class OutputText {
 public:
  /// The stream that the text comes from. [pipeline]
  void follow(std::shared_ptr<TokenStream> stream, bool wants_tokens);
  void append(std::string_view text);
  void finish(FinishReason reason);
  [[nodiscard]] bool has_finished() const { return finish_.has_value(); }
  /// How it ended; nothing before finish().
  [[nodiscard]] std::optional<FinishReason> finish_reason() const { return finish_; }

  /// What is new since the last call, if anything is.
  std::optional<OutputEvent> take(std::uint32_t choice);

  [[nodiscard]] const std::shared_ptr<TokenStream>& stream() const { return stream_; }

 private:
  void take_tokens(OutputEvent& event);

  std::shared_ptr<TokenStream> stream_;  // shared with the engine
  bool wants_tokens_ = false;
  bool is_changed_ = false;   // the output left the model's text
  std::size_t n_equal_ = 0;   // bytes of output that are the model's
  std::size_t n_tokens_ = 0;  // told
  std::string text_;          // not yet taken
  std::optional<FinishReason> finish_;
  bool finish_taken_ = false;
};

}  // namespace luna::pipeline
