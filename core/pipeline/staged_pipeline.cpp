#include "core/pipeline/staged_pipeline.hpp"

#include "core/base/assert.hpp"
#include "core/base/bounded.hpp"
#include "core/base/log.hpp"
#include "core/base/random_seed.hpp"
#include "core/pipeline/pipeline_loop.hpp"
#include "core/pipeline/prompt_builder.hpp"

#include <atomic>
#include <exception>
#include <thread>
#include <utility>

namespace luna::pipeline {
namespace {

/// The client's end of a request.
class Handle final : public RunningRequest {
 public:
  Handle(std::shared_ptr<std::atomic<bool>> is_cancelled, WakeSignal& wake)
      : is_cancelled_(std::move(is_cancelled)), wake_(wake) {}
  ~Handle() override {
    is_cancelled_->store(true, std::memory_order_release);
    wake_.set();
  }

 private:
  const std::shared_ptr<std::atomic<bool>> is_cancelled_;  // shared with the pipeline thread
  WakeSignal& wake_;                                       // the pipeline's, which outlives this
};

}  // namespace

struct StagedPipeline::Impl {
  Impl(PipelineSetup given, Clock& the_clock, WakeSignal& signal, PipelineStats& counters)
      : models(std::move(given.models)),
        n_requests_max(given.n_requests_max),
        clock(the_clock),
        wake(signal),
        stats(counters),
        inbox(given.n_requests_max) {}

  [[nodiscard]] const PipelineModel* find_model(const std::string& name) const {
    if (name.empty()) return answering;
    for (const PipelineModel& model : models)
      if (model.name == name) return &model;
    return nullptr;
  }
  [[nodiscard]] Result<const PipelineModel*> model_of(const Request& request) const {
    const PipelineModel* const model = find_model(request.model);
    if (model == nullptr) {
      return Error{
          Code::not_found, "the model '" + request.model + "' does not exist", "model_not_found"};
    }
    return model;
  }

  Result<void> add_stages(const std::vector<StageSetup>& setups);
  Result<std::unique_ptr<RequestState>> prepare(Request request,
                                                std::shared_ptr<OutputSink> sink) const;
  Result<void> enqueue(std::unique_ptr<RequestState> state);
  void leave();
  void advance();
  void run();
  void turn_until_drained();
  void give_up(const Error& error);

  const std::vector<PipelineModel> models;
  const std::uint32_t n_requests_max;
  Clock& clock;
  WakeSignal& wake;
  PipelineStats& stats;
  const PipelineModel* answering = nullptr;
  std::unique_ptr<PipelineLoop> loop;

