#include "core/cluster/remote_shard.hpp"

#include "core/base/assert.hpp"
#include "core/cluster/member.hpp"

#include <luna/plugin.hpp>

#include <atomic>
#include <cstring>
#include <utility>

namespace luna::cluster {

RemoteShard::RemoteShard(std::shared_ptr<Member> member,
                         std::uint32_t device_idx,
                         model::ShardOrder order)
    : member_(std::move(member)),
      device_idx_(device_idx),
      order_(std::move(order)),
      kv_(member_->link()) {}

RemoteShard::~RemoteShard() {
  // From here on nobody on the I/O thread knows it.
  member_->remove_shard(*this);
  member_->link().send(FrameType::unload, id_);
}

Result<std::unique_ptr<RemoteShard>> RemoteShard::plan(std::shared_ptr<Member> member,
                                                       std::uint32_t device_idx,
                                                       const model::ShardOrder& order) {
  auto shard = std::unique_ptr<RemoteShard>(new RemoteShard(std::move(member), device_idx, order));
  shard->id_ = shard->member_->add_shard(*shard);
  const Bytes plan = encode_plan({device_idx, order});
  LUNA_TRY(Answer answer, shard->member_->ask(FrameType::plan, shard->id_, plan));
  shard->memory_ = answer.memory;
  shard->address_ = std::move(answer.address);
  shard->slice_message_bytes_ = answer.slice_message_bytes;
  shard->slice_address_ = std::move(answer.slice_address);
  return shard;
}

Result<void> RemoteShard::pack(const model::LoadProgress& /*progress*/) {
  LUNA_TRY(const Answer answer, member_->ask(FrameType::pack, id_, {}));
  return {};
}

Result<void> RemoteShard::bind(std::uint32_t n_kv_blocks, const model::LinkTerms& terms) {
  const std::uint64_t step_bytes = step_bytes_max(order_.program, n_kv_blocks);
  if (step_bytes > kPayloadBytesMax) {
    return Error{Code::unsupported,
                 "steps of up to " + std::to_string(step_bytes) + " bytes for worker " +
                     member_->name() + ": at most " + std::to_string(kPayloadBytesMax) +
                     "; make them smaller by step_tokens_max, sequences_max or "
                     "context_tokens_max"};
  }
  LUNA_TRY(const Answer answer,
           member_->ask(FrameType::bind, id_, encode_bind({n_kv_blocks, terms})));
  memory_.kv = n_kv_blocks * memory_.kv_block;
  const model::ProgramOptions& program = order_.program;
  std::vector<Lane> lanes(program.n_lanes);
  outputs_.resize(program.n_lanes);
  for (std::uint32_t i = 0; i < program.n_lanes; ++i) {
    // The lane's number goes where a backend's own buffers would: to submit().
    shard_.binds.push_back({luna_bind{.slot = 0, .pad = 0, .buffer = i, .comm = nullptr}});
    if (!has_head()) continue;
    const std::size_t n_rows = program.limits.n_out_rows_max;
    // Not filled: pages that no step writes are never taken.
    lanes[i].logits.reset(new float[n_rows * order_.vocab_size]);
    lanes[i].candidates.reset(new model::Candidate[n_rows * (program.n_candidates + 1)]);
    outputs_[i] = {lanes[i].logits.get(), lanes[i].candidates.get()};
  }
  shard_.device_name = member_->device(device_idx_).name();
  shard_.attention = attention();
  shard_.backend = &backend();
  shard_.executable = this;
  if (answer.kv) LUNA_TRY(open_kv(*answer.kv));
  const std::lock_guard lock(mutex_);
  lanes_ = std::move(lanes);
  return {};
}

/// Devices that have shown that they compute alike attend alike, whatever processors they are.
std::string RemoteShard::attention() const {
  const DeviceOffer& offer = member_->join().devices[device_idx_];
  for (const Fingerprint& shown : offer.fingerprints)
    if (shown.numerics == order_.program.numerics && shown.kv_dtype == order_.program.kv_dtype)
      return offer.backend + ": computes " + std::to_string(shown.hash);
  return offer.backend + ": " + offer.info.detail;
}

Result<void> RemoteShard::open_kv(const luna_kv_layout& layout) {
  const std::uint64_t block_bytes = memory_.kv_block;
  if (layout.n_layers == 0 || block_bytes == 0 || block_bytes % layout.n_layers != 0) {
    return Error{Code::corrupt,
                 "worker " + member_->name() + ": KV blocks of " + std::to_string(block_bytes) +
                     " bytes with " + std::to_string(layout.n_layers) + " layers"};
  }
  // What does not fit a message stays where it is.
  if (block_bytes / layout.n_layers > kKvLayerBytesMax) return {};
  kv_.open(id_, layout, block_bytes);
  shard_.kv.table = &kv_blocks();
  shard_.kv.device = this;
  shard_.kv.layout = layout;
  shard_.kv.block_bytes = block_bytes;
  shard_.kv.first_layer = order_.layers[order_.rank].first;
  return {};
}

void RemoteShard::abort() {
  member_->link().send(FrameType::abort, id_);
}

Result<void> RemoteShard::open_slices(const model::SliceTerms& terms) {
  LUNA_TRY(const Answer answer,
           member_->ask(FrameType::slices_open, id_, encode_slice_terms(terms)));
  return {};
}

void RemoteShard::abort_slices(std::uint32_t place) {
  member_->link().send(FrameType::slices_abort, id_, encode_slice_place(place));
}

void RemoteShard::close_slices(std::uint32_t place) {
  member_->link().send(FrameType::slices_close, id_, encode_slice_place(place));
}

void RemoteShard::on_lost(std::function<void()> told) {
  const std::lock_guard lock(told_mutex_);
  told_ = std::move(told);
}

// Only what the engine calls: everything else about this device happens in its own process.
const luna_backend_if& RemoteShard::backend() {
  static const luna_backend_if table = [] {
    luna_backend_if made{};
    made.head.struct_size = sizeof(made);
    made.head.ext = [](void*, const char*) -> const void* { return nullptr; };
    made.submit = [](void* shard, const luna_step* step, luna_err* err) {
      return static_cast<RemoteShard*>(shard)->submit(*step, err);
    };
    return made;
  }();
  return table;
}

const luna_kv_blocks_if& RemoteShard::kv_blocks() {
  static constexpr luna_kv_blocks_if kTable = {
      .struct_size = sizeof(luna_kv_blocks_if),
      .pad = 0,
      .kv_export =
          [](void* shard, const luna_kv_part* part, void* bytes, luna_err* err) {
            RemoteKv& kv = static_cast<RemoteShard*>(shard)->kv_;
            const auto copied = kv.copy_out(*part, static_cast<std::byte*>(bytes));
            return copied ? LUNA_OK : report(err, copied.error());
          },
      .kv_import =
          [](void* shard, const luna_kv_part* part, const void* bytes, luna_err* err) {
            RemoteKv& kv = static_cast<RemoteShard*>(shard)->kv_;
            const auto copied = kv.copy_in(*part, static_cast<const std::byte*>(bytes));
            return copied ? LUNA_OK : report(err, copied.error());
          }};
  return kTable;
}

luna_status RemoteShard::submit(const luna_step& step, luna_err* err) {
  const auto lane_idx = static_cast<std::uint32_t>(step.binds[0].buffer);
  std::uint64_t number = 0;
  Lane* lane = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return report(err, *lost_);
    lane = &lanes_[lane_idx];
    LUNA_VERIFY(!lane->is_busy);
    lane->is_busy = true;
    number = lane->number = next_number_++;
    lane->n_out_rows = step.n_out_rows;
    lane->n_slices = step.n_slices;
    lane->slice_masses = step.slice_masses;
    lane->done = step.done;
    lane->done_context = step.done_context;
  }
  encode_step(step, lane_idx, number, order_.program.kv_block_tokens, lane->frame);
  // Where it cannot be sent, the loss of the connection ends the step.
  member_->link().send(FrameType::step, id_, lane->frame);
  return LUNA_OK;
}

