#include "core/model/model_loader.hpp"

#include "core/base/log.hpp"
#include "core/base/random_seed.hpp"
#include "core/model/device_row.hpp"
#include "core/model/link_probe.hpp"
#include "core/model/local_shard.hpp"
#include "core/model/model_identity.hpp"
#include "core/model/tensor_program.hpp"
#include "core/model/weight_names.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace luna::model {

namespace {

/// How many devices as these compute at full speed at one time: those of CPUs share the cores, and
/// leave some to others or have too few.
double devices_at_once(std::span<Device* const> devices) {
  constexpr double kUnbounded = 1e9;
  double n_cores = 0.0;
  double n_threads = 0.0;
  double n_cpu_devices = 0.0;
  for (const Device* device : devices) {
    const std::uint32_t n_max = device->info().n_threads_max;
    if (n_max == 0) continue;
    n_cpu_devices += 1.0;
    n_cores = std::max(n_cores, double(n_max));
    n_threads += device->n_threads() != 0 ? device->n_threads() : n_max;
  }
  if (n_threads == 0.0) return kUnbounded;
  return static_cast<double>(devices.size()) - n_cpu_devices + n_cpu_devices * n_cores / n_threads;
}

}  // namespace

/// One load. Everything it makes goes into the Model at once, whose destructor gives it back.
class ModelLoader {
 public:
  ModelLoader(const ModelOptions& options, const ModelResources& resources)
      : options_(options),
        resources_(resources),
        devices_(resources.devices.begin(), resources.devices.end()),
        model_(new Model) {}

  Result<LayoutProblem> describe() {
    LUNA_TRY(ModelFile file, ModelFile::open(options_.path));
    config_ = file.config;
    LUNA_TRY(choose_program());
    LUNA_TRY(check_devices());
    if (has_remote()) {
      return Error{Code::unsupported, "the layout of devices of other processes must be given"};
    }
    LUNA_TRY(const LayoutSurvey survey, survey(*file.file));
    LayoutProblem problem;
    problem.model = survey.model;
    problem.devices = survey.devices;
    problem.bounds.n_sequences_max = program_.limits.n_seqs_max;
    problem.bounds.step_tokens_max = program_.limits.n_rows_max;
    problem.bounds.kv_block_tokens = program_.kv_block_tokens;
    if (options_.kv_blocks_max)
      problem.bounds.kv_tokens_max =
          std::uint64_t{*options_.kv_blocks_max} * program_.kv_block_tokens;
    problem.bounds.n_devices_at_once = devices_at_once(devices_);
    for (const Device* device : devices_)
      problem.bounds.n_cores = std::max(problem.bounds.n_cores, device->info().n_threads_max);
    problem.load = options_.speed.load;
    if (n_devices() < 2) return problem;
    LUNA_TRY(problem.link, measure_link(*resources_.collective));
    if (const auto ranges = place_by_speed(survey.places, place_goals())) {
      for (const LayerRange& range : *ranges)
        problem.pipeline_layers.push_back(range.count);
    }
    return problem;
  }

  Result<std::unique_ptr<Model>> load() {
    LUNA_TRY(ModelFile file, ModelFile::open(options_.path));
    config_ = file.config;
    LUNA_TRY(choose_program());
    LUNA_TRY(check_devices());
    note_phase("opened");
    LUNA_TRY(place(*file.file));
    note_phase("placed");
    LUNA_TRY(plan_shards(std::move(file)));
    LUNA_TRY(take_memory());
    note_phase("planned");
    LUNA_TRY(pack());
    note_phase("packed");
    LUNA_TRY(bind());
    note_phase("bound");
    publish();
    logger("model")->info("load model={} took_ms:{}", options_.name, phases_);
    return std::move(model_);
  }

  /// Asks devices of other processes what loading will ask them.
  Result<void> survey_remote() {
    LUNA_TRY(ModelFile file, ModelFile::open(options_.path));
    config_ = file.config;
    LUNA_TRY(choose_program());
    LUNA_TRY(check_devices());
    if (!has_remote() || options_.layers || options_.is_tensor_split) return {};
    LUNA_TRY(const std::vector<SurveyAnswer> row, ask_devices(*file.file));
    return {};
  }

