#include "core/model/arithmetic_probe.hpp"

#include "core/base/units.hpp"
#include "core/base/word_hash.hpp"
#include "core/model/architecture.hpp"
#include "core/model/program_builder.hpp"
#include "core/model/weight_names.hpp"

#include <luna/plugin.hpp>

#include <array>
#include <cmath>
#include <future>
#include <numeric>
#include <string>
#include <vector>

namespace luna::model {
namespace {

// Small enough to be done at once; odd enough to meet every path: several groups and segments, more
// query than KV heads, more positions than one partition of 256, rows fewer than a tile.
constexpr std::uint32_t kGroup = 32;
constexpr std::uint32_t kPromptRows = 45;  // of a step
constexpr std::uint32_t kSteps = 7;        // of a prompt of 315
constexpr std::uint32_t kBlockTokens = 32;

ModelConfig probe_config() {
  ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = 128;
  config.n_layers = 2;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 32;
  config.ffn_size = 160;
  config.vocab_size = 192;
  config.context_length = 512;
  config.norm_eps = 1e-5F;
  config.attention_scale = 1.0F / std::sqrt(32.0F);
  config.tied_head = true;
  config.rope.n_rot = config.head_dim;
  for (std::uint32_t p = 0; p < config.head_dim / 2; ++p)
    config.rope.frequencies.push_back(1.0 / static_cast<double>(1 + p * p));
  return config;
}

ProgramOptions probe_options(std::uint32_t numerics, std::uint32_t kv_dtype) {
  ProgramOptions options;
  options.numerics = numerics;
  options.kv_dtype = kv_dtype;
  options.kv_block_tokens = kBlockTokens;
  options.n_candidates = 8;
  options.limits = {.n_rows_max = kPromptRows,
                    .n_seqs_max = 1,
                    .n_out_rows_max = 1,
                    .n_positions_max = kPromptRows * kSteps + 1};
  return options;
}

/// Numbers that look like noise and are the same everywhere.
class Noise {
 public:
  std::uint32_t below(std::uint32_t n) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state_ >> 33U) % n;
  }

 private:
  std::uint64_t state_ = 20260101;
};

ShardWeight describe(const std::string& name, const WeightShape& shape) {
  ShardWeight weight;
  weight.name = name;
  luna_weight_desc& desc = weight.desc;
  desc.struct_size = sizeof(desc);
  desc.n_rows = shape.n_rows;
  desc.n_cols = shape.n_cols;
  if (shape.n_rows == 1) {
    desc.klass = LUNA_WEIGHT_DENSE;
    desc.dtype = LUNA_DTYPE_F32;
    desc.row_bytes[LUNA_PLANE_VALUES] = shape.n_cols * sizeof(float);
    return weight;
  }
  desc.klass = LUNA_WEIGHT_AFFINE;
  desc.bits = 4;
  desc.group = kGroup;
  desc.has_offset = 1;
  desc.row_bytes[LUNA_PLANE_CODES] = shape.n_cols;
  desc.row_bytes[LUNA_PLANE_SCALE] = shape.n_cols / kGroup * sizeof(float);
  desc.row_bytes[LUNA_PLANE_OFFSET] = shape.n_cols / kGroup * sizeof(float);
  return weight;
}

WeightShape shape_of(const ModelConfig& config, const std::string& name) {
  if (name == kEmbeddingName) return {config.vocab_size, config.hidden_size};
  if (name == kOutputNormName) return {1, config.hidden_size};
  for (const LayerWeight weight : architecture_of(config).layer_weights) {
    if (name.ends_with(layer_weight_name(0, weight).substr(5)))
      return layer_weight_shape(config, weight);
  }
  return {};
}

/// What the probe holds on the device; given back whatever happens.
class Probe {
 public:
  explicit Probe(Device& device) : backend_(device.backend()), device_(device.handle()) {}
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  ~Probe() {
    if (executable_ != nullptr) backend_.release(executable_);
    for (const std::uint64_t buffer : buffers_)
      backend_.free_buffer(device_, buffer);
    for (const std::uint64_t weight : weights_)
      backend_.weight_free(device_, weight);
  }

