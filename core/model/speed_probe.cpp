#include "core/model/speed_probe.hpp"

#include "core/base/clock.hpp"
#include "core/base/units.hpp"
#include "core/model/weight_names.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <atomic>

namespace luna::model {
namespace {

constexpr std::uint32_t kSequences = 32;
constexpr std::uint32_t kRowsMax = 256;
constexpr std::uint32_t kContext = 512;  // where attention is measured
constexpr std::uint32_t kContextSequences = 8;
constexpr std::uint32_t kPromptRows = 128;
// Rows of the head that are timed: as many weights as a layer of a small model has.
constexpr std::uint64_t kHeadWeightsMax = 4'000'000;
// More than the last-level cache that a core of today reaches.
constexpr std::size_t kSweepBytes = std::size_t{48} * kMiB;
constexpr int kRounds = 3;

/// A step of equal sequences.
struct StepShape {
  std::uint32_t n_seqs = 1;
  std::uint32_t n_rows = 1;  // of each sequence
  std::uint32_t first_position = 0;
  std::uint32_t n_out_rows = 0;  // the first rows of the step
};

/// The arrays of such a step; the KV blocks of its sequences are their own.
class StepArrays {
 public:
  StepArrays(const StepShape& shape, std::uint32_t block_tokens, std::uint32_t stride) {
    for (std::uint32_t s = 0; s < shape.n_seqs; ++s) {
      first_rows_.push_back(s * shape.n_rows);
      for (std::uint32_t i = 0; i < shape.n_rows; ++i) {
        tokens_.push_back((s * shape.n_rows + i) % kTokens);
        positions_.push_back(shape.first_position + i);
      }
      const std::uint32_t n_blocks = div_ceil(shape.first_position + shape.n_rows, block_tokens);
      for (std::uint32_t b = 0; b < stride; ++b)
        tables_.push_back(b < n_blocks ? s * n_blocks + b : 0);
    }
    first_rows_.push_back(shape.n_seqs * shape.n_rows);
    for (std::uint32_t i = 0; i < shape.n_out_rows; ++i)
      out_rows_.push_back(i);
    out_flags_.assign(shape.n_out_rows, LUNA_OUT_CANDIDATES);
    stride_ = stride;
  }
  [[nodiscard]] luna_step step() const {
    luna_step step{};
    step.struct_size = sizeof(step);
    step.n_rows = static_cast<std::uint32_t>(tokens_.size());
    step.n_seqs = static_cast<std::uint32_t>(first_rows_.size() - 1);
    step.n_out_rows = static_cast<std::uint32_t>(out_rows_.size());
    step.token_ids = tokens_.data();
    step.positions = positions_.data();
    step.seq_first_row = first_rows_.data();
    step.block_tables = tables_.data();
    step.block_table_stride = stride_;
    step.out_rows = out_rows_.data();
    step.out_flags = out_flags_.data();
    return step;
  }
  static constexpr std::uint32_t kTokens = 64;  // ids in use: the fewest rows a head has here

 private:
  std::vector<std::uint32_t> tokens_, positions_, first_rows_, tables_, out_rows_, out_flags_;
  std::uint32_t stride_ = 0;
};

struct StepTime {
  double busy_ns = 0.0;  // inside ops, by the device
  double wall_ns = 0.0;  // from submit to the end
};

/// Everything a probe makes on a device, given back at its end.
class ProbeBench {
 public:
  ProbeBench(const Device& device, const ProbeSubject& subject)
      : device_(device), subject_(subject), config_(*subject.config), sweep_(kSweepBytes) {}
  ProbeBench(const ProbeBench&) = delete;
  ProbeBench& operator=(const ProbeBench&) = delete;
  ~ProbeBench() {
    for (void* executable : {layer_, empty_})
      if (executable != nullptr) backend().release(executable);
    for (const std::uint64_t buffer : buffers_)
      backend().free_buffer(device_.handle(), buffer);
    for (const std::uint64_t weight : weights_)
      backend().weight_free(device_.handle(), weight);
  }

