// The engine: one thread that owns sequences, KV blocks and the step.
#pragma once

#include "core/base/clock.hpp"
#include "core/engine/ngram_index.hpp"
#include "core/model/compiled_model.hpp"
#include "core/pipeline/request.hpp"
#include "core/pipeline/token_stream.hpp"
#include "core/plugin/instance.hpp"
#include "core/telemetry/engine_stats.hpp"
#include "core/text/tokenizer.hpp"

#include <luna/abi/scheduler.h>
#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::engine {

class DeviceTurns;
class PlanRecorder;

/// A group of devices of an engine; a number is given once. Those that it starts with are 0, 1, ...
enum class GroupId : std::uint32_t {};

/// How a group leaves.
enum class RetireMode : std::uint8_t {
  /// Its steps in flight are its last; what it held waits for another group and goes on there, with
  /// all its tokens.
  at_once,
  when_idle,  ///< it takes nothing new; what it holds runs to its end
  /// It takes nothing new; what it holds moves to other groups with its KV, and where that cannot
  /// go, or finds no room, as if at once.
  moving,
};

/// A group has left the engine, which uses nothing of it any more: its model may be destroyed.
struct GroupEnd {
  GroupId group{};
  /// Index of the device whose steps failed, in layer order; none: the group was retired.
  std::optional<std::uint32_t> failed_device;
};

/// Whether a request's tokens are drafted; its answer does not depend on it.
enum class Drafts : std::uint8_t {
  as_they_pay,
  never,
  always,  ///< as many as fit, whatever they cost
};

/// What enters the engine: one prompt and its n sequences.
struct SequenceRequest {
  std::uint64_t id = 0;                   ///< unique in the process
  std::string label;                      ///< what the log calls it; empty: its id
  std::vector<pipeline::TokenId> prompt;  ///< at least one token
  pipeline::SamplingParams sampling;
  pipeline::StopCriteria stop;
  pipeline::LogprobParams logprobs;
  std::int32_t priority = 0;
  std::uint32_t tenant = 0;
  std::string cache_salt;  ///< the prefix cache is shared with equal salts only
  /// Tokens of the prompt a step, at most, whatever the policy says; none: as the policy says.
  std::optional<std::uint32_t> prompt_chunk_tokens_max;
  Drafts drafts = Drafts::as_they_pay;
  bool hash_logits = false;  ///< for ComputeTrace; costs a pass over the vocabulary a token
  std::uint32_t stage = 0;   ///< index into the pipeline
  std::optional<Nanoseconds> deadline;  ///< on the engine's clock
  Nanoseconds arrival{0};               ///< on the engine's clock, at the front door
  /// One stream a choice: streams.size() sequences share the prompt's KV. Each has room for
  /// n_generated_max tokens, TokenStream::text_bytes_for() bytes and logprobs.n_top alternatives.
  std::vector<std::shared_ptr<pipeline::TokenStream>> streams;
};

/// How drafts are made. Answers do not depend on it.
struct SpeculationOptions {
  std::uint32_t n_draft_max = 0;  ///< tokens of a draft; 0: none are made
  NgramLengths lengths{};         ///< of the look-up
  /// In place of the look-up: a model of the same vocabulary, which outlives the engine and runs
  /// for nobody else.
  const model::CompiledModel* draft_model = nullptr;
  /// In place of the look-up, and offered whatever it costs: writes a draft of at most
  /// draft.size() tokens and returns its length. For tests. [engine]
  std::uint32_t (*drafter)(void* context,
                           const SplitText& text,
                           std::span<pipeline::TokenId> draft) = nullptr;
  void* drafter_context = nullptr;
};

/// Which answers are computed once more and compared: see OutputCheck.
struct OutputCheckOptions {
  std::uint32_t percent = 0;  ///< of the requests that were sliced, moved or computed anew
  std::size_t bytes_max = std::size_t{16} << 20U;  ///< that answers which wait for it may take
};

struct EngineOptions {
  std::uint32_t n_waiting_max = 1024;    ///< sequences in the queue; beyond it: exhausted
  std::uint32_t step_tokens_max = 512;   ///< token rows a step, at most the model's
  std::uint32_t kv_reserve_percent = 0;  ///< of the KV blocks: left to running sequences
  bool prefix_cache = true;              ///< keep computed blocks for prompts that begin the same
  bool prefix_cache_per_tenant = false;  ///< a tenant finds only what its own requests computed
  std::uint64_t prefix_hash_seed = 0;    ///< unknown to clients, that they cannot make keys collide
  std::uint32_t n_groups_max = 1;        ///< at any time; at least those that it starts with
  /// KV goes from group to group on the engine's own thread: for virtual time.
  bool copies_at_once = false;
  /// How long a request waits for devices when those that could hold it have gone.
  Nanoseconds recovery_timeout = std::chrono::seconds(30);
  SpeculationOptions speculation{};
  OutputCheckOptions output_check{};
  PlanRecorder* plan_recorder = nullptr;  ///< notes every plan; outlives the engine
  /// A plan that takes longer is carried out, and counts against its policy as an illegal one does.
  Nanoseconds plan_budget = std::chrono::milliseconds(50);
  /// Of the last 64 plans so many illegal or late ones, and the policy is replaced: 1..64.
  std::uint32_t n_plan_faults_max = 8;
};