  Result<std::uint64_t> run(const ModelConfig& config, const ProgramOptions& options) {
    LUNA_TRY(load(config, options));
    std::uint64_t hash = 0;
    Noise tokens;
    for (std::uint32_t i = 0; i <= kSteps; ++i) {
      const std::uint32_t n_rows = i < kSteps ? kPromptRows : 1;
      LUNA_TRY(step(i * kPromptRows, n_rows, config.vocab_size, tokens));
      hash = hash_words(hash, {logits_, config.vocab_size});
    }
    return hash;
  }

 private:
  Result<void> load(const ModelConfig& config, const ProgramOptions& options) {
    ShardSpec whole;
    whole.layers = {0, config.n_layers};
    std::vector<ShardWeight> described;
    for (const std::string& name : shard_weight_names(config, whole))
      described.push_back(describe(name, shape_of(config, name)));
    LUNA_TRY(const Program program, build_program(config, whole, described, options));
    Noise noise;
    for (const ShardWeight& weight : described)
      LUNA_TRY(pack(weight.desc, options.numerics, noise));
    const luna_program abi = program.abi();
    luna_err err = make_err();
    LUNA_TRY(to_result(backend_.compile(device_,
                                        &abi,
                                        weights_.data(),
                                        static_cast<std::uint32_t>(weights_.size()),
                                        &executable_,
                                        &err),
                       err,
                       "probe: compile"));
    std::uint64_t block_bytes = 0;
    LUNA_TRY(to_result(
        backend_.kv_block_bytes(device_, &abi.kv, &block_bytes, &err), err, "probe: KV block"));
    n_blocks_ = div_ceil(options.limits.n_positions_max, kBlockTokens);
    LUNA_TRY(bind(program, LUNA_SLOT_KV, LUNA_BUFFER_KV, n_blocks_ * block_bytes));
    LUNA_TRY(bind(program,
                  LUNA_SLOT_CANDIDATES,
                  LUNA_BUFFER_OUT,
                  (options.n_candidates + 1) * sizeof(Candidate)));
    return bind(program, LUNA_SLOT_LOGITS, LUNA_BUFFER_OUT, config.vocab_size * sizeof(float));
  }

  Result<void> pack(const luna_weight_desc& desc, std::uint32_t numerics, Noise& noise) {
    luna_err err = make_err();
    std::uint64_t handle = 0;
    LUNA_TRY(to_result(
        backend_.weight_begin(device_, &desc, numerics, &handle, &err), err, "probe: weight"));
    weights_.push_back(handle);
    std::vector<std::uint8_t> codes(desc.klass == LUNA_WEIGHT_AFFINE ? desc.n_rows * desc.n_cols
                                                                     : 0);
    for (std::uint8_t& code : codes)
      code = static_cast<std::uint8_t>(noise.below(16));
    const auto numbers = [&](std::uint64_t row_bytes, float low, float step) {
      std::vector<float> values(desc.n_rows * row_bytes / sizeof(float));
      for (float& value : values)
        value = low + step * static_cast<float>(noise.below(64));
      return values;
    };
    std::vector<float> scales =
        numbers(desc.row_bytes[LUNA_PLANE_SCALE], 0.0078125F, 0.00048828125F);
    std::vector<float> offsets = numbers(desc.row_bytes[LUNA_PLANE_OFFSET], -0.25F, 0.00390625F);
    std::vector<float> values = desc.klass == LUNA_WEIGHT_DENSE
                                    ? numbers(desc.row_bytes[LUNA_PLANE_VALUES], 0.5F, 0.015625F)
                                    : std::vector<float>();
    luna_weight_rows rows{};
    rows.struct_size = sizeof(rows);
    rows.n_rows = desc.n_rows;
    rows.planes[LUNA_PLANE_CODES] = codes.data();
    if (!values.empty()) rows.planes[LUNA_PLANE_VALUES] = values.data();
    if (!scales.empty()) rows.planes[LUNA_PLANE_SCALE] = scales.data();
    if (!offsets.empty()) rows.planes[LUNA_PLANE_OFFSET] = offsets.data();
    LUNA_TRY(
        to_result(backend_.weight_rows(device_, handle, &rows, &err), err, "probe: weight rows"));
    return to_result(backend_.weight_end(device_, handle, &err), err, "probe: weight end");
  }

