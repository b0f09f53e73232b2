#include "core/pipeline/pipeline_loop.hpp"

#include "core/base/assert.hpp"
#include "core/base/log.hpp"

#include <luna/abi/role.h>

#include <algorithm>
#include <exception>
#include <string_view>

namespace luna::pipeline {
namespace {

/// How a stage may say that a choice ended: failures come as items of their own.
std::optional<FinishReason> parse_end(std::string_view text) {
  const auto reason = parse_finish_reason(text);
  return reason == FinishReason::failed ? std::nullopt : reason;
}

void log_end(const RequestState& request, const Usage& usage) {
  const ChoiceState& first = request.choices.front();
  const std::string_view how =
      request.error
          ? code_name(request.error->code())
          : finish_reason_name(first.output.finish_reason().value_or(FinishReason::cancelled));
  logger("pipeline")
      ->info("request ended id={} model={} end={} n_prompt={} n_cached={} n_generated={} intent={}",
             request.request.id,
             request.model->name,
             how,
             usage.n_prompt,
             usage.n_cached,
             usage.n_generated,
             first.updates.note("intent"));
}

}  // namespace

void PipelineLoop::accept(std::unique_ptr<RequestState> request) {
  RequestState& state = *request;
  live_.push_back(std::move(request));
  state.choices.emplace_back();
  state.choices.front().item_id = add_item_id(state, 0);
  enter(0, state, state.choices.front());
  // The first stage has no stage before it, so there is no text to come.
  stages_.front().role.push({state.choices.front().item_id, LUNA_ITEM_END, 0, "stop"});
}

std::size_t PipelineLoop::turn() {
  read_clients();
  read_streams();
  run_stages();
  return retire();
}

void PipelineLoop::end_all(const Error& error) {
  for (const auto& request : live_)
    fail(*request, error);
}

std::size_t PipelineLoop::abandon(const Error& error) {
  for (const auto& request : live_) {
    for (ModelRun& run : request->runs)
      run.cancel();
    if (!request->is_end_told) tell_end(*request->sink, {usage_of(*request), error});
  }
  const std::size_t n_gone = live_.size();
  live_.clear();
  return n_gone;
}

void PipelineLoop::tell_end(OutputSink& sink, const OutputEnd& end) {
  try {
    sink.on_output({}, end);
  } catch (const std::exception& error) {
    logger("pipeline")->error("a client was not told of its end reason=\"{}\"", error.what());
  }
}

void PipelineLoop::read_clients() {
  for (const auto& request : live_) {
    if (request->is_cancelled->load(std::memory_order_acquire)) {
      fail(*request, {Code::cancelled, "the client went away"});
    }
  }
}

void PipelineLoop::read_streams() {
  for (const auto& request : live_) {
    for (ModelRun& run : request->runs) {
      if (auto failure = run.read(stages_[run.stage()].role)) request->run_failure = failure;
    }
    std::erase_if(request->runs, [](const ModelRun& run) { return run.has_ended(); });
  }
}

void PipelineLoop::run_stages() {
  const auto has_waiting = [&] {
    return std::any_of(stages_.begin(), stages_.end(), [](const LoopStage& stage) {
      return stage.role.has_waiting();
    });
  };
  // Items go forward, so one round is the rule; a model run that could not start goes back to its
  // stage, and runs are bounded for each choice.
  while (has_waiting()) {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage)
      if (stages_[stage].role.has_waiting()) run_stage(stage);
  }
}

void PipelineLoop::run_stage(std::size_t stage) {
  const Nanoseconds began = clock_.now();
  const RoleStage::Batch batch = stages_[stage].role.run();
  stats_.role_run_ns.fetch_add(static_cast<std::uint64_t>((clock_.now() - began).count()),
                               std::memory_order_relaxed);
  stats_.n_role_runs.fetch_add(1, std::memory_order_relaxed);
  if (!batch.verdict) {
    logger("pipeline")
        ->error("a role failed stage={} error=\"{}\"", stage, batch.verdict.error().message());
    for (const StageItem& item : batch.in) {
      const auto place = place_by_item_.find(item.request);
      if (place != place_by_item_.end()) fail(*place->second.request, batch.verdict.error());
    }
    return;
  }
  for (const StageItem& item : batch.out)
    take(stage, item);
}

void PipelineLoop::take(std::size_t stage, const StageItem& item) {
  const auto found = place_by_item_.find(item.request);
  if (found == place_by_item_.end()) return;
  RequestState& request = *found->second.request;
  ChoiceState& choice = request.choices[found->second.choice];
  if (request.error) return;
  if (choice.has_ended(stage)) {
    return fail(request,
                {Code::internal, "role " + stages_[stage].role.name() + " went on after its END"});
  }
  switch (item.kind) {
    case LUNA_ITEM_TEXT:
      return take_output(stage, request, choice, item);
    case LUNA_ITEM_END:
      return take_end(stage, request, choice, item);
    case LUNA_ITEM_UPDATE:
      return take_update(stage, request, choice, item);
    case LUNA_ITEM_MODEL_REQUEST:
      return start_run(stage, request, choice.idx, item.text);
    case LUNA_ITEM_ERROR: {
      const Code code = request.run_failure ? request.run_failure->code() : Code::internal;
      const std::string_view reason =
          request.run_failure ? request.run_failure->reason() : std::string_view{};
      return fail(request, {code, item.text, reason});
    }
    default:
      return fail(request,
                  {Code::internal,
                   "role " + stages_[stage].role.name() + " sent an item of kind " +
                       std::to_string(item.kind)});
  }
}