  Result<void> prepare() {
    const std::uint64_t n_rows = std::max<std::uint64_t>(
        StepArrays::kTokens, kHeadWeightsMax / config_.hidden_size / 64 * 64);
    head_scale_ = static_cast<double>(config_.vocab_size);
    config_.vocab_size =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(config_.vocab_size, n_rows));
    head_scale_ /= config_.vocab_size;
    config_.n_layers = 1;
    limit_program();
    LUNA_TRY(describe());
    LUNA_TRY(layer_program_, build_program(config_, spec(), described_, program_));
    LUNA_TRY(write_empty_program());
    LUNA_TRY(load());
    LUNA_TRY(compile(layer_program_, layer_));
    LUNA_TRY(compile(empty_program_, empty_));
    return bind();
  }

  [[nodiscard]] double head_scale() const { return head_scale_; }
  [[nodiscard]] bool has_context() const {
    return program_.limits.n_positions_max >= kContext + kPromptRows;
  }

  /// The median of some runs; the first of all is not among them.
  Result<StepTime> time_layer(const StepShape& shape) { return time(layer_, binds_, shape); }
  Result<StepTime> time_empty(const StepShape& shape) { return time(empty_, {}, shape); }

 private:
  [[nodiscard]] const luna_backend_if& backend() const { return device_.backend(); }
  [[nodiscard]] static ShardSpec spec() { return make_shards(std::vector<LayerRange>{{0, 1}})[0]; }

  void limit_program() {
    program_ = subject_.program;
    program_.prunes = false;
    program_.n_lanes = 1;
    program_.n_candidates = std::min(program_.n_candidates, config_.vocab_size);
    program_.limits = {.n_rows_max = kRowsMax,
                       .n_seqs_max = kSequences,
                       .n_out_rows_max = kSequences,
                       .n_positions_max = std::min(config_.context_length, kContext + kPromptRows)};
  }

  /// The first rows of embedding and head stand for all.
  Result<void> describe() {
    config_.tied_head = false;
    const ColumnShare some{0, config_.vocab_size};
    for (WeightPart& part : shard_weight_parts(config_, spec())) {
      const bool is_head = part.name == kHeadName;
      if (is_head && subject_.config->tied_head) part.name = kEmbeddingName;
      LUNA_TRY(ShardWeight weight, subject_.source->describe(part.name));
      if (is_head || part.name == kEmbeddingName) weight = take_rows(std::move(weight), some);
      described_.push_back(std::move(weight));
      // By its role, as the program knows it.
      if (is_head) described_.back().name = kHeadName;
      sources_.push_back(std::move(part.name));
    }
    return {};
  }

  /// What a step takes beside its ops, and the embedding.
  Result<void> write_empty_program() {
    const luna_program layer = layer_program_.abi();
    ProgramLimits limits;
    limits.numerics = layer.numerics;
    limits.n_rows_max = layer.n_rows_max;
    limits.n_seqs_max = layer.n_seqs_max;
    limits.n_out_rows_max = layer.n_out_rows_max;
    limits.n_blocks_per_seq_max = layer.n_blocks_per_seq_max;
    limits.n_positions_max = layer.n_positions_max;
    ProgramBuilder b(limits);
    b.embed(b.weight(0, config_.vocab_size, config_.hidden_size));
    LUNA_TRY(empty_program_, std::move(b).finish());
    return {};
  }

  Result<void> load() {
    for (std::size_t i = 0; i < described_.size(); ++i) {
      ShardWeight weight = described_[i];
      weight.name = sources_[i];
      LUNA_TRY(load(weight));
    }
    return {};
  }
  Result<void> load(const ShardWeight& weight) {
    std::uint64_t handle = 0;
    luna_err err = make_err();
    const std::string what = "device " + device_.name() + ": probe: weight " + weight.name;
    LUNA_TRY(to_result(
        backend().weight_begin(device_.handle(), &weight.desc, program_.numerics, &handle, &err),
        err,
        what));
    weights_.push_back(handle);
    std::array<std::vector<std::byte>, LUNA_N_PLANES> planes;
    luna_weight_rows rows{};
    rows.struct_size = sizeof(rows);
    rows.n_rows = weight.desc.n_rows;
    for (std::uint32_t i = 0; i < LUNA_N_PLANES; ++i) {
      if (weight.desc.row_bytes[i] == 0) continue;
      planes[i].resize(weight.desc.row_bytes[i] * rows.n_rows);
      rows.planes[i] = planes[i].data();
    }
    LUNA_TRY(subject_.source->decode(weight, rows));
    LUNA_TRY(to_result(backend().weight_rows(device_.handle(), handle, &rows, &err), err, what));
    return to_result(backend().weight_end(device_.handle(), handle, &err), err, what);
  }