/// Everything fixed that an engine is built from; it outlives the engine.
struct EngineParts {
  /// One a group: devices that hold a copy of the model together. They differ in devices, lanes and
  /// n_kv_blocks only.
  std::vector<const model::CompiledModel*> models;
  const plugin::Instance<luna_scheduler_if>& scheduler;
  const text::Tokenizer& tokenizer;
  Clock& clock;
  telemetry::EngineStats& stats;
  /// Called on the engine thread once after each step that published something; it must only wake
  /// the pipeline thread.
  void (*on_published)(void* context);
  void* context;
  /// Called on the engine thread, between steps, with each group that has left; it must only wake
  /// somebody. Null: nobody ever adds groups, so that when the last one fails all is lost.
  void (*on_group_gone)(void* context, const GroupEnd& end) = nullptr;
  void* group_context = nullptr;
  /// Where other engines use the same devices: its place among them. It has one group then.
  DeviceTurns* turns = nullptr;
  std::uint32_t turns_member = 0;
  /// Policies that take the place of `scheduler` when it keeps failing, one after the other,
  /// between steps; what runs goes on. Empty: nothing does. They outlive the engine too.
  std::span<const plugin::Instance<luna_scheduler_if>> fallbacks{};
};

/// Runs one model, on one group of devices or several. The step of a group: commands in, the ended
/// step's tokens out, plan, KV blocks, one submit a device. Nothing in it waits for a client,
/// allocates, locks or logs (a refused plan, a late one and a failed device are told once a kind).
class Engine {
 public:
  /// Errors  invalid_argument (the model's limits leave no room for a step, or the draft model's;
  ///         groups that are no copies of one model; a fallback that does not slice beside a policy
  ///         that does), unsupported (more logits than the tokenizer
  ///         has tokens, or than the draft model has; a draft model beside several groups)
  static Result<std::unique_ptr<Engine>> create(const EngineParts& parts,
                                                const EngineOptions& options);
  /// Stops, if nobody did.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts the engine thread. [main]
  void start();
  /// Ends every sequence (cancelled) and the thread; waits for the step that runs. Afterwards
  /// submit() answers unavailable. [main]
  void stop();

  /// Whether a prompt of this length with so many output tokens can ever be served; the error names
  /// the numbers (needs blocks, has blocks, context). [any]
  [[nodiscard]] Result<void> can_fit(std::uint32_t n_prompt,
                                     std::uint32_t n_generated_max,
                                     std::uint32_t n_choices) const;
  /// Checks the request and hands it over. Allocates what its steps will need. [any]
  ///
  /// Errors  invalid_argument (the value and what is allowed), exhausted (queue full), unavailable
  ///         (stopped)
  Result<void> submit(std::unique_ptr<SequenceRequest> request);
  /// How long the requests that wait now will take to be let in, by how fast the queue drained
  /// lately; 0: none waits, or nothing was measured yet. [any]
  [[nodiscard]] Nanoseconds queue_wait() const;
  /// Ends the request at the next step border; its KV is free then. Unknown ids are passed over:
  /// the request has ended. [any]
  void cancel(std::uint64_t id);
  /// Adds a group of devices, which takes rows from the next plan on; what waits is given to groups
  /// anew. The model outlives it: see GroupEnd. [any]
  ///
  /// Errors  invalid_argument (no copy of the engine's model), exhausted (n_groups_max groups are
  ///         there), unsupported (a draft model), unavailable (stopped)
  Result<GroupId> add_group(const model::CompiledModel& model);
  /// Has a group leave; on_group_gone() tells when it has. One that is not there is passed over: it
  /// has left by itself. [any]
  void retire_group(GroupId id, RetireMode mode);
  /// Has what a group runs move to others with its KV, as far as these have room for it; the group
  /// stays, and takes rows as before. One that is not there is passed over. [any]
  void relieve_group(GroupId id);
  /// Forgets what the prefix cache keeps for prompts to come. [any]
  void drop_prefix_cache();
  /// Frees the memory of requests that have ended, off the engine thread. submit() does it too, so
  /// that those of an idle engine wait for the next request. [any]
  void reclaim();
  /// One turn of the check of outputs, if it is on: judges the replay that has ended, and begins
  /// the next one if no request was there in this turn and the one before. Waits for nothing; a
  /// replay ends at the border of its step when a request comes. [any, one thread at a time]
  void check_outputs();

  /// One turn of the loop: drains commands, finishes a completed step, plans and starts the next.
  /// Returns whether there was anything to do. For virtual time and tests; start() runs it for you.
  bool advance();
  /// When advance() has something to do although nothing happens: a deadline, the policy's wish.
  /// For virtual time. [engine]
  [[nodiscard]] std::optional<Nanoseconds> next_wake() const;
  /// Waits on the clock until there is something to do. For virtual time. [engine]
  void wait();
  /// Recounts the KV blocks: empty when all is well. Debug builds do it each step. [engine]
  [[nodiscard]] std::string_view audit_kv();

  struct Impl;

 private:
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace luna::engine