Result<void> RemoteShard::take_output(const Output& output) {
  const OutputHead& head = output.head;
  const std::lock_guard lock(mutex_);
  const bool is_logits = head.kind == LUNA_OUT_LOGITS;
  const std::size_t row_bytes = is_logits
                                    ? order_.vocab_size * sizeof(float)
                                    : (order_.program.n_candidates + 1) * sizeof(model::Candidate);
  const bool is_known = has_head() && (is_logits || head.kind == LUNA_OUT_CANDIDATES) &&
                        head.lane < lanes_.size() && output.bytes.size() == row_bytes;
  if (!is_known) return Error{Code::corrupt, "a row that no step asked for"};
  const Lane& lane = lanes_[head.lane];
  if (!lane.is_busy || lane.number != head.number || head.row >= lane.n_out_rows)
    return Error{Code::corrupt, "a row of a step that is not in flight"};
  std::byte* const rows = is_logits ? reinterpret_cast<std::byte*>(lane.logits.get())
                                    : reinterpret_cast<std::byte*>(lane.candidates.get());
  std::memcpy(rows + head.row * row_bytes, output.bytes.data(), row_bytes);
  return {};
}

Result<void> RemoteShard::take_done(const Done& done) {
  Lane* lane = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (done.lane < lanes_.size()) lane = &lanes_[done.lane];
    if (lane == nullptr || !lane->is_busy || lane->number != done.number)
      return Error{Code::corrupt, "the end of a step that is not in flight"};
    if (done.status >= 0 && done.slice_masses.size() != lane->n_slices)
      return Error{Code::corrupt, "a step's attention to other slices than it has"};
    add_masses(*lane, done);
  }
  luna_step_result result{};
  result.struct_size = sizeof(result);
  result.status = done.status;
  result.busy_ns = done.busy_ns;
  result.wait_ns = done.wait_ns;
  result.message = done.message.c_str();
  finish(*lane, result);
  return {};
}

/// Devices of the model add theirs at the same time.
void RemoteShard::add_masses(const Lane& lane, const Done& done) {
  if (done.status < 0 || lane.slice_masses == nullptr) return;
  for (std::uint32_t i = 0; i < lane.n_slices; ++i)
    std::atomic_ref(lane.slice_masses[i])
        .fetch_add(done.slice_masses[i], std::memory_order_relaxed);
}

void RemoteShard::finish(Lane& lane, const luna_step_result& result) {
  void (*done)(void*, const luna_step_result*) = nullptr;
  void* context = nullptr;
  {
    const std::lock_guard lock(mutex_);
    lane.is_busy = false;  // the next step may take it as soon as this one knows
    done = lane.done;
    context = lane.done_context;
  }
  done(context, &result);
}

void RemoteShard::lose(const Error& why) {
  kv_.lose(why);
  std::vector<Lane*> busy;
  {
    const std::lock_guard lock(mutex_);
    lost_ = why;
    is_lost_ = true;
    for (Lane& lane : lanes_)
      if (lane.is_busy) busy.push_back(&lane);
  }
  luna_step_result result{};
  result.struct_size = sizeof(result);
  result.status = LUNA_UNAVAILABLE;
  result.message = why.message().c_str();
  for (Lane* lane : busy)
    finish(*lane, result);
  const std::lock_guard lock(told_mutex_);
  if (told_) told_();
}

}  // namespace luna::cluster
