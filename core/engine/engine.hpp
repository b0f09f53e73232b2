// The engine: one thread that owns sequences, KV blocks and the step.
#pragma once

#include "core/base/bounded.hpp"
#include "core/base/clock.hpp"
#include "core/model/compiled_model.hpp"
#include "core/pipeline/request.hpp"
#include "core/pipeline/token_stream.hpp"
#include "core/plugin/instance.hpp"
#include "core/telemetry/engine_stats.hpp"
#include "core/text/tokenizer.hpp"

#include <luna/abi/scheduler.h>
#include <luna/result.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace luna::engine {

/// What enters the engine: one prompt and its n sequences. Made, with everything it will ever
/// need allocated, off the engine thread.
struct SequenceRequest {
  std::uint64_t id = 0;                   ///< unique in the process
  std::vector<pipeline::TokenId> prompt;  ///< at least one token
  pipeline::SamplingParams sampling;
  pipeline::StopCriteria stop;
  pipeline::LogprobParams logprobs;
  std::int32_t priority = 0;
  std::uint32_t tenant = 0;
  std::uint32_t stage = 0;              ///< index into the pipeline
  std::optional<Nanoseconds> deadline;  ///< on the engine's clock
  Nanoseconds arrival{0};               ///< on the engine's clock, at the front door
  /// One stream a choice: streams.size() sequences share the prompt's KV.
  std::vector<std::shared_ptr<pipeline::TokenStream>> streams;
};

struct EngineOptions {
  std::uint32_t n_waiting_max = 1024;   ///< requests in the queue; beyond it: exhausted
  std::uint32_t step_tokens_max = 512;  ///< token rows a step
};

/// Runs one model. [engine] everything but the members tagged otherwise.
class Engine {
 public:
  /// model, scheduler, tokenizer, clock and stats outlive the engine.
  /// on_published   called on the engine thread once after each step that published something; it
  ///                must only wake the pipeline thread
  static Result<std::unique_ptr<Engine>> create(
      const model::CompiledModel& model,
      const plugin::Instance<luna_scheduler_if>& scheduler,
      const text::Tokenizer& tokenizer,
      Clock& clock,
      telemetry::EngineStats& stats,
      const EngineOptions& options,
      void (*on_published)(void*),
      void* context);
  ~Engine();

  /// Starts the engine thread. [main]
  void start();
  /// Ends every sequence (cancelled) and the thread. [main]
  void stop();

  /// Whether a prompt of this length with so many output tokens can ever be served; the error names
  /// the numbers (needs blocks, has blocks, context). [any]
  [[nodiscard]] Result<void> can_fit(std::uint32_t n_prompt,
                                     std::uint32_t n_generated_max,
                                     std::uint32_t n_choices) const;
  /// Hands a request over; exhausted when the queue is full. [any]
  Result<void> submit(std::unique_ptr<SequenceRequest> request);
  /// Ends the request at the next step border; its KV is free one step later. [any]
  void cancel(std::uint64_t id);

  /// One turn of the loop: drains commands, finishes a completed step, plans and starts the next.
  /// Returns whether there was anything to do. For virtual time and tests; start() runs it for you.
  bool advance();

  struct Impl;

 private:
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace luna::engine