  BoundedQueue<std::unique_ptr<RequestState>> inbox;
  std::atomic<std::uint32_t> n_live{0};  // accepted and not ended
  std::atomic<bool> is_draining{false};
  std::atomic<bool> has_failed{false};
  std::atomic<Nanoseconds::rep> drain_end_ns{0};  // written before is_draining
  std::thread thread;
};

Result<void> StagedPipeline::Impl::add_stages(const std::vector<StageSetup>& setups) {
  if (setups.empty() || setups.size() > kStagesMax) {
    return Error{Code::invalid_argument,
                 "a pipeline of " + std::to_string(setups.size()) + " stages: must be 1.." +
                     std::to_string(kStagesMax)};
  }
  std::vector<LoopStage> stages;
  std::optional<std::size_t> answering_stage;
  for (const StageSetup& setup : setups) {
    LoopStage stage{RoleStage(*setup.role), nullptr, false};
    const std::string who =
        "stage " + std::to_string(stages.size()) + " (" + setup.role->name() + ")";
    if (setup.model) {
      stage.model = find_model(*setup.model);
      if (setup.model->empty() || stage.model == nullptr) {
        return Error{Code::not_found, who + ": there is no model '" + *setup.model + "'"};
      }
      answering_stage = stages.size();
    }
    if (const auto choices = stage.role.choices(); !choices.empty()) {
      if (stage.model == nullptr) {
        return Error{Code::invalid_argument, who + ": needs a model to choose with"};
      }
      const auto firsts = first_tokens(choices, *stage.model);
      if (!firsts) return firsts.error().in(who);
    }
    stages.push_back(std::move(stage));
  }
  if (!answering_stage) {
    return Error{Code::invalid_argument, "no stage of the pipeline has a model"};
  }
  stages[*answering_stage].is_answering = true;
  answering = stages[*answering_stage].model;
  loop = std::make_unique<PipelineLoop>(std::move(stages), clock, stats);
  return {};
}

Result<std::unique_ptr<RequestState>> StagedPipeline::Impl::prepare(
    Request request, std::shared_ptr<OutputSink> sink) const {
  LUNA_TRY(const PipelineModel* const model, model_of(request));
  if (request.n_choices == 0) return Error{Code::invalid_argument, "n is 0: must be at least 1"};
  LUNA_TRY(check_token_ids(request, *model));
  LUNA_TRY(auto prompt, prompt_ids(request, *model));
  LUNA_TRY(request.stop.n_generated_max,
           settle_length(prompt.size(), request.n_generated_max, request.n_choices, *model));
  if (!request.has_seed) {
    LUNA_TRY(request.sampling.seed, random_seed());
  }
  auto state = std::make_unique<RequestState>(std::move(request), std::move(sink));
  state->model = model;
  state->prompt = std::move(prompt);
  state->arrival = clock.now();
  state->is_cancelled = std::make_shared<std::atomic<bool>>(false);
  return state;
}

Result<void> StagedPipeline::Impl::enqueue(std::unique_ptr<RequestState> state) {
  const std::uint32_t n_before = n_live.fetch_add(1, std::memory_order_seq_cst);
  if (n_before >= n_requests_max) {
    leave();
    return Error{Code::exhausted,
                 std::to_string(n_before) + " requests wait or run: at most " +
                     std::to_string(n_requests_max)};
  }
  // After the count: whoever drains either sees this request or is seen here.
  if (is_draining.load(std::memory_order_seq_cst)) {
    leave();
    return Error{Code::unavailable, "the server is shutting down"};
  }
  if (!inbox.try_push(std::move(state))) {
    leave();
    return Error{Code::exhausted, "the pipeline's inbox is full"};
  }
  wake.set();
  return {};
}

void StagedPipeline::Impl::leave() {
  n_live.fetch_sub(1, std::memory_order_seq_cst);
  wake.set();  // a drain may wait for the last
}

void StagedPipeline::Impl::advance() {
  while (auto request = inbox.try_pop())
    loop->accept(*std::move(request));
  const std::size_t n_ended = loop->turn();
  n_live.fetch_sub(static_cast<std::uint32_t>(n_ended), std::memory_order_seq_cst);
}

void StagedPipeline::Impl::run() {
  // The fence of the pipeline thread: what a library throws ends the requests, not the process.
  std::string what;
  try {
    return turn_until_drained();
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "an unknown exception";
  }
  logger("pipeline")->critical("the pipeline's thread ends reason=\"{}\"", what);
  has_failed.store(true, std::memory_order_release);
  give_up({Code::internal, "the server failed"});
}

/// No request comes in any more; those that are here, and those on their way, hear why.
void StagedPipeline::Impl::give_up(const Error& error) {
  is_draining.store(true, std::memory_order_seq_cst);
  n_live.fetch_sub(static_cast<std::uint32_t>(loop->abandon(error)), std::memory_order_seq_cst);
  for (;;) {
    while (auto request = inbox.try_pop()) {
      PipelineLoop::tell_end(*(*request)->sink, {{}, error});
      n_live.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (n_live.load(std::memory_order_seq_cst) == 0) return;
    clock.wait(wake, std::nullopt);
  }
}

void StagedPipeline::Impl::turn_until_drained() {
  for (;;) {
    advance();
    std::optional<Nanoseconds> deadline;
    if (is_draining.load(std::memory_order_seq_cst)) {
      if (n_live.load(std::memory_order_seq_cst) == 0) return;
      const Nanoseconds end{drain_end_ns.load(std::memory_order_relaxed)};
      if (clock.now() >= end) {
        loop->end_all({Code::unavailable, "the server is shutting down"});
        if (loop->n_live() > 0) continue;
      } else {
        deadline = end;
      }
    }
    clock.wait(wake, deadline);
  }
}

StagedPipeline::StagedPipeline(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<StagedPipeline>> StagedPipeline::create(PipelineSetup setup,
                                                               Clock& clock,
                                                               WakeSignal& wake,
                                                               PipelineStats& stats) {
  const std::vector<StageSetup> stages = std::move(setup.stages);
  if (setup.models.empty() || setup.n_requests_max == 0) {
    return Error{Code::invalid_argument, "a pipeline needs a model and room for a request"};
  }
  auto impl = std::make_unique<Impl>(std::move(setup), clock, wake, stats);
  LUNA_TRY(impl->add_stages(stages));
  return std::unique_ptr<StagedPipeline>(new StagedPipeline(std::move(impl)));
}

StagedPipeline::~StagedPipeline() {
  if (impl_->thread.joinable()) drain(std::chrono::nanoseconds(0));
}

void StagedPipeline::launch() {
  LUNA_VERIFY(!impl_->thread.joinable());
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

void StagedPipeline::drain(std::chrono::nanoseconds grace) {
  impl_->drain_end_ns.store((impl_->clock.now() + grace).count(), std::memory_order_relaxed);
  impl_->is_draining.store(true, std::memory_order_seq_cst);
  impl_->wake.set();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void StagedPipeline::advance() {
  impl_->advance();
}

std::vector<std::string> StagedPipeline::model_names() const {
  std::vector<std::string> names = {impl_->answering->name};
  for (const PipelineModel& model : impl_->models)
    if (&model != impl_->answering) names.push_back(model.name);
  return names;
}

std::uint32_t StagedPipeline::context_length(const std::string& model) const {
  const PipelineModel* const found = impl_->find_model(model);
  return found == nullptr ? 0 : found->context_tokens_max;
}

std::uint32_t StagedPipeline::vocab_size(const std::string& model) const {
  const PipelineModel* const found = impl_->find_model(model);
  return found == nullptr ? 0 : static_cast<std::uint32_t>(found->tokenizer->vocab_size());
}

Result<std::vector<TokenId>> StagedPipeline::tokenize(const Request& request) const {
  LUNA_TRY(const PipelineModel* const model, impl_->model_of(request));
  return prompt_ids(request, *model);
}

std::string StagedPipeline::token_bytes(const std::string& model, TokenId id) const {
  const PipelineModel* const found = impl_->find_model(model);
  return found == nullptr ? std::string() : std::string(found->tokenizer->bytes(id));
}

std::chrono::nanoseconds StagedPipeline::queue_wait(const std::string& model) const {
  const PipelineModel* const found = impl_->find_model(model);
  return found == nullptr ? std::chrono::nanoseconds(0) : found->runner->queue_wait();
}

Result<std::unique_ptr<RunningRequest>> StagedPipeline::start(Request request,
                                                              std::shared_ptr<OutputSink> sink) {
  if (impl_->is_draining.load(std::memory_order_seq_cst)) {
    return Error{Code::unavailable, "the server is shutting down"};
  }
  LUNA_TRY(auto state, impl_->prepare(std::move(request), std::move(sink)));
  auto handle = std::make_unique<Handle>(state->is_cancelled, impl_->wake);
  LUNA_TRY(impl_->enqueue(std::move(state)));
  return std::unique_ptr<RunningRequest>(std::move(handle));
}

bool StagedPipeline::has_failed() const {
  return impl_->has_failed.load(std::memory_order_acquire);
}

std::uint32_t StagedPipeline::n_live() const {
  return impl_->n_live.load(std::memory_order_relaxed);
}

}  // namespace luna::pipeline
