// The pipeline thread's work: items between stages, model runs, clients.
#pragma once

#include "core/base/clock.hpp"
#include "core/pipeline/pipeline_stats.hpp"
#include "core/pipeline/request_state.hpp"
#include "core/pipeline/role_stage.hpp"

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace luna::pipeline {

/// A stage of the pipeline, ready to run.
struct LoopStage {
  RoleStage role;
  const PipelineModel* model = nullptr;  ///< none: the role asks no model
  bool is_answering = false;             ///< runs the model that the client asked for
};

/// [pipeline], but for the constructor. Owns the running requests.
///
/// A turn: clients' news in, tokens to items, each stage's role once for all that waits (again
/// while that made more), then to each client once what it may know, then the ended requests go.
class PipelineLoop {
 public:
  /// clock, stats, and what the stages point to outlive the loop.
  PipelineLoop(std::vector<LoopStage> stages, const Clock& clock, PipelineStats& stats)
      : stages_(std::move(stages)), clock_(clock), stats_(stats) {}

  void accept(std::unique_ptr<RequestState> request);
  /// One turn. Returns how many requests ended.
  std::size_t turn();
  /// Tells every client that has not heard its end that this is it, and lets all requests go: the
  /// last call, after a turn that threw. Returns how many there were.
  std::size_t abandon(const Error& error);
  /// The last word to one client; a sink that throws has heard enough.
  static void tell_end(OutputSink& sink, const OutputEnd& end);
  /// Ends what still runs, at the next turn.
  void end_all(const Error& error);
  [[nodiscard]] std::size_t n_live() const { return live_.size(); }

 private:
  struct Place {
    RequestState* request = nullptr;
    std::uint32_t choice = 0;
  };

  void read_clients();
  void read_streams();
  void run_stages();
  void run_stage(std::size_t stage);
  std::size_t retire();

  // One item that a role gave.
  void take(std::size_t stage, const StageItem& item);
  void take_output(std::size_t stage,
                   RequestState& request,
                   ChoiceState& choice,
                   const StageItem& item);
  void take_end(std::size_t stage,
                RequestState& request,
                ChoiceState& choice,
                const StageItem& item);
  void take_update(std::size_t stage,
                   RequestState& request,
                   ChoiceState& choice,
                   const StageItem& item);
  void enter(std::size_t stage, RequestState& request, ChoiceState& choice);
  void fail(RequestState& request, Error error);

  // A role asks for its model.
  void start_run(std::size_t stage,
                 RequestState& request,
                 std::uint32_t choice,
                 const std::string& wish_json);
  Result<void> try_start_run(std::size_t stage,
                             RequestState& request,
                             std::uint32_t choice,
                             const ModelWish& wish);
  void fork_choices(RequestState& request);
  std::uint64_t add_item_id(RequestState& request, std::uint32_t choice);

  void tell_client(RequestState& request, bool is_over);
  static bool is_over(const RequestState& request);
  static Usage usage_of(const RequestState& request);

  std::vector<LoopStage> stages_;
  const Clock& clock_;
  PipelineStats& stats_;
  std::vector<std::unique_ptr<RequestState>> live_;  // in the order they came
  std::vector<OutputEvent> events_;                  // of the client being told; used again
  std::unordered_map<std::uint64_t, Place> place_by_item_;
  std::uint64_t next_item_id_ = 1;
};

}  // namespace luna::pipeline
