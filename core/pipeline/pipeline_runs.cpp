// How the pipeline's loop starts model runs.
#include "core/engine/engine.hpp"
#include "core/pipeline/pipeline_loop.hpp"
#include "core/pipeline/prompt_builder.hpp"

#include <luna/abi/role.h>

#include <algorithm>
#include <atomic>

namespace luna::pipeline {
namespace {

// Far more than a pipeline of sense needs of one choice; a role that asks without end is stopped.
constexpr std::uint32_t kRunsMax = 64;

/// Sequence ids are unique in the process, whatever engine they go to.
std::uint64_t next_sequence_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

/// What the wish makes of the request's sampling and limits, but for the length.
void settle(const RequestState& request,
            const ChoiceState& choice,
            const ModelWish& wish,
            engine::SequenceRequest& sequence) {
  if (wish.is_clients_prompt()) {
    sequence.sampling = request.request.sampling;
    sequence.stop = request.request.stop;
    sequence.logprobs = request.request.logprobs;
    choice.updates.overrides().apply(sequence.sampling);
  } else {
    // The client's penalties and stops are about its answer, not about a question of the role's.
    sequence.sampling.temperature = 0.0F;
    sequence.sampling.seed = request.request.sampling.seed;
  }
  wish.overrides.apply(sequence.sampling);
  if (wish.stop_strings) sequence.stop.stop_strings = *wish.stop_strings;
  sequence.priority = request.request.priority;
  sequence.tenant = request.request.tenant;
  sequence.cache_salt = request.request.cache_salt;
  sequence.arrival = request.arrival;
  if (request.request.deadline) sequence.deadline = request.arrival + *request.request.deadline;
}

Result<std::vector<TokenId>> prompt_of(const RequestState& request,
                                       const ModelWish& wish,
                                       const PipelineModel& model) {
  if (wish.template_variables) return chat_ids(*wish.template_variables, model);
  if (wish.prompt) return text_ids(*wish.prompt, true, model);
  if (&model == request.model) return request.prompt;
  return prompt_ids(request.request, model);
}

std::optional<std::uint32_t> wanted_length(const RequestState& request,
                                           const ChoiceState& choice,
                                           const ModelWish& wish) {
  if (!wish.allowed_text.empty()) return 1;
  if (!wish.is_clients_prompt()) return wish.overrides.n_generated_max;
  const std::uint32_t settled = choice.updates.settle_length(request.request.stop.n_generated_max);
  return std::min(settled, wish.overrides.n_generated_max.value_or(settled));
}

}  // namespace

void PipelineLoop::start_run(std::size_t stage,
                             RequestState& request,
                             std::uint32_t choice,
                             const std::string& wish_json) {
  const std::string who = "role " + stages_[stage].role.name();
  ChoiceState& state = request.choices[choice];
  if (++state.n_model_runs > kRunsMax) {
    return fail(request,
                {Code::internal,
                 who + " asked for its model more than " + std::to_string(kRunsMax) + " times"});
  }
  const bool runs_already =
      std::any_of(request.runs.begin(), request.runs.end(), [&](const ModelRun& run) {
        return run.stage() == stage && run.serves(choice);
      });
  if (runs_already) {
    return fail(request, {Code::internal, who + " asked for its model while it runs"});
  }
  const auto wish = ModelWish::parse(wish_json);
  if (!wish) {
    return fail(request, {Code::internal, who + ": MODEL_REQUEST: " + wish.error().message()});
  }
  if (const auto started = try_start_run(stage, request, choice, *wish); !started) {
    request.run_failure = started.error();
    stages_[stage].role.push({request.choices[choice].item_id,
                              LUNA_ITEM_MODEL_END,
                              0,
                              "failed: " + started.error().message()});
  }
}

Result<void> PipelineLoop::try_start_run(std::size_t stage,
                                         RequestState& request,
                                         std::uint32_t choice,
                                         const ModelWish& wish) {
  const LoopStage& at = stages_[stage];
  const PipelineModel* const model = at.is_answering ? request.model : at.model;
  if (model == nullptr) {
    return Error{Code::unsupported,
                 "stage " + std::to_string(stage) + " (" + at.role.name() + ") has no model"};
  }
  auto sequence = std::make_unique<engine::SequenceRequest>();
  sequence->id = next_sequence_id();
  sequence->label = request.request.id;
  sequence->stage = static_cast<std::uint32_t>(stage);
  settle(request, request.choices[choice], wish, *sequence);
  LUNA_TRY(sequence->prompt, prompt_of(request, wish, *model));
  if (sequence->prompt.empty()) return Error{Code::invalid_argument, "the prompt is empty"};
  ModelRun run(sequence->id, stage, *model->runner);
  if (!wish.allowed_text.empty()) {
    LUNA_TRY(auto firsts, first_tokens(wish.allowed_text, *model));
    for (const auto& [id, text] : firsts)
      sequence->sampling.allowed_tokens.push_back(id);
    run.choose_among(std::move(firsts));
  }

  const bool forks = wish.is_clients_prompt() && request.choices.size() == 1;
  const std::uint32_t n_streams = forks ? request.request.n_choices : 1;
  LUNA_TRY(sequence->stop.n_generated_max,
           settle_length(sequence->prompt.size(),
                         wanted_length(request, request.choices[choice], wish),
                         n_streams,
                         *model));
  sequence->stop.n_generated_min =
      std::min(sequence->stop.n_generated_min, sequence->stop.n_generated_max);
  // Alone, a choice is its request's first sequence; its numbers must still be its own.
  if (!forks) sequence->sampling.seed += choice;

  const std::size_t text_bytes = TokenStream::text_bytes_for(sequence->stop.n_generated_max,
                                                             model->tokenizer->token_bytes_max());
  for (std::uint32_t i = 0; i < n_streams; ++i) {
    sequence->streams.push_back(std::make_shared<TokenStream>(
        sequence->stop.n_generated_max, text_bytes, sequence->logprobs.n_top));
  }
  const auto streams = sequence->streams;
  LUNA_TRY(model->runner->submit(std::move(sequence)));
  if (forks) fork_choices(request);
  for (std::uint32_t i = 0; i < n_streams; ++i) {
    ChoiceState& served = request.choices[forks ? i : choice];
    if (wish.is_clients_prompt()) {
      served.output.follow(streams[i], request.request.logprobs.enabled);
    }
    run.add_stream({served.idx, served.item_id, streams[i], 0, false});
  }
  request.runs.push_back(std::move(run));
  return {};
}

void PipelineLoop::fork_choices(RequestState& request) {
  while (request.choices.size() < request.request.n_choices) {
    const auto idx = static_cast<std::uint32_t>(request.choices.size());
    ChoiceState choice = request.choices.front();
    choice.idx = idx;
    choice.item_id = add_item_id(request, idx);
    request.choices.push_back(std::move(choice));
  }
}

}  // namespace luna::pipeline