  /// Whether layers were placed by what devices of other processes say that parts take.
  [[nodiscard]] bool is_by_answers() const { return is_by_answers_; }

 private:
  /// How long loading took up to here, for the log.
  void note_phase(std::string_view phase) {
    const auto now = std::chrono::steady_clock::now();
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now - phase_began_);
    phase_began_ = now;
    phases_ += " " + std::string(phase) + "=" + std::to_string(took.count());
  }

  Result<void> choose_program() {
    program_.numerics = options_.numerics;
    program_.kv_dtype = options_.kv_dtype;
    program_.kv_block_tokens = options_.kv_block_tokens;
    program_.prunes = options_.prune_keep_percent < 100;
    program_.n_candidates = std::min(options_.n_candidates, config_.vocab_size);
    program_.n_lanes = std::min(options_.n_lanes != 0 ? options_.n_lanes : n_steps(), kLanesMax);
    if (!program_.prunes && !options_.is_tensor_split)
      program_.n_slice_peers = options_.n_slice_peers;
    program_.limits = options_.limits;
    if (program_.limits.n_positions_max == 0)
      program_.limits.n_positions_max = config_.context_length;
    if (program_.limits.n_positions_max > config_.context_length) {
      return Error{Code::invalid_argument,
                   "sequences of " + std::to_string(program_.limits.n_positions_max) +
                       " tokens: the model was trained for at most " +
                       std::to_string(config_.context_length)};
    }
    return {};
  }

  [[nodiscard]] std::uint32_t n_devices() const {
    return static_cast<std::uint32_t>(devices_.size());
  }
  /// As many as devices work on: those of a tensor split work on one together.
  [[nodiscard]] std::uint32_t n_steps() const { return options_.is_tensor_split ? 1 : n_devices(); }

  [[nodiscard]] Result<void> check_devices() const {
    if (devices_.empty()) return Error{Code::invalid_argument, "no device is given"};
    if (devices_.size() > 1 && !resources_.collective) {
      return Error{Code::invalid_argument,
                   std::to_string(devices_.size()) +
                       " devices need a transport that offers " LUNA_EXT_COLLECTIVE};
    }
    for (const Device* device : devices_) {
      const luna_device_info& info = device->info();
      const std::string where =
          "device " + device->name() + " (backend " + device->backend_name() + "): ";
      if (!has_bit(info.numerics, options_.numerics)) {
        return Error{Code::unsupported,
                     where + "numerics " + numerics_name(options_.numerics) +
                         " is not built; it computes " + names(info.numerics, numerics_name)};
      }
      if (!has_bit(info.kv_dtypes, options_.kv_dtype)) {
        return Error{Code::unsupported,
                     where + "a KV cache of " + dtype_name(options_.kv_dtype) +
                         " is not built; it keeps " + names(info.kv_dtypes, dtype_name)};
      }
    }
    return {};
  }

  static bool has_bit(std::uint32_t bits, std::uint32_t number) {
    return number < 32 && (bits >> number & 1u) != 0;
  }
  static std::string names(std::uint32_t bits, std::string (*name)(std::uint32_t)) {
    std::string text;
    for (std::uint32_t number = 0; number < 32; ++number)
      if (has_bit(bits, number)) text += (text.empty() ? "" : ", ") + name(number);
    return text.empty() ? "none" : text;
  }

  Result<void> place(WeightFile& file) {
    if (options_.is_tensor_split && n_devices() > 1) return place_tensor_split();
    if (options_.layers) {
      LUNA_TRY(check_layers(*options_.layers, config_.n_layers, n_devices()));
      model_->layers_ = *options_.layers;
      return {};
    }
    std::vector<SurveyAnswer> row(n_devices(), {{0, config_.n_layers}, {}});
    if (has_remote()) {
      LUNA_TRY(row, ask_devices(file));
    }
    if (is_timed() && has_all_layers(row) && place_by_measured_speed(file, row)) return {};
    return place_by_bytes(file, row);
  }

  /// Whether time has a say in where layers go.
  [[nodiscard]] bool is_timed() const { return options_.speed.probe && n_devices() > 1; }

  [[nodiscard]] bool has_all_layers(const std::vector<SurveyAnswer>& row) const {
    const LayerRange all{0, config_.n_layers};
    return std::ranges::all_of(row,
                               [&](const SurveyAnswer& device) { return device.at_hand == all; });
  }

  Result<void> place_tensor_split() {
    if (options_.layers) {
      return Error{Code::invalid_argument,
                   "layers are given for a tensor split: each device has a part of all"};
    }
    if (program_.prunes) {
      return Error{Code::unsupported,
                   "a tensor split with prune_keep_percent below 100: what is pruned depends on "
                   "the heads of all devices"};
    }
    if (has_remote()) {
      return Error{Code::unsupported,
                   "a tensor split over processes is not built: its devices meet four times a "
                   "layer"};
    }
    LUNA_TRY(const auto specs, make_tensor_shards(config_, n_devices()));
    model_->layers_.assign(specs.size(), {0, config_.n_layers});
    order_.is_tensor_split = true;
    return {};
  }

  /// Returns  whether it could be done; if not, the log says why
  bool place_by_measured_speed(WeightFile& file, const std::vector<SurveyAnswer>& row) {
    const auto placed = measure_and_place(file, row);
    if (placed) {
      model_->layers_ = *placed;
      is_by_answers_ = has_remote();
      return true;
    }
    logger("model")->warn("layers are balanced by bytes, not by speed model={} reason=\"{}\"",
                          options_.name,
                          placed.error().message());
    return false;
  }

  Result<std::vector<LayerRange>> measure_and_place(WeightFile& file,
                                                    const std::vector<SurveyAnswer>& row) const {
    if (has_remote()) {
      LUNA_TRY(const std::vector<PlaceTerms> places,
               row_terms(devices_, row, config_.n_layers, usual_step(options_.speed.load)));
      return place_by_speed(places, place_goals());
    }
    LUNA_TRY(const LayoutSurvey survey, survey(file));
    return place_by_speed(survey.places, place_goals());
  }

  Result<LayoutSurvey> survey(WeightFile& file) const {
    const SurveySubject subject{
        &config_, &file, resources_.quants, program_, devices_, resources_.collective};
    return survey_layout(subject, options_.speed);
  }

  [[nodiscard]] PlaceGoals place_goals() const {
    PlaceGoals goals;
    goals.kv_tokens_min = std::uint64_t{2} * program_.kv_block_tokens;
    goals.kv_tokens_wanted =
        std::uint64_t{program_.limits.n_seqs_max} * program_.limits.n_positions_max;
    if (options_.kv_blocks_max) {
      goals.kv_tokens_wanted =
          std::min(goals.kv_tokens_wanted,
                   std::uint64_t{*options_.kv_blocks_max} * program_.kv_block_tokens);
    }
    return goals;
  }

  Result<void> place_by_bytes(const WeightFile& file, const std::vector<SurveyAnswer>& row) {
    ModelBytes bytes = weigh_model(config_, file);
    // A tied head costs its device a copy, unless that device has the embedding anyway.
    if (config_.tied_head && devices_.size() == 1) bytes.head = 0;
    std::vector<LayerRange> at_hand;
    for (const SurveyAnswer& device : row)
      at_hand.push_back(device.at_hand);
    // Devices with some layers only stand where these do, whatever their names.
    const std::vector<Device*> given = devices_;
    std::vector<std::uint64_t> budgets;
    std::vector<LayerRange> ranges;
    for (const std::size_t device : order_by_layers(at_hand, config_.n_layers)) {
      devices_[ranges.size()] = given[device];
      budgets.push_back(given[device]->memory_bytes_left());
      ranges.push_back(at_hand[device]);
    }
    LUNA_TRY(model_->layers_, balance_layers(bytes, budgets, ranges));
    return {};
  }

  /// One of another process may reach some shards only.
  Result<std::vector<SurveyAnswer>> ask_devices(WeightFile& file) {
    LUNA_TRY(order_.identity, model_identity(options_.path));
    SurveyOrder order{options_.source, order_.identity, program_, is_timed()};
    order.program.n_slice_peers = 0;  // parts of one model have none
    return survey_row(
        {devices_, &config_, &file, resources_.quants, std::move(order), options_.speed.cache});
  }

  [[nodiscard]] bool has_remote() const { return model::has_remote(devices_); }

  /// Other processes plan their shards at the same time; those of this one share its file.
  Result<void> plan_shards(ModelFile file) {
    order_.model = options_.name;
    order_.source = options_.source;
    order_.program = program_;
    order_.vocab_size = config_.vocab_size;
    order_.layers = model_->layers_;
    if (devices_.size() > 1) order_.transport = resources_.collective->transport;
    if (program_.n_slice_peers > 0) {
      slices_ = resources_.slices ? resources_.slices : resources_.collective;
      if (!slices_) return Error{Code::invalid_argument, "slices need a transport between copies"};
      order_.slice_transport = slices_->transport;
    }
    if (has_remote() && order_.identity.empty()) {
      LUNA_TRY(order_.identity, model_identity(options_.path));
    }
    const auto shared = std::make_shared<const ModelFile>(std::move(file));
    model_->holdings_.resize(devices_.size());
    return for_each_rank(devices_, [&](std::size_t rank) -> Result<void> {
      Device* device = devices_[rank];
      ShardOrder own = order_;
      own.rank = static_cast<std::uint32_t>(rank);
      std::unique_ptr<DeviceShard>& shard = model_->holdings_[rank].shard;
      if (device->planner() != nullptr) {
        LUNA_TRY(shard, device->planner()->plan(own));
        return {};
      }
      LocalShardParts parts{device, shared, resources_.quants, resources_.collective, slices_};
      parts.n_load_threads = options_.n_load_threads;
      LUNA_TRY(shard, LocalShard::plan(own, std::move(parts)));
      return {};
    });
  }

  Result<void> take_memory() {
    std::vector<PlannedShard> planned;
    for (std::size_t rank = 0; rank < model_->holdings_.size(); ++rank)
      planned.push_back({devices_[rank], model_->holdings_[rank].shard->memory()});
    LUNA_TRY(model_->memory_, plan_memory(planned, options_.kv_blocks_max));
    for (std::size_t rank = 0; rank < planned.size(); ++rank) {
      const ShardMemory& memory = model_->memory_.shards[rank];
      Model::Holding& holding = model_->holdings_[rank];
      holding.device = devices_[rank];
      holding.device->take_memory(memory.total());
      holding.memory_bytes = memory.total();
      logger("model")->info(
          "shard placed model={} device={} layers={}..{} weights={} scratch={} "
          "outputs={} messages={} kv={} kv_blocks={}",
          options_.name,
          holding.device->name(),
          model_->layers_[rank].first,
          model_->layers_[rank].end(),
          bytes_text(memory.weights),
          bytes_text(memory.scratch),
          bytes_text(memory.logits + memory.candidates),
          bytes_text(memory.messages),
          bytes_text(memory.kv),
          model_->memory_.n_kv_blocks);
    }
    return {};
  }

  Result<void> pack() {
    return for_each_rank(devices_, [&](std::size_t rank) {
      LoadProgress progress;
      const bool is_here = model_->holdings_[rank].device->planner() == nullptr;
      if (options_.progress && is_here)
        progress = [this, rank](double share) { options_.progress(share_before(rank, share)); };
      return model_->holdings_[rank].shard->pack(progress);
    });
  }

  /// The share of all weights of this process that is packed when `share` of a rank's is.
  [[nodiscard]] double share_before(std::size_t rank, double share) const {
    double done = 0.0;
    double total = 0.0;
    for (std::size_t i = 0; i < model_->holdings_.size(); ++i) {
      if (model_->holdings_[i].device->planner() != nullptr) continue;
      const auto weights = static_cast<double>(model_->memory_.shards[i].weights);
      total += weights;
      if (i < rank) done += weights;
      if (i == rank) done += share * weights;
    }
    return total > 0.0 ? done / total : 1.0;
  }

  /// Shards of several processes meet by the group's name, which nobody uses again.
  Result<void> bind() {
    LUNA_TRY(const std::uint64_t number, random_seed());
    const std::string group = "model/" + options_.name + "/" + std::to_string(number);
    std::vector<std::string> addresses;
    if (has_remote()) {
      for (const Model::Holding& holding : model_->holdings_)
        addresses.push_back(holding.shard->address());
    }
    return for_each_rank(devices_, [&](std::size_t rank) {
      LinkTerms own = link_terms(order_, config_);
      own.rank = static_cast<std::uint32_t>(rank);
      own.group = group;
      own.addresses = addresses;
      return model_->holdings_[rank].shard->bind(model_->memory_.n_kv_blocks, own);
    });
  }

  void publish() {
    CompiledModel& compiled = model_->compiled_;
    compiled.name = options_.name;
    compiled.config = std::move(config_);
    compiled.limits = program_.limits;
    compiled.kv_block_tokens = program_.kv_block_tokens;
    compiled.prune_keep_percent = options_.prune_keep_percent;
    compiled.n_kv_blocks = model_->memory_.n_kv_blocks;
    compiled.n_candidates = program_.n_candidates;
    for (const ShardMemory& memory : model_->memory_.shards)
      compiled.kv_block_bytes += memory.kv_block;
    for (const Model::Holding& holding : model_->holdings_)
      compiled.shards.push_back(holding.shard->shard());
    const auto outputs = model_->holdings_.back().shard->outputs();
    compiled.outputs.assign(outputs.begin(), outputs.end());
    if (model_->holdings_.size() > 1) {
      compiled.abort_comms = [](void* model) { static_cast<Model*>(model)->abort_steps(); };
      compiled.abort_context = model_.get();
    }
    compiled.has_lost_device = [](const void* model) {
      return static_cast<const Model*>(model)->is_lost();
    };
    compiled.device_context = model_.get();
    if (options_.progress) options_.progress(1.0);
  }

  const ModelOptions& options_;
  const ModelResources& resources_;
  std::vector<Device*> devices_;  // in layer order
  std::unique_ptr<Model> model_;
  ModelConfig config_;
  ProgramOptions program_;
  ShardOrder order_;  // of every rank
  bool is_by_answers_ = false;
  std::chrono::steady_clock::time_point phase_began_ = std::chrono::steady_clock::now();
  std::string phases_;
  std::optional<Collective> slices_;
};

