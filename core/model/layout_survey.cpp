#include "core/model/layout_survey.hpp"

#include "core/base/log.hpp"
#include "core/model/memory_plan.hpp"
#include "core/model/slice_links.hpp"
#include "core/model/speed_probe.hpp"
#include "core/model/weight_names.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <map>
#include <numeric>

namespace luna::model {
namespace {

// A batch at which a device computes rather than waits for memory, and which a few users fill.
constexpr double kUsualRows = 32.0;

/// A backend's own numbers are not trusted to add up.
std::uint64_t less(std::uint64_t bytes, std::uint64_t part) {
  return bytes - std::min(bytes, part);
}

class Surveyor {
 public:
  Surveyor(const SurveySubject& subject, const SpeedOptions& options)
      : subject_(subject),
        options_(options),
        config_(*subject.config),
        n_devices_(subject.devices.size()),
        part_program_(subject.program) {
    part_program_.n_slice_peers = 0;  // parts of one model have none
  }

  Result<LayoutSurvey> run() {
    std::vector<std::string> names = shard_weight_names(config_, copy_of(n_layers_weighed()));
    if (config_.tied_head) names.emplace_back(kEmbeddingName);
    LUNA_TRY(subject_.file->open_tensors(names));
    source_ = std::make_unique<WeightSource>(*subject_.file, config_, subject_.quants);
    file_bytes_ = weigh_model(config_, *subject_.file);
    for (std::size_t d = 0; d < n_devices_; ++d)
      LUNA_TRY(add_device(d));
    return std::move(survey_);
  }

 private:
  Result<void> add_device(std::size_t d) {
    const Device& device = *subject_.devices[d];
    LUNA_TRY(const DeviceSpeed speed, measure(device));
    LUNA_TRY(const ShardDraft draft, make_draft(d, spec_of_part(d), part_program_));
    std::uint64_t message_bytes = 0;
    if (d > 0) {
      message_bytes = std::uint64_t{part_program_.limits.n_rows_max} * config_.hidden_size *
                      sizeof(float) * std::max(2U, part_program_.n_lanes);
    }
    LUNA_TRY(const ShardMemory memory, measure_shard(config_, draft, part_program_, message_bytes));
    LUNA_TRY(const std::uint64_t layer_bytes, weigh(device, draft.weights, "blk."));
    const std::uint64_t kv_token_bytes = memory.kv_block / part_program_.kv_block_tokens;
    if (d == 0) {
      LUNA_TRY(describe_model(device, draft, layer_bytes, kv_token_bytes));
    }
    LUNA_TRY(const CopyNeeds copy, measure_copy(d));
    survey_.devices.push_back(
        {.speed = speed,
         .memory_bytes = device.memory_bytes_left(),
         .part_fixed_bytes = less(memory.scratch, copy.layer_bytes) + message_bytes,
         .copy_fixed_bytes = copy.fixed_bytes,
         .layer_fixed_bytes = copy.layer_bytes,
         .slice_bytes = copy.slice_bytes});

    PlaceTerms& place = survey_.places.emplace_back();
    place.memory_bytes = device.memory_bytes_left();
    place.fixed_bytes = less(memory.fixed(), layer_bytes + copy.layer_bytes);
    for (const std::uint64_t bytes : file_bytes_.layers)
      place.layer_bytes.push_back(
          copy.layer_bytes +
          static_cast<std::uint64_t>(
              static_cast<double>(layer_bytes) * static_cast<double>(bytes) /
              static_cast<double>(std::max<std::uint64_t>(1, file_bytes_.layers.front()))));
    place.kv_token_bytes = kv_token_bytes;
    const UsualStep step = usual_step(options_.load);
    place.layer_ns = speed.layer.at(step.n_rows);
    place.fixed_ns = speed.step_ns;
    if (d == 0) place.fixed_ns += speed.embedding_row_ns * step.n_rows;
    if (d + 1 == n_devices_) place.fixed_ns += speed.head.at(step.n_out_rows);
    return {};
  }