void PipelineLoop::enter(std::size_t stage, RequestState& request, ChoiceState& choice) {
  if (choice.n_stages_entered > stage) return;
  LUNA_VERIFY(choice.n_stages_entered == stage);
  choice.n_stages_entered = stage + 1;
  stages_[stage].role.push(
      {choice.item_id,
       LUNA_ITEM_REQUEST,
       request.request.streaming ? LUNA_ITEM_STREAMING : 0U,
       request.items.write({stage, choice.idx}, request.request, choice.updates)});
}

void PipelineLoop::take_output(std::size_t stage,
                               RequestState& request,
                               ChoiceState& choice,
                               const StageItem& item) {
  if (item.text.empty()) return;
  if (stage + 1 == stages_.size()) {
    choice.output.append(item.text);
    return;
  }
  enter(stage + 1, request, choice);
  stages_[stage + 1].role.push({choice.item_id, LUNA_ITEM_TEXT, 0, item.text});
}

void PipelineLoop::take_end(std::size_t stage,
                            RequestState& request,
                            ChoiceState& choice,
                            const StageItem& item) {
  const auto reason = parse_end(item.text);
  if (!reason) {
    return fail(request,
                {Code::internal,
                 "role " + stages_[stage].role.name() + " ended for the unknown reason '" +
                     item.text + "'"});
  }
  choice.ended_stages |= 1U << stage;
  if (stage + 1 == stages_.size()) {
    choice.output.finish(*reason);
    return;
  }
  enter(stage + 1, request, choice);
  stages_[stage + 1].role.push({choice.item_id, LUNA_ITEM_END, 0, item.text});
}

void PipelineLoop::take_update(std::size_t stage,
                               RequestState& request,
                               ChoiceState& choice,
                               const StageItem& item) {
  const std::string who = "role " + stages_[stage].role.name();
  if (choice.n_stages_entered > stage + 1) {
    return fail(request, {Code::internal, who + " sent an UPDATE after its output had begun"});
  }
  const std::string intent_before = choice.updates.note("intent");
  if (const auto merged = choice.updates.merge(item.text); !merged) {
    return fail(request, {Code::internal, who + ": UPDATE: " + merged.error().message()});
  }
  const std::string intent = choice.updates.note("intent");
  if (!intent.empty() && intent != intent_before) stats_.count_intent(intent);
}

void PipelineLoop::fail(RequestState& request, Error error) {
  if (!request.error) request.error = std::move(error);
}

bool PipelineLoop::is_over(const RequestState& request) {
  return request.error ||
         std::all_of(request.choices.begin(), request.choices.end(), [](const ChoiceState& choice) {
           return choice.output.has_finished();
         });
}

Usage PipelineLoop::usage_of(const RequestState& request) {
  Usage usage;
  usage.n_prompt = static_cast<std::uint32_t>(request.prompt.size());
  for (const ChoiceState& choice : request.choices) {
    if (choice.output.stream() == nullptr) continue;
    const TokenStream::View view = choice.output.stream()->view();
    usage.n_generated += static_cast<std::uint32_t>(view.tokens.size());
    if (view.end) usage.n_cached = std::max(usage.n_cached, view.end->n_cached);
  }
  return usage;
}

void PipelineLoop::tell_client(RequestState& request, bool is_over) {
  events_.clear();
  for (ChoiceState& choice : request.choices)
    if (auto event = choice.output.take(choice.idx)) events_.push_back(*std::move(event));
  std::optional<OutputEnd> end;
  if (is_over) {
    end = OutputEnd{usage_of(request), request.error};
    // Choices that never came to be, because no stage ran the model on the client's prompt.
    for (auto idx = static_cast<std::uint32_t>(request.choices.size());
         !request.error && idx < request.request.n_choices;
         ++idx) {
      events_.push_back({idx, {}, {}, FinishReason::stop});
    }
    log_end(request, end->usage);
  }
  request.is_end_told = is_over;
  if (!events_.empty() || end) request.sink->on_output(events_, std::move(end));
}

std::size_t PipelineLoop::retire() {
  std::vector<std::uint64_t> gone;
  for (const auto& request : live_) {
    const bool ends = is_over(*request);
    tell_client(*request, ends);
    if (!ends) continue;
    for (ModelRun& run : request->runs)
      run.cancel();
    for (const ChoiceState& choice : request->choices)
      gone.push_back(choice.item_id);
  }
  if (gone.empty()) return 0;
  for (LoopStage& stage : stages_)
    stage.role.drop(gone);
  for (const std::uint64_t id : gone)
    place_by_item_.erase(id);
  return std::erase_if(live_, [](const auto& request) { return is_over(*request); });
}

std::uint64_t PipelineLoop::add_item_id(RequestState& request, std::uint32_t choice) {
  const std::uint64_t id = next_item_id_++;
  place_by_item_[id] = {&request, choice};
  return id;
}

}  // namespace luna::pipeline
