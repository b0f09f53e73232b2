// What the pipeline needs of a model.
#pragma once

#include "core/pipeline/request.hpp"
#include "core/text/text_run.hpp"
#include "core/text/tokenizer.hpp"

#include <luna/result.hpp>

#include <boost/json/value.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace luna::engine {
struct SequenceRequest;
}

namespace luna::pipeline {

/// Runs sequences: the engine, or a script in tests. An interface; every call [any].
class SequenceRunner {
 public:
  virtual ~SequenceRunner() = default;
  /// As Engine::can_fit.
  [[nodiscard]] virtual Result<void> can_fit(std::uint32_t n_prompt,
                                             std::uint32_t n_generated_max,
                                             std::uint32_t n_choices) const = 0;
  /// As Engine::submit.
  virtual Result<void> submit(std::unique_ptr<engine::SequenceRequest> request) = 0;
  /// As Engine::cancel.
  virtual void cancel(std::uint64_t id) = 0;
  /// As Engine::queue_wait.
  [[nodiscard]] virtual std::chrono::nanoseconds queue_wait() const = 0;
};

/// Turns messages into the prompt of a model. An interface; every call [any].
class ChatRenderer {
 public:
  virtual ~ChatRenderer() = default;
  /// variables  messages, tools, add_generation_prompt ... as in Request
  /// Errors     invalid_argument (the template refuses the messages)
  [[nodiscard]] virtual Result<std::vector<text::TextRun>> render(
      const boost::json::object& variables) const = 0;
};

/// One model of the pipeline. What it points to outlives the pipeline.
struct PipelineModel {
  std::string name;
  SequenceRunner* runner = nullptr;
  const text::Tokenizer* tokenizer = nullptr;
  const ChatRenderer* chat = nullptr;    ///< none: the model has no chat template
  std::uint32_t context_tokens_max = 0;  ///< prompt and output together
};

}  // namespace luna::pipeline