  /// Equal devices are as fast as each other.
  Result<DeviceSpeed> measure(const Device& device) {
    const ProbeSubject subject{&config_, source_.get(), part_program_};
    LUNA_TRY(const std::string key, probe_key(device, subject));
    if (const auto known = speeds_.find(key); known != speeds_.end()) return known->second;
    LUNA_TRY(DeviceSpeed speed, probe_speed(device, subject, options_.cache));
    logger("model")->info(
        "device speed device={} layer_us_1_32_256_rows={:.0f},{:.0f},{:.0f} head_us_1_32_rows="
        "{:.0f},{:.0f} kv_token_ns={:.1f} in_prompts={:.1f}",
        device.name(),
        speed.layer.at(1) / 1e3,
        speed.layer.at(32) / 1e3,
        speed.layer.at(256) / 1e3,
        speed.head.at(1) / 1e3,
        speed.head.at(32) / 1e3,
        speed.kv_token_ns,
        speed.prompt_kv_token_ns);
    return speeds_.emplace(key, std::move(speed)).first->second;
  }

  /// Layers that tell what one more takes.
  [[nodiscard]] std::uint32_t n_layers_weighed() const { return std::min(2U, config_.n_layers); }
  /// The model's first layers with embedding and head.
  static ShardSpec copy_of(std::uint32_t n_layers) {
    ShardSpec spec;
    spec.layers = {0, n_layers};
    spec.has_embedding = true;
    spec.has_head = true;
    return spec;
  }

  /// Beside weights, outputs and KV.
  struct CopyNeeds {
    std::uint64_t fixed_bytes = 0;
    std::uint64_t layer_bytes = 0;  ///< more for each layer
    std::uint64_t slice_bytes = 0;
  };
  /// Of a whole copy on one device.
  Result<CopyNeeds> measure_copy(std::size_t d) {
    ProgramOptions program = part_program_;
    program.n_lanes = 1;
    const std::uint32_t n_layers = n_layers_weighed();
    LUNA_TRY(const std::uint64_t one, scratch_of(d, copy_of(1), program));
    LUNA_TRY(const std::uint64_t more, scratch_of(d, copy_of(n_layers), program));
    CopyNeeds needs;
    if (n_layers > 1 && more > one) needs.layer_bytes = (more - one) / (n_layers - 1);
    needs.fixed_bytes = less(one, needs.layer_bytes);
    program.n_slice_peers = subject_.program.n_slice_peers;
    if (program.n_slice_peers == 0) return needs;
    LUNA_TRY(const ShardDraft sliced, make_draft(d, copy_of(1), program));
    LUNA_TRY(const SlicePlan slices,
             plan_slices(
                 *subject_.devices[d], subject_.collective, sliced.program, program.n_slice_peers));
    LUNA_TRY(const std::uint64_t with_slices, scratch_of(d, copy_of(1), program));
    needs.slice_bytes = less(with_slices + slices.bytes, one);
    return needs;
  }
  Result<std::uint64_t> scratch_of(std::size_t d,
                                   const ShardSpec& spec,
                                   const ProgramOptions& program) {
    LUNA_TRY(const ShardDraft draft, make_draft(d, spec, program));
    LUNA_TRY(const ShardMemory memory, measure_shard(config_, draft, program, 0));
    return memory.scratch;
  }

  /// The first layer alone, at a device's place in the row.
  [[nodiscard]] ShardSpec spec_of_part(std::size_t d) const {
    ShardSpec spec;
    spec.layers = {0, 1};
    spec.has_embedding = d == 0;
    spec.has_head = d + 1 == n_devices_;
    if (!spec.has_embedding) spec.recv_from = static_cast<std::uint32_t>(d - 1);
    if (!spec.has_head) spec.send_to = static_cast<std::uint32_t>(d + 1);
    return spec;
  }

