#include "core/app/served_model.hpp"

#include "core/app/known_models.hpp"
#include "core/app/periodic_thread.hpp"
#include "core/base/log.hpp"
#include "core/base/random_seed.hpp"
#include "core/base/units.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/scheduler_gate.hpp"
#include "core/model/slice_links.hpp"
#include "core/model/vocabulary_loader.hpp"
#include "core/pipeline/engine_runner.hpp"
#include "core/plugin/scheduler_traits.hpp"
#include "core/text/chat_template.hpp"
#include "core/text/tokenizer.hpp"
#include "core/text/vocabulary_difference.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

namespace luna::app {
namespace {

std::uint32_t to_abi(config::Numerics numerics) {
  switch (numerics) {
    case config::Numerics::i12:
      return LUNA_NUMERICS_I12;
    case config::Numerics::i8:
      return LUNA_NUMERICS_I8;
    case config::Numerics::bf16:
      return LUNA_NUMERICS_BF16;
  }
  return LUNA_NUMERICS_I12;
}

std::uint32_t to_abi(config::KvCacheType type) {
  return type == config::KvCacheType::int8 ? LUNA_DTYPE_I8 : LUNA_DTYPE_BF16;
}

/// Rows of logits that drafts share, all sequences together: where more would be verified in one
/// step, rows cost what they bring. Each takes the vocabulary in floats.
constexpr std::uint32_t kDraftRowsMax = 32;

/// How often the check of outputs looks for an idle engine. A replay begins when it was idle at two
/// looks.
constexpr std::chrono::milliseconds kCheckPeriod{100};

engine::SpeculationOptions speculation_options(const config::ModelSettings& model,
                                               const config::SpeculationSettings& settings) {
  if (settings.method == config::SpeculationMethod::off) return {};
  if (model.step_tokens_max <= model.n_sequences_max) {
    logger("model")->warn(
        "no speculation: steps have no row beyond one a sequence model={} step_tokens_max={} "
        "sequences_max={}",
        model.name,
        model.step_tokens_max,
        model.n_sequences_max);
    return {};
  }
  engine::SpeculationOptions options;
  options.n_draft_max = settings.n_draft_max;
  if (settings.method == config::SpeculationMethod::ngram)
    options.lengths = {.n_min = settings.ngram_min, .n_max = settings.ngram_max};
  return options;
}

std::uint32_t n_draft_rows(const config::ModelSettings& model,
                           const engine::SpeculationOptions& options) {
  if (options.n_draft_max == 0) return 0;
  return std::min({kDraftRowsMax,
                   options.n_draft_max * model.n_sequences_max,
                   model.step_tokens_max - model.n_sequences_max});
}

model::SpeedOptions speed_options(const config::ModelSettings& settings) {
  model::SpeedOptions options;
  options.probe = settings.probe;
  options.cache = speed_cache();
  options.load = {.prompt = settings.expected.prompt,
                  .reused = settings.expected.reused,
                  .output = settings.expected.output,
                  .users = settings.expected.users};
  return options;
}

/// n_draft_rows  rows with logits beyond one a sequence
model::ModelOptions model_options(const config::ModelSettings& settings,
                                  const std::filesystem::path& path,
                                  std::uint32_t n_draft_rows) {
  model::ModelOptions options;
  options.name = settings.name;
  options.path = path;
  options.source = settings.source;
  options.numerics = to_abi(settings.numerics);
  options.kv_dtype = to_abi(settings.kv_cache);
  options.kv_block_tokens = settings.kv_block_tokens;
  if (settings.kv_tokens_max)
    options.kv_blocks_max = div_ceil(*settings.kv_tokens_max, settings.kv_block_tokens);
  options.prune_keep_percent = settings.prune_keep_percent;
  options.n_lanes = settings.n_micro_batches;
  options.speed = speed_options(settings);
  options.is_tensor_split = settings.layout == config::Layout::tensor && !settings.groups;
  options.limits.n_rows_max = settings.step_tokens_max;
  options.limits.n_seqs_max = settings.n_sequences_max;
  options.limits.n_out_rows_max = settings.n_sequences_max + n_draft_rows;
  options.limits.n_positions_max = settings.context_tokens_max.value_or(0);
  if (settings.layers) {
    options.layers.emplace();
    for (const config::LayerRange& range : *settings.layers)
      options.layers->push_back({range.first, range.count});
  }
  return options;
}

/// The draft model runs between two steps of the model.
std::uint32_t one_step_in_flight(const config::ModelSettings& settings) {
  if (settings.devices.size() > 1 || settings.n_micro_batches > 1) {
    logger("model")->warn(
        "beside a draft model one step is in flight, and devices wait for each other model={} "
        "devices={} micro_batches={}",
        settings.name,
        settings.devices.size(),
        settings.n_micro_batches);
  }
  return 1;
}

Result<std::filesystem::path> path_of(const config::ModelSettings& settings) {
  if (settings.path) return *settings.path;
  auto found = find_model(settings.source);
  if (!found) return found.error().in("model " + settings.name);
  return found;
}

/// A draft of other tokens would be nonsense, silently.
Result<void> check_same_vocabulary(const std::string& name,
                                   const std::filesystem::path& path,
                                   const std::string& draft_name,
                                   const std::filesystem::path& draft_path) {
  LUNA_TRY(const text::Vocabulary vocabulary, model::load_vocabulary(path));
  LUNA_TRY(const text::Vocabulary draft_vocabulary, model::load_vocabulary(draft_path));
  const auto difference = text::first_difference(vocabulary, draft_vocabulary);
  if (!difference) return {};
  return Error{Code::unsupported,
               "model " + draft_name + " cannot draft for model " + name +
                   ": their vocabularies must be equal, and " + *difference + " (" + path.string() +
                   ", " + draft_path.string() + ")"};
}

/// The model's own template.
class TemplateRenderer final : public pipeline::ChatRenderer {
 public:
  explicit TemplateRenderer(text::ChatTemplate chat_template)
      : template_(std::move(chat_template)) {}
  [[nodiscard]] Result<std::vector<text::TextRun>> render(
      const boost::json::object& variables) const override {
    // The wall clock, for strftime_now() alone: what people read in a prompt.
    return template_.render(variables, std::chrono::system_clock::now());
  }