  Result<void> compile(const Program& program, void*& executable) {
    const luna_program abi = program.abi();
    luna_err err = make_err();
    return to_result(backend().compile(device_.handle(),
                                       &abi,
                                       weights_.data(),
                                       static_cast<std::uint32_t>(weights_.size()),
                                       &executable,
                                       &err),
                     err,
                     "device " + device_.name() + ": probe: compile");
  }

  Result<void> bind() {
    const luna_program abi = layer_program_.abi();
    std::uint64_t block_bytes = 0;
    luna_err err = make_err();
    LUNA_TRY(to_result(backend().kv_block_bytes(device_.handle(), &abi.kv, &block_bytes, &err),
                       err,
                       "device " + device_.name() + ": probe: kv_block_bytes"));
    const std::uint64_t n_blocks = std::max<std::uint64_t>(
        kSequences,
        std::uint64_t{kContextSequences} *
            div_ceil(program_.limits.n_positions_max, program_.kv_block_tokens));
    const std::uint64_t out_row = config_.vocab_size * sizeof(float);
    const std::uint64_t candidates_row = (program_.n_candidates + 1) * sizeof(Candidate);
    LUNA_TRY(bind(LUNA_SLOT_KV, LUNA_BUFFER_KV, n_blocks * block_bytes));
    LUNA_TRY(bind(LUNA_SLOT_LOGITS, LUNA_BUFFER_OUT, kSequences * out_row));
    return bind(LUNA_SLOT_CANDIDATES, LUNA_BUFFER_OUT, kSequences * candidates_row);
  }
  Result<void> bind(std::uint32_t slot_kind, std::uint32_t kind, std::uint64_t bytes) {
    std::uint64_t buffer = 0;
    void* host = nullptr;
    luna_err err = make_err();
    LUNA_TRY(to_result(backend().alloc(device_.handle(), kind, bytes, &buffer, &host, &err),
                       err,
                       "device " + device_.name() + ": probe: alloc"));
    buffers_.push_back(buffer);
    binds_.push_back({.slot = *layer_program_.bound_slot(slot_kind),
                      .pad = 0,
                      .buffer = buffer,
                      .comm = nullptr});
    return {};
  }

  Result<StepTime> time(void* executable,
                        const std::vector<luna_bind>& binds,
                        const StepShape& shape) {
    const StepArrays arrays(
        shape, program_.kv_block_tokens, layer_program_.abi().n_blocks_per_seq_max);
    std::vector<StepTime> times;
    for (int round = 0; round <= kRounds; ++round) {
      sweep_caches();
      LUNA_TRY(const StepTime time, run(executable, binds, arrays.step()));
      if (round > 0) times.push_back(time);
    }
    std::ranges::sort(times, {}, &StepTime::busy_ns);
    return times[times.size() / 2];
  }

  /// Weights of a whole model do not wait in a cache for their next step.
  void sweep_caches() {
    constexpr std::size_t kLine = 64;
    for (std::size_t i = 0; i < sweep_.size(); i += kLine)
      sweep_[i] = static_cast<std::byte>(static_cast<unsigned>(sweep_[i]) + 1U);
  }

  struct Ended {
    std::atomic<bool> is_over{false};
    luna_status status = LUNA_OK;
    double busy_ns = 0.0;
    std::string message;
  };
  Result<StepTime> run(void* executable, const std::vector<luna_bind>& binds, luna_step step) {
    Ended ended;
    step.binds = binds.data();
    step.n_binds = static_cast<std::uint32_t>(binds.size());
    step.done_context = &ended;
    step.done = [](void* context, const luna_step_result* result) {
      auto& is = *static_cast<Ended*>(context);
      is.status = result->status;
      is.busy_ns = static_cast<double>(result->busy_ns);
      if (result->status < 0 && result->message != nullptr) is.message = result->message;
      is.is_over.store(true, std::memory_order_release);
      is.is_over.notify_one();
    };
    luna_err err = make_err();
    const Nanoseconds start = clock_.now();
    const std::string what = "device " + device_.name() + ": probe: step";
    LUNA_TRY(to_result(backend().submit(executable, &step, &err), err, what));
    ended.is_over.wait(false, std::memory_order_acquire);
    const auto wall_ns = static_cast<double>((clock_.now() - start).count());
    if (ended.status < 0) return Error{Code::internal, what + ": " + ended.message};
    return StepTime{ended.busy_ns, wall_ns};
  }

