#include "core/cluster/worker_shard.hpp"

#include "core/base/units.hpp"

#include <luna/plugin.hpp>

#include <algorithm>
#include <utility>

namespace luna::cluster {

WorkerShard::WorkerShard(std::uint64_t id,
                         std::unique_ptr<model::LocalShard> shard,
                         const model::ShardOrder& order,
                         std::shared_ptr<Link> link)
    : id_(id), shard_(std::move(shard)), program_(order.program), link_(std::move(link)) {}

WorkerShard::~WorkerShard() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return n_busy_ == 0; });
  shard_->device().give_memory_back(memory_bytes_);
}

Result<void> WorkerShard::bind(const Bind& bind) {
  if (memory_bytes_ != 0) return Error{Code::corrupt, "a shard bound twice"};
  const std::uint64_t bytes =
      shard_->memory().fixed() + bind.n_kv_blocks * shard_->memory().kv_block;
  model::Device& device = shard_->device();
  if (bytes > device.memory_bytes_left()) {
    return Error{Code::exhausted,
                 "device " + device.name() + ": " + std::to_string(bytes) + " bytes, but " +
                     std::to_string(device.memory_bytes_left()) + " are left of its budget"};
  }
  device.take_memory(bytes);
  memory_bytes_ = bytes;
  shard_->limit_spares(0);
  LUNA_TRY(shard_->bind(bind.n_kv_blocks, bind.terms));
  n_kv_blocks_ = bind.n_kv_blocks;
  for (std::uint32_t i = 0; i < program_.n_lanes; ++i) {
    Lane& lane = lanes_.emplace_back();
    lane.shard = this;
    lane.idx = i;
  }
  // Steps may come from now on, on another thread.
  is_bound_.store(true, std::memory_order_release);
  return {};
}

// The backend trusts core's arrays, so what a frame says is held against the shard's limits.
Result<void> WorkerShard::check(const Step& step) const {
  const model::StepLimits& limits = program_.limits;
  const std::size_t n_seqs = step.seq_first_row.size() - 1;
  const bool fits =
      step.lane < lanes_.size() && step.token_ids.size() <= limits.n_rows_max &&
      n_seqs <= limits.n_seqs_max && step.out_rows.size() <= limits.n_out_rows_max &&
      step.block_table_stride <= div_ceil(limits.n_positions_max, program_.kv_block_tokens);
  if (!fits) return Error{Code::corrupt, "step: larger than the shard's limits"};
  const std::uint32_t vocab_size = shard_->config().vocab_size;
  if (std::ranges::any_of(step.token_ids, [&](std::uint32_t id) { return id >= vocab_size; }))
    return Error{Code::corrupt, "step: a token beyond the vocabulary"};
  for (const luna_kv_copy& copy : step.kv_copies)
    if (copy.from_block >= n_kv_blocks_ || copy.to_block >= n_kv_blocks_)
      return Error{Code::corrupt, "step: a KV block that the shard does not have"};
  const std::uint64_t n_slots = std::uint64_t{step.block_table_stride} * program_.kv_block_tokens;
  for (std::size_t seq = 0; seq < n_seqs; ++seq) {
    const std::uint32_t n_pruned = step.seq_prunes.empty() ? 0 : step.seq_prunes[seq].n_pruned;
    for (std::uint32_t row = step.seq_first_row[seq]; row < step.seq_first_row[seq + 1]; ++row) {
      const std::uint32_t position = step.positions[row];
      if (position >= limits.n_positions_max || position < n_pruned ||
          position - n_pruned >= n_slots)
        return Error{Code::corrupt, "step: a position without a place in the KV cache"};
      // check_blocks() goes as far as the last row.
      if (row > step.seq_first_row[seq] && position <= step.positions[row - 1])
        return Error{Code::corrupt, "step: positions of a sequence that do not ascend"};
    }
  }
  return check_blocks(step);
}

/// Of a sequence with rows; check() has found them in its table.
std::size_t WorkerShard::n_blocks_of(const Step& step, std::size_t seq) const {
  const std::uint32_t n_pruned = step.seq_prunes.empty() ? 0 : step.seq_prunes[seq].n_pruned;
  const std::uint32_t last = step.positions[step.seq_first_row[seq + 1] - 1];
  return (last - n_pruned) / program_.kv_block_tokens + 1;
}

