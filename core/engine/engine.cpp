#include "core/engine/engine.hpp"

#include "core/base/assert.hpp"
#include "core/base/log.hpp"
#include "core/engine/engine_impl.hpp"
#include "core/engine/group_check.hpp"
#include "core/engine/sequence_ends.hpp"
#include "core/plugin/scheduler_traits.hpp"

#include <luna/time_slice.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>

namespace luna::engine {
namespace {

// The shortest there is: devices wait for the next step, and a turn is far shorter.
constexpr std::chrono::microseconds kTimeSlice{100};

std::uint32_t n_groups_max(const EngineParts& parts, const EngineOptions& options) {
  return std::max(options.n_groups_max, static_cast<std::uint32_t>(parts.models.size()));
}

model::CompiledModel without_shards(const model::CompiledModel& model) {
  model::CompiledModel copy = model;
  copy.shards.clear();
  copy.outputs.clear();
  copy.abort_comms = nullptr;
  copy.abort_context = nullptr;
  return copy;
}

/// The bounds of the engine's own arrays. Every sequence of the step may want logits.
model::StepLimits bounded_step(const model::CompiledModel& model, const EngineOptions& options) {
  model::StepLimits limits = model.limits;
  limits.n_rows_max = std::min(limits.n_rows_max, options.step_tokens_max);
  limits.n_seqs_max = std::min({limits.n_seqs_max, limits.n_out_rows_max, limits.n_rows_max});
  return limits;
}

Result<void> check_draft_model(const model::CompiledModel& model,
                               const SpeculationOptions& speculation) {
  if (speculation.n_draft_max == 0 || speculation.draft_model == nullptr) return {};
  const model::CompiledModel& draft = *speculation.draft_model;
  if (model.n_lanes() > 1) {
    return Error{Code::invalid_argument,
                 "model " + model.name + ": " + std::to_string(model.n_lanes()) +
                     " steps in flight: beside a draft model there is one"};
  }
  if (draft.config.vocab_size != model.config.vocab_size) {
    return Error{Code::unsupported,
                 "draft model " + draft.name + " has " + std::to_string(draft.config.vocab_size) +
                     " logits, model " + model.name + " " +
                     std::to_string(model.config.vocab_size)};
  }
  const model::StepLimits& limits = draft.limits;
  const bool has_room = limits.n_seqs_max > 0 && limits.n_out_rows_max >= limits.n_seqs_max &&
                        limits.n_rows_max >= limits.n_seqs_max && limits.n_positions_max > 0;
  const bool tells = !draft.outputs.empty() && draft.outputs.front().candidates != nullptr;
  if (has_room && tells && draft.n_candidates > 0) return {};
  return Error{Code::invalid_argument,
               "draft model " + draft.name +
                   ": its limits leave no room for a step: " + std::to_string(limits.n_rows_max) +
                   " rows, " + std::to_string(limits.n_out_rows_max) + " with logits, " +
                   std::to_string(limits.n_seqs_max) + " sequences, " +
                   std::to_string(draft.n_candidates) + " candidates a row"};
}

NgramLengths ngram_lengths(const SpeculationOptions& options) {
  const bool looks_up =
      options.n_draft_max > 0 && options.drafter == nullptr && options.draft_model == nullptr;
  return looks_up ? options.lengths : NgramLengths{};
}

Result<void> check_groups(const EngineParts& parts,
                          const EngineOptions& options,
                          const model::StepLimits& limits) {
  if (parts.models.size() > telemetry::kGroupsMax || options.n_groups_max > telemetry::kGroupsMax) {
    return Error{
        Code::invalid_argument,
        "model " + parts.models.front()->name + ": " +
            std::to_string(std::max<std::size_t>(parts.models.size(), options.n_groups_max)) +
            " groups of devices: at most " + std::to_string(telemetry::kGroupsMax) + " are served"};
  }
  for (const model::CompiledModel* model : parts.models) {
    LUNA_TRY(check_model(*model, limits));
    LUNA_TRY(check_copy(*parts.models.front(), *model));
  }
  if (n_groups_max(parts, options) == 1) {
    return check_draft_model(*parts.models.front(), options.speculation);
  }
  if (options.speculation.n_draft_max == 0 || options.speculation.draft_model == nullptr) return {};
  return Error{Code::unsupported,
               "draft model " + options.speculation.draft_model->name +
                   ": it drafts for one group of devices, and model " + parts.models.front()->name +
                   " may have several"};
}

/// Whether requests may be larger than a group: the policy and the devices see to it.
bool has_slices(const EngineParts& parts) {
  return plugin::does_slice(parts.scheduler) && parts.models.front()->slice_set != nullptr;
}

/// A policy that does not know of slices could not go on with requests that are larger than a
/// group.
Result<void> check_fallbacks(const EngineParts& parts, bool are_sliced) {
  for (const auto& fallback : parts.fallbacks)
    if (are_sliced && !plugin::does_slice(fallback))
      return Error{
          Code::invalid_argument,
          "scheduler.fallback: '" + fallback.name() +
              "' does not slice requests over groups of devices, '" + parts.scheduler.name() +
              "' does: it could not go on with them; name a policy that slices, or have '" +
              parts.scheduler.name() + "' slice none"};
  return {};
}

/// Sequences at a time: those counted in, and what is computed once more.
std::uint32_t n_slots(std::uint32_t n_live_max, const EngineOptions& options) {
  return n_live_max + (options.output_check.percent > 0 ? 1 : 0);
}

/// KV blocks of the longest sequence that the groups could hold, as they are now: see
/// Engine::Impl::note_capacity().
std::uint32_t n_blocks_of_a_sequence(const EngineParts& parts) {
  std::uint32_t n_most = 0;
  std::uint32_t n_together = 0;
  for (const model::CompiledModel* model : parts.models) {
    n_most = std::max(n_most, model->n_kv_blocks);
    n_together += model->n_kv_blocks;
  }
  return has_slices(parts) ? n_together : n_most;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineParts& parts,
                                               const EngineOptions& options) {
  if (parts.models.empty()) return Error{Code::invalid_argument, "no model is given"};
  const model::CompiledModel& model = *parts.models.front();
  const text::Tokenizer& tokenizer = parts.tokenizer;
  const model::StepLimits step_limits = bounded_step(model, options);
  LUNA_TRY(check_groups(parts, options, step_limits));
  LUNA_TRY(check_fallbacks(parts, has_slices(parts)));
  if (tokenizer.vocab_size() < model.config.vocab_size) {
    return Error{Code::unsupported,
                 "model " + model.name + " has " + std::to_string(model.config.vocab_size) +
                     " logits, its tokenizer " + std::to_string(tokenizer.vocab_size()) +
                     " tokens"};
  }
  const std::uint32_t n_positions = step_limits.n_positions_max;
  const std::size_t token_bytes = tokenizer.token_bytes_max();
  const bool fits_stream = n_positions <= pipeline::TokenStream::kTokensMax &&
                           token_bytes < pipeline::TokenStream::kTextBytesMax &&
                           pipeline::TokenStream::text_bytes_for(n_positions, token_bytes) <=
                               pipeline::TokenStream::kTextBytesMax;
  if (!fits_stream) {
    return Error{Code::unsupported,
                 "model " + model.name + ": the text of " + std::to_string(n_positions) +
                     " tokens of up to " + std::to_string(token_bytes) +
                     " bytes is more than one answer can hold"};
  }
  const RequestLimits limits{.vocab_size = model.config.vocab_size,
                             .n_positions_max = step_limits.n_positions_max,
                             .kv_block_tokens = model.kv_block_tokens,
                             .n_kv_blocks = n_blocks_of_a_sequence(parts),
                             .n_choices_max = std::max(options.n_waiting_max, 1U),
                             .prefix_per_tenant = options.prefix_cache_per_tenant,
                             .ngrams = ngram_lengths(options.speculation)};
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<Impl>(parts, limits, step_limits, options)));
}

