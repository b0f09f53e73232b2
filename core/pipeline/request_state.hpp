// A request while it passes the stages.
#pragma once

#include "core/base/clock.hpp"
#include "core/pipeline/model_run.hpp"
#include "core/pipeline/output_text.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/pipeline/stage_json.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace luna::pipeline {

/// A stage is a bit of ChoiceState::ended_stages.
inline constexpr std::size_t kStagesMax = 32;

/// One of the answers of a request, from the first stage to the last.
struct ChoiceState {
  std::uint64_t item_id = 0;  ///< what roles know it by
  std::uint32_t idx = 0;
  std::size_t n_stages_entered = 0;  ///< stages that have had REQUEST
  std::uint32_t ended_stages = 0;    ///< bit by stage: its role has said END
  std::uint32_t n_model_runs = 0;
  StageUpdates updates;
  OutputText output;

  [[nodiscard]] bool has_ended(std::size_t stage) const {
    return (ended_stages >> stage & 1U) != 0;
  }
};

/// Made on the client's thread, then the pipeline thread's.
struct RequestState {
  RequestState(Request asked, std::shared_ptr<OutputSink> reader)
      : request(std::move(asked)), items(request), sink(std::move(reader)) {}

  Request request;  ///< settled: seed, stop.n_generated_max
  RequestItemWriter items;
  std::shared_ptr<OutputSink> sink;      ///< shared with the client, who may leave first
  const PipelineModel* model = nullptr;  ///< that answers
  std::vector<TokenId> prompt;           ///< of `model`
  Nanoseconds arrival{0};
  std::shared_ptr<std::atomic<bool>> is_cancelled;  ///< shared with the client's handle

  // ---- [pipeline]
  std::vector<ChoiceState> choices;  ///< one until the model has run on the client's prompt
  std::vector<ModelRun> runs;
  std::optional<Error> run_failure;  ///< of the last run that failed
  std::optional<Error> error;        ///< ends the request
  bool is_end_told = false;          ///< the client has heard its last
};

}  // namespace luna::pipeline