 private:
  text::ChatTemplate template_;
};

/// Why no sequence may lie on several groups, though the policy would; none: it may.
std::optional<std::string> why_not_sliced(const config::ModelSettings& settings,
                                          const ModelParts& parts) {
  if (parts.groups.size() < 2) return "there was one group of devices when the model was loaded";
  if (parts.groups.size() > LUNA_SLICE_PEERS_MAX)
    return "there are more than " + std::to_string(LUNA_SLICE_PEERS_MAX) + " groups of devices";
  if (settings.prune_keep_percent < 100) return "its prompts are pruned";
  for (const std::vector<model::Device*>& devices : parts.groups)
    for (const model::Device* device : devices)
      if (!device->can_slice()) return "device " + device->name() + " does not attend for others";
  if (!parts.slices) return "no transport joins the groups";
  return std::nullopt;
}

/// Whether each device shall keep room for messages of the other groups.
bool can_slice(const config::ModelSettings& settings, const ModelParts& parts) {
  if (!plugin::does_slice(parts.scheduler)) return false;
  const auto reason = why_not_sliced(settings, parts);
  // A pipeline has a second group only while it is placed anew.
  const bool may_have_groups =
      parts.groups.size() > 1 ||
      (settings.layout != config::Layout::pipeline && parts.n_groups_max > 1);
  if (reason && may_have_groups)
    logger("model")->warn(
        "a request lies on one group of devices, though the policy would slice it model={} "
        "reason=\"{}\"",
        settings.name,
        *reason);
  return !reason;
}

void set_wake(void* signal) {
  static_cast<WakeSignal*>(signal)->set();
}

}  // namespace

bool could_slice(const config::ModelSettings& settings, std::span<model::Device* const> devices) {
  return settings.prune_keep_percent == 100 &&
         std::ranges::all_of(devices, &model::Device::can_slice);
}

/// Members stand in the order in which they are built; they are destroyed in reverse.
struct ServedModel::Impl {
  std::string name;
  telemetry::EngineStats stats;
  std::optional<text::Tokenizer> tokenizer;
  std::unique_ptr<TemplateRenderer> renderer;
  std::unique_ptr<model::Model> draft_model;
  model::ModelOptions group_options;  // of each group
  std::span<const plugin::Instance<luna_quant_if>> quants;
  std::map<engine::GroupId, std::unique_ptr<model::Model>> models;  // one a group
  std::uint32_t context_tokens_max = 0;
  model::MemoryPlan memory;                        // of all groups
  std::optional<std::string> slice_transport;      // where their sequences may lie on several
  std::unique_ptr<model::SliceLinks> slice_links;  // then
  plugin::Instance<luna_scheduler_if> scheduler;
  std::vector<plugin::Instance<luna_scheduler_if>> fallbacks;
  std::unique_ptr<engine::PlanRecorder> plan_recorder;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<pipeline::EngineRunner> runner;
  std::optional<PeriodicThread> output_check;  // where answers are checked

