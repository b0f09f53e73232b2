#include "core/model/layout_survey.hpp"

#include "core/model/slice_ends.hpp"
#include "core/model/weight_names.hpp"

#include <algorithm>
#include <numeric>

namespace luna::model {
namespace {

/// That its threads are bound to; 0 where it computes elsewhere.
std::uint32_t cores_of(const Device& device) {
  const std::uint32_t n_max = device.info().n_threads_max;
  return device.n_threads() != 0 ? std::min(device.n_threads(), n_max) : n_max;
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
    LUNA_TRY(subject_.file->open_tensors(survey_tensors(config_)));
    source_ = std::make_unique<WeightSource>(*subject_.file, config_, subject_.quants);
    file_bytes_ = weigh_model(config_, *subject_.file);
    for (std::size_t d = 0; d < n_devices_; ++d)
      LUNA_TRY(add_device(d));
    return std::move(survey_);
  }

 private:
  Result<void> add_device(std::size_t d) {
    Device& device = *subject_.devices[d];
    const RowPlace place = row_place(d, n_devices_);
    const PartScale scale(config_, *source_, device);
    LUNA_TRY(const DeviceSurvey surveyed,
             survey_device(
                 {&config_, source_.get(), &file_bytes_, part_program_, &device, options_.cache},
                 speeds_));
    survey_.places.push_back(
        place_terms(surveyed, place, device.memory_bytes_left(), usual_step(options_.load)));

    LUNA_TRY(const ShardDraft draft, scale.draft(PartScale::part_at(place), part_program_));
    if (d == 0) LUNA_TRY(describe_model(scale, draft, surveyed.kv_token_bytes));
    LUNA_TRY(const PartScale::CopyScratch copy, scale.copy_scratch(part_program_));
    LUNA_TRY(const std::uint64_t scratch, scale.scratch(PartScale::part_at(place), part_program_));
    LUNA_TRY(const std::uint64_t slice_bytes, measure_slices(scale, device));
    survey_.devices.push_back({.speed = surveyed.speed,
                               .memory_bytes = device.memory_bytes_left(),
                               .part_fixed_bytes = bytes_without(scratch, copy.layer_bytes) +
                                                   message_bytes_at(place, config_, part_program_),
                               .copy_fixed_bytes = copy.fixed_bytes,
                               .layer_fixed_bytes = copy.layer_bytes,
                               .slice_bytes = slice_bytes,
                               .first_core = device.first_cpu(),
                               .n_cores = cores_of(device)});
    return {};
  }

  /// What slices of other copies take beside a copy.
  Result<std::uint64_t> measure_slices(const PartScale& scale, const Device& device) const {
    ProgramOptions program = part_program_;
    program.n_lanes = 1;
    LUNA_TRY(const std::uint64_t without, scale.scratch(PartScale::copy_of(1), program));
    program.n_slice_peers = subject_.program.n_slice_peers;
    if (program.n_slice_peers == 0) return std::uint64_t{0};
    LUNA_TRY(const ShardDraft sliced, scale.draft(PartScale::copy_of(1), program));
    LUNA_TRY(const SlicePlan slices,
             plan_slices(device, subject_.collective, sliced.program, program.n_slice_peers));
    LUNA_TRY(const std::uint64_t with, scale.scratch(PartScale::copy_of(1), program));
    return bytes_without(with + slices.bytes, without);
  }

  /// draft  of the first device's part
  Result<void> describe_model(const PartScale& scale,
                              const ShardDraft& draft,
                              std::uint64_t kv_token_bytes) {
    const std::uint32_t numerics = part_program_.numerics;
    LUNA_TRY(const std::uint64_t layer_bytes, scale.weigh(draft.weights, "blk.", numerics));
    LayoutModel& model = survey_.model;
    model.n_layers = config_.n_layers;
    model.n_kv_heads = config_.n_kv_heads;
    model.tied_head = config_.tied_head;
    const double all_layers = static_cast<double>(
        std::accumulate(file_bytes_.layers.begin(), file_bytes_.layers.end(), std::uint64_t{0}));
    const auto first = static_cast<double>(std::max<std::uint64_t>(1, file_bytes_.layers.front()));
    model.layer_bytes = static_cast<std::uint64_t>(static_cast<double>(layer_bytes) * all_layers /
                                                   first / config_.n_layers);
    LUNA_TRY(model.embedding_bytes, scale.weigh(draft.weights, kEmbeddingName, numerics));
    model.head_bytes = model.embedding_bytes;
    if (!config_.tied_head) {
      LUNA_TRY(ShardWeight head, source_->describe(std::string(kHeadName)));
      LUNA_TRY(model.head_bytes, scale.weigh({&head, 1}, kHeadName, numerics));
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
  KnownSpeeds speeds_;
  LayoutSurvey survey_;
};

}  // namespace

Result<LayoutSurvey> survey_layout(const SurveySubject& subject, const SpeedOptions& options) {
  return Surveyor(subject, options).run();
}

}  // namespace luna::model
