#include "core/model/device_survey.hpp"

#include "core/base/log.hpp"
#include "core/model/speed_probe.hpp"
#include "core/model/weight_names.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <utility>

namespace luna::model {
namespace {

// A batch at which a device computes rather than waits for memory, and which a few users fill.
constexpr double kUsualRows = 32.0;

/// Layers that tell what one more takes.
std::uint32_t n_layers_weighed(const ModelConfig& config) {
  return std::min(2U, config.n_layers);
}

bool has_embedding(RowPlace place) {
  return place == RowPlace::alone || place == RowPlace::first;
}
bool has_head(RowPlace place) {
  return place == RowPlace::alone || place == RowPlace::last;
}

/// Equal devices are as fast as each other.
Result<DeviceSpeed> speed_of(const DeviceSubject& subject, KnownSpeeds& known) {
  const ProbeSubject probed{subject.config, subject.source, subject.program};
  LUNA_TRY(const std::string key, probe_key(*subject.device, probed));
  if (const auto found = known.find(key); found != known.end()) return found->second;
  LUNA_TRY(DeviceSpeed speed, probe_speed(*subject.device, probed, subject.cache));
  logger("model")->info(
      "device speed device={} layer_us_1_32_256_rows={:.0f},{:.0f},{:.0f} head_us_1_32_rows="
      "{:.0f},{:.0f} kv_token_ns={:.1f} in_prompts={:.1f}",
      subject.device->name(),
      speed.layer.at(1) / 1e3,
      speed.layer.at(32) / 1e3,
      speed.layer.at(256) / 1e3,
      speed.head.at(1) / 1e3,
      speed.head.at(32) / 1e3,
      speed.kv_token_ns,
      speed.prompt_kv_token_ns);
  return known.emplace(key, std::move(speed)).first->second;
}

}  // namespace

RowPlace row_place(std::size_t rank, std::size_t n_ranks) {
  if (n_ranks < 2) return RowPlace::alone;
  if (rank == 0) return RowPlace::first;
  return rank + 1 == n_ranks ? RowPlace::last : RowPlace::middle;
}

UsualStep usual_step(const ExpectedLoad& load) {
  const double n_rows = double(load.prompt) + load.output;
  const double out_share = n_rows > 0.0 ? load.output / n_rows : 1.0;
  return {kUsualRows, kUsualRows * out_share};
}

std::uint64_t bytes_without(std::uint64_t bytes, std::uint64_t part) {
  return bytes - std::min(bytes, part);
}

std::uint64_t message_bytes_at(RowPlace place,
                               const ModelConfig& config,
                               const ProgramOptions& program) {
  if (has_embedding(place)) return 0;
  return std::uint64_t{program.limits.n_rows_max} * config.hidden_size * sizeof(float) *
         std::max(2U, program.n_lanes);
}

PlaceTerms place_terms(const DeviceSurvey& survey,
                       RowPlace place,
                       std::uint64_t memory_bytes,
                       const UsualStep& step) {
  PlaceTerms terms;
  terms.memory_bytes = memory_bytes;
  terms.fixed_bytes = survey.fixed_bytes[static_cast<std::size_t>(place)];
  terms.layer_bytes = survey.layer_bytes;
  terms.kv_token_bytes = survey.kv_token_bytes;
  terms.layer_ns = survey.speed.layer.at(step.n_rows);
  terms.fixed_ns = survey.speed.step_ns;
  if (has_embedding(place)) terms.fixed_ns += survey.speed.embedding_row_ns * step.n_rows;
  if (has_head(place)) terms.fixed_ns += survey.speed.head.at(step.n_out_rows);
  return terms;
}

std::vector<std::string> survey_tensors(const ModelConfig& config) {
  std::vector<std::string> names =
      shard_weight_names(config, PartScale::copy_of(n_layers_weighed(config)));
  if (config.tied_head) names.emplace_back(kEmbeddingName);
  return names;
}

Result<DeviceSurvey> survey_device(const DeviceSubject& subject, KnownSpeeds& known) {
  const ModelConfig& config = *subject.config;
  const ProgramOptions& program = subject.program;
  const PartScale scale(config, *subject.source, *subject.device);
  DeviceSurvey survey;
  LUNA_TRY(survey.speed, speed_of(subject, known));
  LUNA_TRY(const PartScale::CopyScratch copy, scale.copy_scratch(program));
  std::uint64_t first_layer_bytes = 0;
  for (std::size_t i = 0; i < kRowPlaces; ++i) {
    const auto place = static_cast<RowPlace>(i);
    LUNA_TRY(const ShardDraft draft, scale.draft(PartScale::part_at(place), program));
    LUNA_TRY(const ShardMemory memory,
             measure_shard(config, draft, program, message_bytes_at(place, config, program)));
    LUNA_TRY(first_layer_bytes, scale.weigh(draft.weights, "blk.", program.numerics));
    survey.kv_token_bytes = memory.kv_block / program.kv_block_tokens;
    survey.fixed_bytes[i] = bytes_without(memory.fixed(), first_layer_bytes + copy.layer_bytes);
  }
  const std::vector<std::uint64_t>& in_file = subject.file_bytes->layers;
  const auto first = static_cast<double>(std::max<std::uint64_t>(1, in_file.front()));
  for (const std::uint64_t bytes : in_file) {
    const double share = static_cast<double>(bytes) / first;
    survey.layer_bytes.push_back(
        copy.layer_bytes +
        static_cast<std::uint64_t>(static_cast<double>(first_layer_bytes) * share));
  }
  return survey;
}

Result<ShardDraft> PartScale::draft(const ShardSpec& spec, const ProgramOptions& program) const {
  ShardDraft draft;
  draft.device = &device_;
  draft.spec = spec;
  for (const WeightPart& part : shard_weight_parts(config_, spec)) {
    LUNA_TRY(ShardWeight weight, source_.describe(part.name));
    draft.weights.push_back(std::move(weight));
  }
  LUNA_TRY(draft.program, build_program(config_, spec, draft.weights, program));
  return draft;
}

ShardSpec PartScale::part_at(RowPlace place) {
  ShardSpec spec;
  spec.layers = {0, 1};
  spec.has_embedding = has_embedding(place);
  spec.has_head = has_head(place);
  if (!spec.has_embedding) spec.recv_from = 0;
  if (!spec.has_head) spec.send_to = spec.has_embedding ? 1 : 2;
  return spec;
}

ShardSpec PartScale::copy_of(std::uint32_t n_layers) {
  ShardSpec spec;
  spec.layers = {0, n_layers};
  spec.has_embedding = true;
  spec.has_head = true;
  return spec;
}

Result<std::uint64_t> PartScale::weigh(std::span<const ShardWeight> weights,
                                       std::string_view prefix,
                                       std::uint32_t numerics) const {
  std::uint64_t sum = 0;
  for (const ShardWeight& weight : weights) {
    if (!weight.name.starts_with(prefix)) continue;
    std::uint64_t bytes = 0;
    luna_err err = make_err();
    LUNA_TRY(to_result(
        device_.backend().weight_bytes(device_.handle(), &weight.desc, numerics, &bytes, &err),
        err,
        "device " + device_.name() + ": weight " + weight.name));
    sum += bytes;
  }
  return sum;
}

Result<std::uint64_t> PartScale::scratch(const ShardSpec& spec,
                                         const ProgramOptions& program) const {
  LUNA_TRY(const ShardDraft drafted, draft(spec, program));
  LUNA_TRY(const ShardMemory memory, measure_shard(config_, drafted, program, 0));
  return memory.scratch;
}

Result<PartScale::CopyScratch> PartScale::copy_scratch(ProgramOptions program) const {
  program.n_lanes = 1;
  const std::uint32_t n_layers = n_layers_weighed(config_);
  LUNA_TRY(const std::uint64_t one, scratch(copy_of(1), program));
  LUNA_TRY(const std::uint64_t more, scratch(copy_of(n_layers), program));
  CopyScratch bytes;
  if (n_layers > 1 && more > one) bytes.layer_bytes = (more - one) / (n_layers - 1);
  bytes.fixed_bytes = bytes_without(one, bytes.layer_bytes);
  return bytes;
}

}  // namespace luna::model