Engine::Impl::Impl(const EngineParts& engine_parts,
                   const RequestLimits& request_limits,
                   const model::StepLimits& limits_of_a_step,
                   const EngineOptions& options)
    : parts(engine_parts),
      limits(request_limits),
      step_limits(limits_of_a_step),
      pruning{parts.models.front()->prune_keep_percent, limits.kv_block_tokens},
      n_waiting_max(options.n_waiting_max),
      n_live_max(options.n_waiting_max +
                 engine::n_groups_max(parts, options) * step_limits.n_seqs_max),
      n_groups_max(engine::n_groups_max(parts, options)),
      n_candidates(parts.models.front()->n_candidates),
      may_outgrow_group(has_slices(parts)),
      recovery_timeout(options.recovery_timeout),
      plan_budget(options.plan_budget),
      group_options{.limits = step_limits,
                    .n_slots = n_slots(n_live_max, options),
                    .n_holders = n_slots(n_live_max, options) + KvMoves::kMax + KvSlices::kMovesMax,
                    .kv_reserve_percent = options.kv_reserve_percent,
                    .prefix_cache = options.prefix_cache,
                    .prefix_hash_seed = options.prefix_hash_seed,
                    .is_only = n_groups_max == 1},
      pattern(without_shards(*parts.models.front())),
      // A submit and a few cancels of every sequence.
      inbox(std::size_t{4} * n_live_max),
      // Those in the queue and those of a step of each group; more that hold KV are not let in.
      sequences(group_options.n_slots,
                (step_limits.n_positions_max + limits.kv_block_tokens - 1) / limits.kv_block_tokens,
                n_groups_max > 1),
      groups(n_groups_max),
      moves({.n_slots = sequences.n_slots(),
             .n_blocks_per_seq = sequences.n_blocks_per_seq(),
             .block_tokens = limits.kv_block_tokens,
             .is_on = n_groups_max > 1,
             .has_thread = !options.copies_at_once},
            parts.clock,
            wake,
            parts.stats),
      slices({.first_holder = sequences.n_slots() + KvMoves::kMax,
              .n_blocks_per_seq = sequences.n_blocks_per_seq(),
              .is_on = n_groups_max > 1,
              .has_thread = !options.copies_at_once},
             parts.clock,
             wake),
      gate(parts.scheduler,
           {.n_rows_max = step_limits.n_rows_max,
            .n_seqs_max = step_limits.n_seqs_max,
            .kv_block_tokens = limits.kv_block_tokens,
            .n_groups_max = n_groups_max,
            .slices = may_outgrow_group},
           sequences,
           groups,
           moves,
           slices),
      plan(sequences.n_slots(), n_groups_max * step_limits.n_seqs_max),
      sampler(limits.vocab_size, n_candidates),
      speculation(options.speculation,
                  {.n_slots = sequences.n_slots(),
                   .n_rows_max = step_limits.n_rows_max,
                   .n_draft_rows_max = step_limits.n_out_rows_max - step_limits.n_seqs_max,
                   .kv_block_tokens = limits.kv_block_tokens}),
      policy_watch(options.n_plan_faults_max) {
  if (options.output_check.percent > 0) {
    output_check.emplace(options.output_check, parts.stats.output_check);
    parts.stats.output_check.percent.store(options.output_check.percent);
  }
  if (options.plan_recorder != nullptr) gate.record_to(*options.plan_recorder);
  gate.time_by(parts.clock);
  plan.slices.reserve(KvSlices::kMovesMax);
  for (const model::CompiledModel* model : parts.models) {
    const GroupNumbers numbers{
        .id = GroupId{next_group.fetch_add(1)},
        .place = 0,
        .first_device = next_device.fetch_add(static_cast<std::uint32_t>(model->shards.size()))};
    n_groups.fetch_add(1);
    admit(std::make_unique<Group>(*model, group_options, numbers, wake));
  }
  const SpeculationOptions& drafts = options.speculation;
  if (drafts.n_draft_max > 0 && drafts.draft_model != nullptr) {
    draft_model.emplace(
        *drafts.draft_model,
        parts.clock,
        wake,
        DraftModel::Limits{.n_slots = sequences.n_slots(), .n_draft_max = drafts.n_draft_max});
  }
  arrivals.reserve(n_groups_max);
  if (parts.turns != nullptr) parts.turns->enter(parts.turns_member, wake);
  update_gauges();
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() {
  stop();
  impl_->reclaim();
}

void Engine::start() {
  LUNA_VERIFY(!impl_->thread.joinable());
  impl_->thread = std::thread([impl = impl_.get()] { impl->run_thread(); });
}

void Engine::stop() {
  impl_->stopping.store(true);
  impl_->wake.set();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->shut_down();
}

Result<void> Engine::can_fit(std::uint32_t n_prompt,
                             std::uint32_t n_generated_max,
                             std::uint32_t n_choices) const {
  return check_fit(impl_->limits_now(), n_prompt, n_generated_max, n_choices);
}

Result<void> Engine::submit(std::unique_ptr<SequenceRequest> request) {
  impl_->reclaim();
  LUNA_TRY(auto live,
           LiveRequest::make(std::move(request), impl_->limits_now(), impl_->parts.tokenizer));
  const auto n_sequences = static_cast<std::uint32_t>(live->choices.size());
  if (!impl_->reserve(n_sequences)) {
    return Error{
        Code::exhausted,
        "the queue is full: " + std::to_string(impl_->n_waiting_max) + " sequences wait already"};
  }
  if (impl_->push(std::move(live))) return {};
  impl_->unreserve(n_sequences);
  if (impl_->stopping.load()) return Error{Code::unavailable, "the engine has been stopped"};
  return Error{Code::exhausted, "the engine's inbox is full"};
}

void Engine::cancel(std::uint64_t id) {
  impl_->tell(Cancel{id});
}

void Engine::drop_prefix_cache() {
  impl_->tell(DropCached{});
}

void Engine::reclaim() {
  impl_->reclaim();
}

Nanoseconds Engine::queue_wait() const {
  return impl_->queue.wait();
}

bool Engine::advance() {
  return impl_->advance();
}

std::optional<Nanoseconds> Engine::next_wake() const {
  return impl_->next_wake();
}

void Engine::wait() {
  impl_->parts.clock.wait(impl_->wake, impl_->next_wake());
}

std::string_view Engine::audit_kv() {
  return impl_->audit_kv();
}

std::string_view Engine::Impl::audit_kv() {
  for (const auto& group : groups.all())
    if (const std::string_view fault = group->run_audit(sequences, moves, slices); !fault.empty())
      return fault;
  for (const std::uint32_t slot : sequences.order())
    if (sequences[slot].group == nullptr && sequences[slot].n_blocks > 0)
      return "a sequence of no group holds blocks";
  return draft_model ? draft_model->audit() : std::string_view{};
}

void Engine::Impl::run_thread() {
  ask_for_time_slices(kTimeSlice);
  try {
    while (!stopping.load(std::memory_order_relaxed)) {
      if (!advance()) parts.clock.wait(wake, next_wake());
    }
  } catch (const std::exception& e) {
    // Only a library can have thrown: memory has run out, or worse. State is unknown.
    logger("engine")->critical("engine thread ended by an exception what=\"{}\"", e.what());
    std::abort();
  }
}

void Engine::Impl::shut_down() {
  if (is_shut_down) return;
  is_shut_down = true;
  if (parts.turns != nullptr) parts.turns->leave(parts.turns_member);
  while (n_submitting.load() != 0)
    std::this_thread::yield();
  for (const auto& group : groups.all())
    end_steps(*group);
  arrivals.clear();
  while (is_drafting() && !draft_model->is_done())
    parts.clock.wait(wake, std::nullopt);
  if (is_drafting()) draft_model->abandon();
  drain_inbox();
  end_all(kCancelled);
  for (slices.settle(sequences); slices.is_copying(); slices.settle(sequences))
    std::this_thread::yield();
  if (draft_model) draft_model->sweep(sequences);
  update_gauges();
  if (std::exchange(published, false)) parts.on_published(parts.context);
}

// Waits for the group's steps in flight; nobody wants what they bring.
void Engine::Impl::end_steps(Group& group) {
  while (!group.lanes.is_idle()) {
    StepLane& lane = group.lanes.oldest();
    while (!lane.runner.is_done())
      parts.clock.wait(wake, std::nullopt);
    lane.runner.collect();
    for (const StepBatch::Entry& entry : lane.batch.entries())
      leave_step(entry, parts.clock.now());
    group.lanes.note_ended();
  }
}

bool Engine::Impl::push(std::unique_ptr<LiveRequest> request) {
  // Counted, so that stop() knows when the last command has come in.
  n_submitting.fetch_add(1);
  Command command = std::move(request);
  const bool pushed = !stopping.load() && inbox.try_push(std::move(command));
  n_submitting.fetch_sub(1);
  if (pushed) wake.set();
  return pushed;
}

bool Engine::Impl::tell(Command command) {
  n_submitting.fetch_add(1);
  bool told = false;
  // The inbox has room for several commands of every sequence: it is full only while a burst is
  // being drained, which the engine does at every turn.
  while (!told && !stopping.load()) {
    told = inbox.try_push(std::move(command));
    wake.set();
    if (!told) std::this_thread::yield();
  }
  n_submitting.fetch_sub(1);
  return told;
}

RequestLimits Engine::Impl::limits_now() const {
  RequestLimits now = limits;
  now.n_kv_blocks = n_blocks_max.load(std::memory_order_relaxed);
  return now;
}

bool Engine::Impl::reserve(std::uint32_t n_sequences) {
  const auto add_below = [n_sequences](std::atomic<std::uint32_t>& counter, std::uint32_t max) {
    const std::uint32_t before = counter.fetch_add(n_sequences);
    if (before <= max && n_sequences <= max - before) return true;
    counter.fetch_sub(n_sequences);
    return false;
  };
  if (!add_below(n_queued, n_waiting_max)) return false;
  if (add_below(n_live, n_live_max)) return true;
  n_queued.fetch_sub(n_sequences);
  return false;
}

void Engine::Impl::unreserve(std::uint32_t n_sequences) {
  n_queued.fetch_sub(n_sequences);
  n_live.fetch_sub(n_sequences);
}

void Engine::Impl::reclaim() {
  LiveRequest* request = finished.exchange(nullptr, std::memory_order_acquire);
  while (request != nullptr) {
    const std::unique_ptr<LiveRequest> owned(request);
    request = owned->next;
  }
}

}  // namespace luna::engine