// Blocks of slices are another shard's, which checks them when it is asked.
Result<void> WorkerShard::check_blocks(const Step& step) const {
  const std::uint64_t per_partition = LUNA_PARTITION_TOKENS / program_.kv_block_tokens;
  const std::size_t n_seqs = step.seq_first_row.size() - 1;
  std::span<const StepSlice> slices = step.slices;  // from those of the sequence on
  for (std::size_t seq = 0; seq < n_seqs; ++seq) {
    const std::uint32_t row = step.seq_first_row[seq];
    const std::uint32_t end_row = step.seq_first_row[seq + 1];
    const std::uint64_t n_known = row < end_row ? step.positions[row] : 0;
    const auto table = std::span(step.block_tables)
                           .subspan(seq * step.block_table_stride, step.block_table_stride)
                           .first(row < end_row ? n_blocks_of(step, seq) : 0);
    std::uint64_t block = 0;
    const auto are_own = [&](std::uint64_t end) {
      for (; block < end; ++block)
        if (table[block] >= n_kv_blocks_) return false;
      return true;
    };
    bool is_right = true;
    for (; is_right && !slices.empty() && slices[0].seq == seq; slices = slices.subspan(1)) {
      const std::uint64_t end = std::uint64_t{slices[0].first_partition} + slices[0].n_partitions;
      if (slices[0].peer > program_.n_slice_peers || end * LUNA_PARTITION_TOKENS > n_known ||
          end * per_partition > table.size())
        return Error{Code::corrupt, "step: a slice that no other copy could have"};
      is_right = are_own(slices[0].first_partition * per_partition);
      block = end * per_partition;
    }
    if (!is_right || !are_own(table.size()))
      return Error{Code::corrupt, "step: a KV block that the shard does not have"};
  }
  return {};
}

/// The arrays that came, as the ABI has them.
void WorkerShard::fill(Lane& lane) const {
  const model::Shard& shard = shard_->shard();
  luna_step& step = lane.abi;
  step = {};
  step.struct_size = sizeof(step);
  step.n_rows = static_cast<std::uint32_t>(lane.step.token_ids.size());
  step.n_seqs = static_cast<std::uint32_t>(lane.step.seq_first_row.size() - 1);
  step.n_out_rows = static_cast<std::uint32_t>(lane.step.out_rows.size());
  step.token_ids = lane.step.token_ids.data();
  step.positions = lane.step.positions.data();
  step.seq_first_row = lane.step.seq_first_row.data();
  step.block_tables = lane.step.block_tables.data();
  step.block_table_stride = lane.step.block_table_stride;
  step.n_kv_copies = static_cast<std::uint32_t>(lane.step.kv_copies.size());
  step.kv_copies = lane.step.kv_copies.data();
  step.out_rows = lane.step.out_rows.data();
  step.out_flags = lane.step.out_flags.data();
  step.seq_prunes = lane.step.seq_prunes.empty() ? nullptr : lane.step.seq_prunes.data();
  step.binds = shard.binds[lane.idx].data();
  step.n_binds = static_cast<std::uint32_t>(shard.binds[lane.idx].size());
  step.done = &WorkerShard::on_done;
  step.done_context = &lane;
  const std::uint32_t per_partition = LUNA_PARTITION_TOKENS / program_.kv_block_tokens;
  lane.slices.clear();
  for (const StepSlice& slice : lane.step.slices)
    lane.slices.push_back({slice.seq,
                           slice.peer,
                           slice.first_partition,
                           slice.n_partitions,
                           step.block_tables + std::size_t{slice.seq} * step.block_table_stride +
                               std::size_t{slice.first_partition} * per_partition});
  lane.slice_masses.assign(lane.slices.size(), 0);
  step.n_slices = static_cast<std::uint32_t>(lane.slices.size());
  step.slices = lane.slices.data();
  step.slice_masses = lane.slices.empty() ? nullptr : lane.slice_masses.data();
}

Result<void> WorkerShard::start(std::span<const std::byte> payload) {
  if (!is_bound_.load(std::memory_order_acquire))
    return Error{Code::corrupt, "step: the shard is not bound"};
  LUNA_TRY(parse_step(payload, parsed_));
  LUNA_TRY(check(parsed_));
  Lane& lane = lanes_[parsed_.lane];
  {
    const std::lock_guard lock(mutex_);
    if (lane.is_busy) return Error{Code::corrupt, "step: its lane is busy"};
    lane.is_busy = true;
    ++n_busy_;
  }
  n_steps_.fetch_add(1, std::memory_order_relaxed);
  std::swap(lane.step, parsed_);
  fill(lane);
  const model::Shard& shard = shard_->shard();
  luna_err err = make_err();
  const luna_status status = shard.backend->submit(shard.executable, &lane.abi, &err);
  if (status >= 0) return {};
  luna_step_result refused{};
  refused.struct_size = sizeof(refused);
  refused.status = status;
  const std::string message(text_of(err));
  refused.message = message.c_str();
  finish(lane, refused);
  return {};
}

std::optional<luna_kv_layout> WorkerShard::kv_layout() const {
  const model::KvAccess& kv = shard_->shard().kv;
  if (kv.table == nullptr || kv.layout.n_layers == 0) return std::nullopt;
  return kv.layout;
}

std::uint64_t WorkerShard::n_bytes(const KvOrder& order) const {
  const model::KvAccess& kv = shard_->shard().kv;
  return order.blocks.size() * order.n_layers * (kv.block_bytes / kv.layout.n_layers);
}