  Result<void> bind(const Program& program,
                    std::uint32_t slot_kind,
                    std::uint32_t buffer_kind,
                    std::uint64_t n_bytes) {
    const auto slot = program.bound_slot(slot_kind);
    if (!slot) return {};
    luna_bind bind{};
    bind.slot = *slot;
    void* host = nullptr;
    luna_err err = make_err();
    LUNA_TRY(to_result(backend_.alloc(device_, buffer_kind, n_bytes, &bind.buffer, &host, &err),
                       err,
                       "probe: alloc"));
    buffers_.push_back(bind.buffer);
    binds_.push_back(bind);
    if (slot_kind == LUNA_SLOT_LOGITS) logits_ = static_cast<const std::uint32_t*>(host);
    return {};
  }

  /// One sequence goes on by n_rows; the last row's logits are wanted.
  Result<void> step(std::uint32_t first, std::uint32_t n_rows, std::uint32_t vocab, Noise& noise) {
    std::vector<std::uint32_t> tokens(n_rows);
    for (std::uint32_t& token : tokens)
      token = noise.below(vocab);
    std::vector<std::uint32_t> positions(n_rows);
    std::iota(positions.begin(), positions.end(), first);
    std::vector<std::uint32_t> blocks(n_blocks_);
    std::iota(blocks.rbegin(), blocks.rend(), 0U);  // their order in memory is nobody's business
    const std::array<std::uint32_t, 2> seq_first_row = {0, n_rows};
    const std::uint32_t out_row = n_rows - 1;
    const std::uint32_t out_flags = LUNA_OUT_LOGITS;
    struct Ending {
      std::promise<Result<void>> promise;
    } ending;
    auto ended = ending.promise.get_future();
    luna_step step{};
    step.struct_size = sizeof(step);
    step.n_rows = n_rows;
    step.n_seqs = 1;
    step.n_out_rows = 1;
    step.token_ids = tokens.data();
    step.positions = positions.data();
    step.seq_first_row = seq_first_row.data();
    step.block_tables = blocks.data();
    step.block_table_stride = n_blocks_;
    step.out_rows = &out_row;
    step.out_flags = &out_flags;
    step.binds = binds_.data();
    step.n_binds = static_cast<std::uint32_t>(binds_.size());
    step.done_context = &ending;
    step.done = [](void* context, const luna_step_result* result) {
      Result<void> outcome;
      if (result->status < 0)
        outcome =
            Error{Code::internal,
                  std::string("probe: ") + (result->message != nullptr ? result->message : "")};
      static_cast<Ending*>(context)->promise.set_value(std::move(outcome));
    };
    luna_err err = make_err();
    LUNA_TRY(to_result(backend_.submit(executable_, &step, &err), err, "probe: step"));
    return ended.get();
  }

  const luna_backend_if& backend_;
  void* const device_;
  std::vector<std::uint64_t> weights_;
  std::vector<std::uint64_t> buffers_;
  std::vector<luna_bind> binds_;
  void* executable_ = nullptr;
  const std::uint32_t* logits_ = nullptr;  // their bits
  std::uint32_t n_blocks_ = 0;
};

}  // namespace

Result<std::uint64_t> probe_arithmetic(Device& device,
                                       std::uint32_t numerics,
                                       std::uint32_t kv_dtype) {
  auto hash = Probe(device).run(probe_config(), probe_options(numerics, kv_dtype));
  if (!hash) return hash.error().in("device " + device.name());
  return hash;
}

}  // namespace luna::model
