#include "core/app/reproducibility_check.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace luna::app {
namespace {

using pipeline::TokenStream;

// The pipeline counts its ids from the other end.
constexpr std::uint64_t kFirstId = std::uint64_t{1} << 63U;
// Others fill the step: short prompts, and answers that outlast the one that is watched by as many
// steps as may pass until the last of them is decoding.
constexpr std::size_t kOtherPromptTokensMax = 48;
constexpr std::uint32_t kOtherStepsMax = 256;

/// A sequence on its way.
struct Started {
  std::uint64_t id = 0;
  std::shared_ptr<TokenStream> stream;  // shared with the engine
};

class Reproducer {
 public:
  Reproducer(const pipeline::PipelineModel& model,
             const engine::SequenceRequest& asked,
             const std::function<bool()>& wait)
      : model_(model), asked_(asked), wait_(wait) {}

  Result<Reproduction> run(const ReproductionSetting& setting) {
    std::vector<Started> others;
    auto run = run_beside(setting, others);
    for (const Started& other : others)
      model_.runner->cancel(other.id);
    for (const Started& other : others)
      while (!other.stream->view().end && wait_()) {}
    return run;
  }

 private:
  Result<Reproduction> run_beside(const ReproductionSetting& setting,
                                  std::vector<Started>& others) {
    engine::SequenceRequest request = asked_;
    request.cache_salt = "run";
    // Only one setting may find what another has left.
    if (!setting.finds_prefix) request.cache_salt += std::to_string(n_runs_++);
    request.prompt_chunk_tokens_max = setting.prompt_chunk_tokens_max;
    request.drafts = setting.drafts;
    request.hash_logits = true;
    LUNA_TRY(add_others(setting, others));
    for (const Started& other : others)
      while (!other.stream->view().end && other.stream->view().tokens.empty())
        if (!wait_()) return stopped();
    LUNA_TRY(const Started started, start(std::move(request)));
    while (!started.stream->view().end) {
      if (wait_()) continue;
      model_.runner->cancel(started.id);
      return stopped();
    }
    const TokenStream::View view = started.stream->view();
    if (view.end->reason == pipeline::FinishReason::failed)
      return Error{view.end->code, setting.name + ": " + std::string(view.end->error)};
    Reproduction run{.setting = setting.name, .tokens = {}, .end = *view.end, .is_same = false};
    for (const pipeline::TokenRecord& record : view.tokens)
      run.tokens.push_back(record.token_id);
    return run;
  }

  static Error stopped() { return {Code::cancelled, "the check was stopped"}; }

  Result<void> add_others(const ReproductionSetting& setting, std::vector<Started>& others) {
    for (std::uint32_t i = 0; i < setting.n_beside; ++i) {
      engine::SequenceRequest request = asked_;
      request.drafts = setting.drafts;
      const std::uint32_t k = n_others_++;
      request.cache_salt = "other" + std::to_string(k);
      auto& prompt = request.prompt;
      std::rotate(
          prompt.begin(),
          prompt.begin() + static_cast<std::ptrdiff_t>((std::size_t{k} * 7 + 1) % prompt.size()),
          prompt.end());
      prompt.resize(std::min(prompt.size(), 1 + std::size_t{k} * 13 % kOtherPromptTokensMax));
      request.sampling.temperature = 1.0F;
      request.sampling.seed = k;
      request.stop.ignore_eos = true;
      const auto n_prompt = static_cast<std::uint32_t>(prompt.size());
      request.stop.n_generated_max =
          std::min(model_.context_tokens_max - n_prompt,
                   asked_.stop.n_generated_max + static_cast<std::uint32_t>(asked_.prompt.size()) +
                       kOtherStepsMax);
      LUNA_TRY(Started started, start(std::move(request)));
      others.push_back(std::move(started));
    }
    return {};
  }

  Result<Started> start(engine::SequenceRequest request) {
    const std::uint32_t n = request.stop.n_generated_max;
    const std::size_t n_bytes = TokenStream::text_bytes_for(n, model_.tokenizer->token_bytes_max());
    Started started{.id = kFirstId + n_started_++,
                    .stream = std::make_shared<TokenStream>(n, n_bytes, request.logprobs.n_top)};
    request.id = started.id;
    request.streams = {started.stream};
    LUNA_TRY(model_.runner->submit(std::make_unique<engine::SequenceRequest>(std::move(request))));
    return started;
  }

  const pipeline::PipelineModel& model_;
  const engine::SequenceRequest& asked_;
  const std::function<bool()>& wait_;
  std::uint64_t n_started_ = 0;
  std::uint32_t n_runs_ = 0;
  std::uint32_t n_others_ = 0;
};

}  // namespace

std::vector<ReproductionSetting> reproduction_settings() {
  std::vector<ReproductionSetting> settings;
  settings.push_back({.name = "alone again"});
  for (const std::uint32_t n : {1U, 6U, 31U, 63U})
    settings.push_back({.name = "beside " + std::to_string(n), .n_beside = n});
  for (const std::uint32_t n : {7U, 32U})
    settings.push_back(
        {.name = "chunks of " + std::to_string(n), .n_beside = 0, .prompt_chunk_tokens_max = n});
  // What it finds, the first of the two leaves.
  settings.push_back({.name = "prefix miss", .finds_prefix = true});
  settings.push_back({.name = "prefix hit", .finds_prefix = true});
  settings.push_back({.name = "drafts", .drafts = engine::Drafts::always});
  settings.push_back({.name = "drafts beside 6", .n_beside = 6, .drafts = engine::Drafts::always});
  return settings;
}

Result<std::vector<Reproduction>> reproduce(const pipeline::PipelineModel& model,
                                            const engine::SequenceRequest& asked,
                                            const std::vector<ReproductionSetting>& settings,
                                            const std::function<bool()>& wait) {
  Reproducer reproducer(model, asked, wait);
  std::vector<Reproduction> runs;
  LUNA_TRY(Reproduction plain, reproducer.run({.name = "alone"}));
  plain.is_same = true;
  runs.push_back(std::move(plain));
  for (const ReproductionSetting& setting : settings) {
    LUNA_TRY(Reproduction run, reproducer.run(setting));
    const Reproduction& first = runs.front();
    run.is_same = run.tokens == first.tokens && run.end.reason == first.end.reason &&
                  run.end.trace.logits_hash == first.end.trace.logits_hash;
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace luna::app