  const Device& device_;
  const ProbeSubject& subject_;
  ModelConfig config_;  // of one layer, with a part of the vocabulary
  ProgramOptions program_;
  double head_scale_ = 1.0;
  std::vector<ShardWeight> described_;
  std::vector<std::string> sources_;  // their names in the file
  Program layer_program_;
  Program empty_program_;
  std::vector<std::uint64_t> weights_;
  std::vector<std::uint64_t> buffers_;
  std::vector<luna_bind> binds_;
  void* layer_ = nullptr;
  void* empty_ = nullptr;
  std::vector<std::byte> sweep_;
  RealClock clock_;
};

/// Differences of two measurements may come out below nothing.
double at_least(double ns, double least) {
  return std::max(ns, least);
}

Result<DeviceSpeed> measure(ProbeBench& bench) {
  constexpr double kLeastNs = 1.0;
  DeviceSpeed speed;
  LUNA_TRY(const StepTime empty_1, bench.time_empty({.n_seqs = 1}));
  LUNA_TRY(const StepTime empty_32, bench.time_empty({.n_seqs = kSequences}));
  speed.step_ns = at_least(empty_1.wall_ns, kLeastNs);
  speed.embedding_row_ns = at_least((empty_32.busy_ns - empty_1.busy_ns) / kSequences, 0.0);

  std::vector<RowTimes::Point> layer;
  std::vector<RowTimes::Point> head;
  for (const std::uint32_t n_rows : {1U, kSequences, kRowsMax}) {
    const std::uint32_t n_seqs = std::min(n_rows, kSequences);
    StepShape shape{.n_seqs = n_seqs, .n_rows = n_rows / n_seqs};
    LUNA_TRY(const StepTime plain, bench.time_layer(shape));
    const double embedding_ns = empty_1.busy_ns + speed.embedding_row_ns * n_rows;
    layer.push_back({double(n_rows), at_least(plain.busy_ns - embedding_ns, kLeastNs)});
    if (n_rows == kRowsMax) break;
    shape.n_out_rows = n_rows;
    LUNA_TRY(const StepTime with_head, bench.time_layer(shape));
    head.push_back({double(n_rows),
                    at_least((with_head.busy_ns - plain.busy_ns) * bench.head_scale(), kLeastNs)});
  }
  speed.layer = RowTimes(std::move(layer));
  speed.head = RowTimes(std::move(head));
  if (!bench.has_context()) return speed;

  LUNA_TRY(const StepTime near, bench.time_layer({.n_seqs = kContextSequences}));
  LUNA_TRY(const StepTime far,
           bench.time_layer({.n_seqs = kContextSequences, .first_position = kContext - 1}));
  speed.kv_token_ns =
      at_least((far.busy_ns - near.busy_ns) / (kContextSequences * (kContext - 1.0)), 0.0);
  LUNA_TRY(const StepTime first, bench.time_layer({.n_rows = kPromptRows}));
  LUNA_TRY(const StepTime later,
           bench.time_layer({.n_rows = kPromptRows, .first_position = kContext - kPromptRows}));
  speed.prompt_kv_token_ns = at_least(
      (later.busy_ns - first.busy_ns) / (kPromptRows * double(kContext - kPromptRows)), 0.0);
  return speed;
}

}  // namespace

std::vector<std::string> probe_tensors(const ModelConfig& config) {
  ModelConfig one_layer = config;
  one_layer.n_layers = 1;
  return shard_weight_names(one_layer, make_shards(std::vector<LayerRange>{{0, 1}})[0]);
}

Result<DeviceSpeed> probe_speed(const Device& device, const ProbeSubject& subject) {
  ProbeBench bench(device, subject);
  LUNA_TRY(bench.prepare());
  return measure(bench);
}

}  // namespace luna::model