Result<void> WorkerShard::check(FrameType type, const KvOrder& order) const {
  if (!is_bound_.load(std::memory_order_acquire) || !kv_layout())
    return Error{Code::corrupt, "KV copy: the shard has no blocks that can be copied"};
  const std::uint64_t n_layers = kv_layout()->n_layers;
  if (order.n_layers > n_layers || order.first_layer > n_layers - order.n_layers)
    return Error{Code::corrupt, "KV copy: layers that the shard does not have"};
  if (std::ranges::any_of(order.blocks, [&](std::uint32_t block) { return block >= n_kv_blocks_; }))
    return Error{Code::corrupt, "KV copy: a block that the shard does not have"};
  const bool is_one_layer = order.blocks.size() == 1 && order.n_layers == 1;
  const std::uint64_t n_bytes_max = is_one_layer ? kKvLayerBytesMax : kKvPieceBytes;
  if (n_bytes(order) > n_bytes_max)
    return Error{Code::corrupt, "KV copy: more than a message holds"};
  if (order.bytes.size() != (type == FrameType::kv_import ? n_bytes(order) : 0))
    return Error{Code::corrupt, "KV copy: other bytes than its blocks take"};
  return {};
}

Result<KvTask> WorkerShard::begin_copy(const Frame& frame) {
  KvTask task;
  task.shard = this;
  task.type = frame.type;
  LUNA_TRY(task.order, parse_kv_order(frame.payload));
  LUNA_TRY(check(frame.type, task.order));
  task.bytes.assign(task.order.bytes.begin(), task.order.bytes.end());
  task.order.bytes = {};  // it lies in the frame
  const std::lock_guard lock(mutex_);
  if (n_copies_ >= kKvPiecesMax) return Error{Code::corrupt, "KV copy: too many at a time"};
  ++n_copies_;
  ++n_busy_;
  return task;
}

void WorkerShard::run_copy(const KvTask& task, Bytes& outside) {
  const model::KvAccess& kv = shard_->shard().kv;
  const bool is_export = task.type == FrameType::kv_export;
  luna_kv_part part{};
  part.struct_size = sizeof(part);
  part.n_blocks = static_cast<std::uint32_t>(task.order.blocks.size());
  part.buffer = kv.buffer;
  part.layout = &kv.layout;
  part.blocks = task.order.blocks.data();
  part.first_layer = task.order.first_layer;
  part.n_layers = task.order.n_layers;
  part.n_bytes = n_bytes(task.order);
  if (is_export) outside.resize(part.n_bytes);
  luna_err err = make_err();
  const luna_status status = is_export
                                 ? kv.table->kv_export(kv.device, &part, outside.data(), &err)
                                 : kv.table->kv_import(kv.device, &part, task.bytes.data(), &err);
  KvAnswer answer;
  answer.number = task.order.number;
  answer.result = to_result(status, err, "device " + shard_->device().name() + ": KV copy");
  std::span<const std::byte> given;
  if (is_export && answer.result) given = outside;
  {
    // Before the controller can ask for the next one.
    const std::lock_guard lock(mutex_);
    --n_copies_;
  }
  link_->send(
      is_export ? FrameType::kv_given : FrameType::kv_taken, id_, encode_kv_answer(answer), given);
  const std::lock_guard lock(mutex_);
  --n_busy_;
  idle_.notify_all();
}

void WorkerShard::on_done(void* context, const luna_step_result* result) {
  Lane& lane = *static_cast<Lane*>(context);
  lane.shard->finish(lane, *result);
}

void WorkerShard::send_outputs(const Lane& lane) {
  const model::StepOutputs& outputs = shard_->outputs()[lane.idx];
  const std::size_t n_logits = shard_->config().vocab_size;
  const std::size_t n_candidates = program_.n_candidates + 1;
  OutputHead head;
  head.lane = lane.idx;
  head.number = lane.step.number;
  const auto send = [&](std::uint32_t kind, const void* row, std::size_t n_bytes) {
    head.kind = kind;
    link_->send(FrameType::output,
                id_,
                std::as_bytes(std::span(&head, 1)),
                {static_cast<const std::byte*>(row), n_bytes});
  };
  for (std::uint32_t row = 0; row < lane.step.out_rows.size(); ++row) {
    head.row = row;
    const std::uint32_t flags = lane.step.out_flags[row];
    if ((flags & LUNA_OUT_LOGITS) != 0 && outputs.logits != nullptr)
      send(LUNA_OUT_LOGITS, outputs.logits + row * n_logits, n_logits * sizeof(float));
    if ((flags & LUNA_OUT_CANDIDATES) != 0 && outputs.candidates != nullptr)
      send(LUNA_OUT_CANDIDATES,
           outputs.candidates + row * n_candidates,
           n_candidates * sizeof(model::Candidate));
  }
}

void WorkerShard::finish(Lane& lane, const luna_step_result& result) {
  if (result.status >= 0) send_outputs(lane);
  Done done;
  done.lane = lane.idx;
  done.number = lane.step.number;
  done.status = result.status;
  done.busy_ns = result.busy_ns;
  done.wait_ns = result.wait_ns;
  if (result.status < 0 && result.message != nullptr) done.message = result.message;
  if (result.status >= 0) done.slice_masses = lane.slice_masses;
  const Bytes frame = encode_done(done);
  const std::lock_guard lock(mutex_);
  // Before the controller can use the lane again.
  lane.is_busy = false;
  --n_busy_;
  link_->send(FrameType::done, id_, frame);
  idle_.notify_all();
}

}  // namespace luna::cluster
