// The pipeline that the TOML describes: a list of stages, each a role and its model.
#pragma once

#include "core/base/clock.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/pipeline/pipeline_model.hpp"
#include "core/pipeline/pipeline_stats.hpp"
#include "core/plugin/instance.hpp"

#include <luna/abi/role.h>
#include <luna/result.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::pipeline {

/// One stage as configured. The role outlives the pipeline.
struct StageSetup {
  const plugin::Instance<luna_role_if>* role = nullptr;
  std::optional<std::string> model;  ///< name of a PipelineModel
};

struct PipelineSetup {
  std::vector<PipelineModel> models;  ///< at least one
  std::vector<StageSetup> stages;     ///< in order; at least one with a model
  std::uint32_t n_requests_max = 0;   ///< accepted and not ended; beyond it: exhausted
};

/// Runs requests through the stages on a thread of its own. The last stage that has a model
/// answers: its model is the default, and a request that asks for another is answered by that one.
///
/// Whoever owns it lets go of all RunningRequests first.
class StagedPipeline final : public Pipeline {
 public:
  /// Checks the stages against the models. [start-up]
  ///
  /// clock, wake, stats   outlive the pipeline; `wake` is also what each engine's on_published sets
  /// Errors  invalid_argument (no stage with a model, labels that a model cannot tell apart);
  ///         not_found (a model's name)
  static Result<std::unique_ptr<StagedPipeline>> create(PipelineSetup setup,
                                                        Clock& clock,
                                                        WakeSignal& wake,
                                                        PipelineStats& stats);
  ~StagedPipeline() override;

  /// Starts the pipeline thread. [main]
  void launch();
  /// From now on refuses requests; returns when those that run have ended. After `grace` they are
  /// ended with `unavailable`. The thread is gone afterwards. [main]
  void drain(std::chrono::nanoseconds grace);

  /// One turn of the thread's loop, for tests and virtual time. [pipeline]
  void advance();

  [[nodiscard]] std::vector<std::string> model_names() const override;
  [[nodiscard]] std::uint32_t context_length(const std::string& model) const override;
  [[nodiscard]] std::uint32_t vocab_size(const std::string& model) const override;
  [[nodiscard]] Result<std::vector<TokenId>> tokenize(const Request& request) const override;
  [[nodiscard]] std::string token_bytes(const std::string& model, TokenId id) const override;
  [[nodiscard]] std::chrono::nanoseconds queue_wait(const std::string& model) const override;
  Result<std::unique_ptr<RunningRequest>> start(Request request,
                                                std::shared_ptr<OutputSink> sink) override;
  /// True once something threw on the pipeline's thread: every request was told, none is taken.
  /// [any]
  [[nodiscard]] bool has_failed() const;
  /// Requests accepted and not ended. [any]
  [[nodiscard]] std::uint32_t n_live() const;

 private:
  struct Impl;
  explicit StagedPipeline(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace luna::pipeline