  Result<void> read_text(const std::filesystem::path& path);
  Result<void> load_draft_model(const ModelParts& parts, const std::filesystem::path& path);
  Result<std::unique_ptr<model::Model>> load_group(const std::vector<model::Device*>& devices,
                                                   const GroupLinks& links) const;
  Result<void> load_groups(const ModelParts& parts);
  Result<void> start_engine(const config::ModelSettings& settings,
                            ModelParts& parts,
                            const engine::SpeculationOptions& speculation,
                            std::vector<const model::CompiledModel*> compiled);
  Result<void> link_slices();
  void link_late(model::Model& copy);
  Result<void> load(const config::ModelSettings& settings,
                    ModelParts parts,
                    const std::filesystem::path& path);
};

Result<void> ServedModel::Impl::read_text(const std::filesystem::path& path) {
  LUNA_TRY(text::Vocabulary vocabulary, model::load_vocabulary(path));
  const std::string source = vocabulary.chat_template;
  LUNA_TRY(tokenizer, text::Tokenizer::create(std::move(vocabulary)));
  if (source.empty()) return {};
  const auto token_text = [this](std::optional<text::TokenId> id) {
    return id ? std::string(tokenizer->bytes(*id)) : std::string();
  };
  LUNA_TRY(auto chat_template,
           text::ChatTemplate::create(
               source, token_text(tokenizer->bos_id()), token_text(tokenizer->eos_id())));
  renderer = std::make_unique<TemplateRenderer>(std::move(chat_template));
  return {};
}

/// path  of the model that it drafts for
Result<void> ServedModel::Impl::load_draft_model(const ModelParts& parts,
                                                 const std::filesystem::path& path) {
  const config::ModelSettings& settings = parts.draft->settings;
  LUNA_TRY(const std::filesystem::path draft_path, path_of(settings));
  LUNA_TRY(check_same_vocabulary(name, path, settings.name, draft_path));
  const model::ModelResources resources{parts.quants, parts.draft->devices, parts.collective};
  model::ModelOptions options = model_options(settings, draft_path, 0);
  options.n_lanes = 1;  // a round's step needs the tokens of the one before
  LUNA_TRY(draft_model, model::Model::load(options, resources));
  const model::CompiledModel& compiled = draft_model->compiled();
  logger("model")->info(
      "draft model loaded model={} drafts_for={} layers={} kv_blocks={} context={}",
      settings.name,
      name,
      compiled.config.n_layers,
      compiled.n_kv_blocks,
      compiled.limits.n_positions_max);
  return {};
}

Result<void> ServedModel::Impl::link_slices() {
  slice_links = std::make_unique<model::SliceLinks>(static_cast<std::uint32_t>(models.size()));
  for (const auto& [id, model] : models)
    LUNA_TRY(slice_links->add(*model));
  return {};
}

/// Of a group that comes while others run.
void ServedModel::Impl::link_late(model::Model& copy) {
  if (const auto linked = slice_links->add(copy); !linked)
    logger("model")->warn(
        "a group holds no slices of others model={} reason=\"{}\"", name, linked.error().message());
}

Result<std::unique_ptr<model::Model>> ServedModel::Impl::load_group(
    const std::vector<model::Device*>& devices, const GroupLinks& links) const {
  const model::ModelResources resources{quants, devices, links.collective, links.slices};
  model::ModelOptions options = group_options;
  if (!links.slices) options.n_slice_peers = 0;
  LUNA_TRY(auto model, model::Model::load(options, resources));
  const model::CompiledModel& compiled = model->compiled();
  logger("model")->info(
      "loaded model={} devices={} layers={} kv_blocks={} kv_block_tokens={} context={} "
      "steps_in_flight={}",
      name,
      devices.size(),
      compiled.config.n_layers,
      compiled.n_kv_blocks,
      compiled.kv_block_tokens,
      compiled.limits.n_positions_max,
      compiled.n_lanes());
  return model;
}

/// A copy of the model a group.
Result<void> ServedModel::Impl::load_groups(const ModelParts& parts) {
  for (const std::vector<model::Device*>& devices : parts.groups) {
    LUNA_TRY(auto model, load_group(devices, {parts.collective, parts.slices}));
    const model::MemoryPlan& taken = model->memory();
    memory.shards.insert(memory.shards.end(), taken.shards.begin(), taken.shards.end());
    memory.n_kv_blocks += taken.n_kv_blocks;
    context_tokens_max = model->compiled().limits.n_positions_max;
    models.emplace(engine::GroupId{static_cast<std::uint32_t>(models.size())}, std::move(model));
  }
  return {};
}

Result<void> ServedModel::Impl::load(const config::ModelSettings& settings,
                                     ModelParts parts,
                                     const std::filesystem::path& path) {
  if (auto text = read_text(path); !text) return text.error().in("model " + name);
  engine::SpeculationOptions speculation = speculation_options(settings, parts.speculation);
  // First: its KV is bounded, and the model may take all that is left.
  if (speculation.n_draft_max > 0 && parts.draft) {
    LUNA_TRY(load_draft_model(parts, path));
    speculation.draft_model = &draft_model->compiled();
  }
  group_options = model_options(settings, path, n_draft_rows(settings, speculation));
  if (draft_model) group_options.n_lanes = one_step_in_flight(settings);
  if (can_slice(settings, parts)) {
    group_options.n_slice_peers = static_cast<std::uint32_t>(parts.groups.size()) - 1;
    slice_transport = parts.slices->transport;
  } else {
    parts.slices.reset();
  }
  quants = parts.quants;
  LUNA_TRY(load_groups(parts));
  if (slice_transport) LUNA_TRY(link_slices());
  std::vector<const model::CompiledModel*> compiled;
  for (const auto& [id, model] : models)
    compiled.push_back(&model->compiled());
  scheduler = std::move(parts.scheduler);
  fallbacks = std::move(parts.fallbacks);
  return start_engine(settings, parts, speculation, std::move(compiled));
}

Result<void> ServedModel::Impl::start_engine(const config::ModelSettings& settings,
                                             ModelParts& parts,
                                             const engine::SpeculationOptions& speculation,
                                             std::vector<const model::CompiledModel*> compiled) {
  engine::EngineOptions engine_options;
  engine_options.n_waiting_max = parts.n_requests_max;
  engine_options.recovery_timeout = parts.recovery_timeout;
  engine_options.step_tokens_max = settings.step_tokens_max;
  engine_options.speculation = speculation;
  engine_options.kv_reserve_percent = settings.kv_reserve_percent;
  engine_options.prefix_cache = settings.prefix_cache;
  engine_options.output_check.percent = settings.checked_percent;
  engine_options.prefix_cache_per_tenant =
      settings.prefix_cache_scope == config::PrefixCacheScope::tenant;
  LUNA_TRY(engine_options.prefix_hash_seed, random_seed());
  if (parts.plan_record) {
    LUNA_TRY(plan_recorder, engine::PlanRecorder::open(*std::move(parts.plan_record)));
    engine_options.plan_recorder = plan_recorder.get();
  }
  engine_options.plan_budget = parts.plan_budget;
  engine_options.n_plan_faults_max = parts.n_plan_faults_max;
  engine_options.n_groups_max =
      std::max(parts.n_groups_max, static_cast<std::uint32_t>(compiled.size()));
  engine::EngineParts engine_parts{
      std::move(compiled), scheduler, *tokenizer, *parts.clock, stats, set_wake, parts.wake};
  engine_parts.fallbacks = fallbacks;
  engine_parts.on_group_gone = parts.on_group_gone;
  engine_parts.group_context = parts.group_context;
  if (parts.turn) {
    engine_parts.turns = parts.turn->turns;
    engine_parts.turns_member = parts.turn->member;
  }
  LUNA_TRY(engine, engine::Engine::create(engine_parts, engine_options));
  runner = std::make_unique<pipeline::EngineRunner>(*engine);
  engine->start();
  if (settings.checked_percent > 0)
    output_check.emplace(kCheckPeriod, [this] { engine->check_outputs(); });
  return {};
}

Result<model::ModelOptions> model_options(const config::ModelSettings& settings,
                                          const config::SpeculationSettings& speculation) {
  LUNA_TRY(const std::filesystem::path path, path_of(settings));
  return model_options(
      settings, path, n_draft_rows(settings, speculation_options(settings, speculation)));
}

ServedModel::ServedModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServedModel::~ServedModel() {
  stop();
}

Result<std::unique_ptr<ServedModel>> ServedModel::load(const config::ModelSettings& settings,
                                                       ModelParts parts) {
  auto impl = std::make_unique<Impl>();
  impl->name = settings.name;
  LUNA_TRY(const std::filesystem::path path, path_of(settings));
  LUNA_TRY(impl->load(settings, std::move(parts), path));
  return std::unique_ptr<ServedModel>(new ServedModel(std::move(impl)));
}

pipeline::PipelineModel ServedModel::pipeline_model() const {
  pipeline::PipelineModel view;
  view.name = impl_->name;
  view.runner = impl_->runner.get();
  view.tokenizer = &*impl_->tokenizer;
  view.chat = impl_->renderer.get();
  view.context_tokens_max = impl_->context_tokens_max;
  return view;
}

const telemetry::EngineStats& ServedModel::stats() const {
  return impl_->stats;
}

const model::MemoryPlan& ServedModel::memory() const {
  return impl_->memory;
}

Result<engine::GroupId> ServedModel::add_group(const std::vector<model::Device*>& devices,
                                               const GroupLinks& links,
                                               std::uint32_t n_kv_blocks_min) {
  LUNA_TRY(auto model, impl_->load_group(devices, links));
  if (const std::uint32_t n = model->compiled().n_kv_blocks; n < n_kv_blocks_min) {
    return Error{Code::exhausted,
                 "room for " + std::to_string(n) + " KV blocks, " +
                     std::to_string(n_kv_blocks_min) + " are needed"};
  }
  const bool is_linked = impl_->slice_links && links.slices.has_value();
  if (is_linked) impl_->link_late(*model);
  const auto id = impl_->engine->add_group(model->compiled());
  if (!id) {
    if (is_linked) impl_->slice_links->remove(*model);
    return id.error();
  }
  impl_->models.emplace(*id, std::move(model));
  return *id;
}

std::optional<std::string> ServedModel::slice_transport() const {
  return impl_->slice_transport;
}

bool ServedModel::has_slice_room() const {
  return !impl_->slice_links || impl_->slice_links->has_room();
}

Result<void> ServedModel::survey(const std::vector<model::Device*>& devices,
                                 const std::optional<model::Collective>& collective) const {
  return model::Model::survey_devices(impl_->group_options, {impl_->quants, devices, collective});
}

std::uint32_t ServedModel::n_kv_blocks(engine::GroupId id) const {
  const auto found = impl_->models.find(id);
  return found == impl_->models.end() ? 0 : found->second->compiled().n_kv_blocks;
}

void ServedModel::retire_group(engine::GroupId id, engine::RetireMode mode) {
  impl_->engine->retire_group(id, mode);
}

void ServedModel::relieve_group(engine::GroupId id) {
  impl_->engine->relieve_group(id);
}

void ServedModel::drop_prefix_cache() {
  impl_->engine->drop_prefix_cache();
}

void ServedModel::drop_group(engine::GroupId id) {
  const auto found = impl_->models.find(id);
  if (found == impl_->models.end()) return;
  if (impl_->slice_links) impl_->slice_links->remove(*found->second);
  impl_->models.erase(found);
}

void ServedModel::stop() {
  if (impl_->output_check) impl_->output_check->stop();
  if (impl_->engine) impl_->engine->stop();
}

}  // namespace luna::app
