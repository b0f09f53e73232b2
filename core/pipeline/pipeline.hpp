// A request through its stages: template, tokens, roles, engine, and back to whoever asked.
#pragma once

#include "core/pipeline/request.hpp"

#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace luna::pipeline {

/// One generated token with its log-probabilities, for clients that asked.
struct OutputToken {
  TokenId token_id = 0;
  float logprob = 0.0F;
  std::vector<TokenLogprob> top;
  std::uint32_t n_characters = 0;  ///< of the text that came with it; 0 inside a character
};

/// Something a client can be told about one choice. Text is whole UTF-8 characters.
struct OutputEvent {
  std::uint32_t choice = 0;
  std::string text;                    ///< may be empty
  std::vector<OutputToken> tokens;     ///< only when log-probabilities are wanted
  std::optional<FinishReason> finish;  ///< the choice's last event
};

/// The whole request's last word.
struct OutputEnd {
  Usage usage;
  std::optional<Error> error;  ///< the request failed after it was accepted
};

/// Whoever reads a request's output. Called on the pipeline thread; must not block: the server's
/// sink keeps what came and tells its I/O thread once, however many requests have news.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  /// events   the reader's to empty; their places are used again
  virtual void on_output(std::span<OutputEvent> events, std::optional<OutputEnd> end) = 0;
};

/// A running request. Destroying it cancels what still runs. [any]
class RunningRequest {
 public:
  virtual ~RunningRequest() = default;
};

/// The pipeline as the server and the commands see it. Implemented by StagedPipeline.
class Pipeline {
 public:
  virtual ~Pipeline() = default;

  /// Names of the models that requests may ask for; the first is the default. [any]
  [[nodiscard]] virtual std::vector<std::string> model_names() const = 0;
  /// Longest sequence, prompt and output together, of a model. [any]
  [[nodiscard]] virtual std::uint32_t context_length(const std::string& model) const = 0;
  /// Token ids of a model are below this. [any]
  [[nodiscard]] virtual std::uint32_t vocab_size(const std::string& model) const = 0;
  /// Token counts and ids without running anything (/tokenize, limits). [any]
  [[nodiscard]] virtual Result<std::vector<TokenId>> tokenize(const Request& request) const = 0;
  /// The bytes of one token, for log-probabilities. [any]
  [[nodiscard]] virtual std::string token_bytes(const std::string& model, TokenId id) const = 0;

  /// How long what waits for a model now will take to be let in, as far as one can tell; 0: nothing
  /// waits, or nothing was measured yet. [any]
  [[nodiscard]] virtual std::chrono::nanoseconds queue_wait(const std::string& /*model*/) const {
    return std::chrono::nanoseconds(0);
  }

  /// Renders, tokenizes, checks limits, and starts the request. Errors are the client's
  /// (invalid_argument, with the numbers; a prompt that does not fit has the reason
  /// "context_length_exceeded"), `not_found` (model), `exhausted` (queue full) or
  /// `unavailable` (draining). The sink is called from the pipeline thread until `end`. [any]
  virtual Result<std::unique_ptr<RunningRequest>> start(Request request,
                                                        std::shared_ptr<OutputSink> sink) = 0;
};

}  // namespace luna::pipeline
