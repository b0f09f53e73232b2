// An engine as the pipeline sees it.
#pragma once

#include "core/engine/engine.hpp"
#include "core/pipeline/pipeline_model.hpp"

#include <memory>
#include <utility>

namespace luna::pipeline {

/// Header-only, so that the pipeline is built without the engine. The engine outlives it.
class EngineRunner final : public SequenceRunner {
 public:
  explicit EngineRunner(engine::Engine& engine) : engine_(engine) {}

  [[nodiscard]] Result<void> can_fit(std::uint32_t n_prompt,
                                     std::uint32_t n_generated_max,
                                     std::uint32_t n_choices) const override {
    return engine_.can_fit(n_prompt, n_generated_max, n_choices);
  }
  Result<void> submit(std::unique_ptr<engine::SequenceRequest> request) override {
    return engine_.submit(std::move(request));
  }
  void cancel(std::uint64_t id) override { engine_.cancel(id); }
  [[nodiscard]] std::chrono::nanoseconds queue_wait() const override {
    return engine_.queue_wait();
  }

 private:
  engine::Engine& engine_;
};

}  // namespace luna::pipeline
