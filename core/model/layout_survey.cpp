#include "core/model/layout_survey.hpp"

#include "core/base/log.hpp"
#include "core/model/memory_plan.hpp"
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

class Surveyor {
 public:
  Surveyor(const SurveySubject& subject, const SpeedOptions& options)
      : subject_(subject),
        options_(options),
        config_(*subject.config),
        n_devices_(subject.devices.size()) {}

  Result<LayoutSurvey> run() {
    std::vector<std::string> names = probe_tensors(config_);
    if (config_.tied_head) names.emplace_back(kEmbeddingName);
    LUNA_TRY(subject_.file->open_tensors(names));
    source_ = std::make_unique<WeightSource>(*subject_.file, subject_.quants);
    file_bytes_ = weigh_model(config_, *subject_.file);
    for (std::size_t d = 0; d < n_devices_; ++d)
      LUNA_TRY(add_device(d));
    return std::move(survey_);
  }

 private:
  Result<void> add_device(std::size_t d) {
    const Device& device = *subject_.devices[d];
    LUNA_TRY(const DeviceSpeed speed, measure(device));
    LUNA_TRY(const ShardDraft draft, one_layer(d));
    std::uint64_t message_bytes = 0;
    if (d > 0) {
      message_bytes = std::uint64_t{subject_.program.limits.n_rows_max} * config_.hidden_size *
                      sizeof(float) * std::max(2U, subject_.program.n_lanes);
    }
    LUNA_TRY(const ShardMemory memory,
             measure_shard(config_, draft, subject_.program, message_bytes));
    LUNA_TRY(const std::uint64_t layer_bytes, weigh(device, draft.weights, "blk."));
    const std::uint64_t kv_token_bytes = memory.kv_block / subject_.program.kv_block_tokens;
    if (d == 0) {
      LUNA_TRY(describe_model(device, draft, layer_bytes, kv_token_bytes));
    }
    survey_.devices.push_back({.speed = speed,
                               .memory_bytes = device.memory_bytes_left(),
                               .fixed_bytes = memory.scratch + message_bytes});

    PlaceTerms& place = survey_.places.emplace_back();
    place.memory_bytes = device.memory_bytes_left();
    place.fixed_bytes = memory.fixed() - layer_bytes;
    for (const std::uint64_t bytes : file_bytes_.layers)
      place.layer_bytes.push_back(static_cast<std::uint64_t>(
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
    const ProbeSubject subject{&config_, source_.get(), subject_.program};
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

  /// The model's first layer alone, at a device's place in the row.
  Result<ShardDraft> one_layer(std::size_t d) {
    ShardDraft draft;
    draft.device = subject_.devices[d];
    draft.spec.layers = {0, 1};
    draft.spec.has_embedding = d == 0;
    draft.spec.has_head = d + 1 == n_devices_;
    if (!draft.spec.has_embedding) draft.spec.recv_from = static_cast<std::uint32_t>(d - 1);
    if (!draft.spec.has_head) draft.spec.send_to = static_cast<std::uint32_t>(d + 1);
    for (const WeightPart& part : shard_weight_parts(config_, draft.spec)) {
      LUNA_TRY(ShardWeight weight, source_->describe(part.name));
      draft.weights.push_back(std::move(weight));
    }
    LUNA_TRY(draft.program, build_program(config_, draft.spec, draft.weights, subject_.program));
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
      LUNA_TRY(
          to_result(device.backend().weight_bytes(
                        device.handle(), &weight.desc, subject_.program.numerics, &bytes, &err),
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
    const std::uint64_t n_out = subject_.program.limits.n_out_rows_max;
    model.output_bytes = n_out * (config_.vocab_size * sizeof(float) +
                                  (subject_.program.n_candidates + 1) * sizeof(Candidate));
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