namespace {

Result<std::unique_ptr<Model>> load_once(const ModelOptions& options,
                                         const ModelResources& resources,
                                         bool* is_by_answers) {
  ModelLoader loader(options, resources);
  auto model = loader.load();
  *is_by_answers = loader.is_by_answers();
  return model;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::load(const ModelOptions& options,
                                           const ModelResources& resources) {
  bool is_by_answers = false;
  auto model = load_once(options, resources, &is_by_answers);
  if (!model && is_by_answers && model.error().code() == Code::exhausted) {
    // A part takes more than what its first layer and the arithmetic of messages said.
    logger("model")->info("layers are balanced by bytes model={} reason=\"{}\"",
                          options.name,
                          model.error().message());
    ModelOptions by_bytes = options;
    by_bytes.speed.probe = false;
    model = load_once(by_bytes, resources, &is_by_answers);
  }
  if (!model) return model.error().in("model " + options.name);
  return model;
}

Result<void> Model::survey_devices(const ModelOptions& options, const ModelResources& resources) {
  const auto surveyed = ModelLoader(options, resources).survey_remote();
  if (!surveyed) return surveyed.error().in("model " + options.name);
  return {};
}

Result<LayoutProblem> Model::describe_layout(const ModelOptions& options,
                                             const ModelResources& resources) {
  auto problem = ModelLoader(options, resources).describe();
  if (!problem) return problem.error().in("model " + options.name);
  return problem;
}

Model::~Model() {
  for (Holding& holding : holdings_) {
    holding.shard.reset();
    if (holding.device != nullptr) holding.device->give_memory_back(holding.memory_bytes);
  }
}

std::vector<DeviceShard*> Model::shards() const {
  std::vector<DeviceShard*> shards;
  for (const Holding& holding : holdings_)
    shards.push_back(holding.shard.get());
  return shards;
}

bool Model::is_lost() const {
  return std::ranges::any_of(holdings_,
                             [](const Holding& holding) { return holding.shard->is_lost(); });
}

void Model::abort_steps() {
  for (const Holding& holding : holdings_)
    holding.shard->abort();
}

}  // namespace luna::model