  Result<ShardDraft> make_draft(std::size_t d,
                                const ShardSpec& spec,
                                const ProgramOptions& program) {
    ShardDraft draft;
    draft.device = subject_.devices[d];
    draft.spec = spec;
    for (const WeightPart& part : shard_weight_parts(config_, spec)) {
      LUNA_TRY(ShardWeight weight, source_->describe(part.name));
      draft.weights.push_back(std::move(weight));
    }
    LUNA_TRY(draft.program, build_program(config_, spec, draft.weights, program));
    return draft;
  }

  /// The packed bytes of the weights whose names begin so.
  Result<std::uint64_t> weigh(const Device& device,
                              std::span<const ShardWeight> weights,
                              std::string_view prefix) const {
    std::uint64_t sum = 0;
    for (const ShardWeight& weight : weights) {
      if (!weight.name.starts_with(prefix)) continue;
      std::uint64_t bytes = 0;
      luna_err err = make_err();
      LUNA_TRY(to_result(device.backend().weight_bytes(
                             device.handle(), &weight.desc, part_program_.numerics, &bytes, &err),
                         err,
                         "device " + device.name() + ": weight " + weight.name));
      sum += bytes;
    }
    return sum;
  }

  Result<void> describe_model(const Device& device,
                              const ShardDraft& draft,
                              std::uint64_t layer_bytes,
                              std::uint64_t kv_token_bytes) {
    LayoutModel& model = survey_.model;
    model.n_layers = config_.n_layers;
    model.n_kv_heads = config_.n_kv_heads;
    model.tied_head = config_.tied_head;
    const double all_layers = static_cast<double>(
        std::accumulate(file_bytes_.layers.begin(), file_bytes_.layers.end(), std::uint64_t{0}));
    const auto first = static_cast<double>(std::max<std::uint64_t>(1, file_bytes_.layers.front()));
    model.layer_bytes = static_cast<std::uint64_t>(static_cast<double>(layer_bytes) * all_layers /
                                                   first / config_.n_layers);
    LUNA_TRY(model.embedding_bytes, weigh(device, draft.weights, kEmbeddingName));
    model.head_bytes = model.embedding_bytes;
    if (!config_.tied_head) {
      LUNA_TRY(ShardWeight head, source_->describe(std::string(kHeadName)));
      LUNA_TRY(model.head_bytes, weigh(device, {&head, 1}, kHeadName));
    }
    const std::uint64_t n_out = part_program_.limits.n_out_rows_max;
    model.output_bytes = n_out * (config_.vocab_size * sizeof(float) +
                                  (part_program_.n_candidates + 1) * sizeof(Candidate));
    model.kv_token_bytes = kv_token_bytes;
    const std::uint64_t query_size = std::uint64_t{config_.n_heads} * config_.head_dim;
    model.gather_row_bytes =
        (query_size + 2 * std::uint64_t{config_.hidden_size} + config_.ffn_size) * sizeof(float);
    model.hidden_row_bytes = std::uint64_t{config_.hidden_size} * sizeof(float);
    return {};
  }

  const SurveySubject& subject_;
  const SpeedOptions& options_;
  const ModelConfig& config_;
  const std::size_t n_devices_;
  ProgramOptions part_program_;
  std::unique_ptr<WeightSource> source_;
  ModelBytes file_bytes_;
  std::map<std::string, DeviceSpeed> speeds_;  // by probe_key()
  LayoutSurvey survey_;
};

}  // namespace

UsualStep usual_step(const ExpectedLoad& load) {
  const double n_rows = double(load.prompt) + load.output;
  const double out_share = n_rows > 0.0 ? load.output / n_rows : 1.0;
  return {kUsualRows, kUsualRows * out_share};
}

Result<LayoutSurvey> survey_layout(const SurveySubject& subject, const SpeedOptions& options) {
  return Surveyor(subject, options).run();
}

}  // namespace luna::model
