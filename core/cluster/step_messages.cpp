#include "core/cluster/step_messages.hpp"

#include "core/base/assert.hpp"
#include "core/base/units.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

namespace luna::cluster {
namespace {

/// Blocks that the longest sequence of a step has.
std::uint32_t n_blocks_used(const luna_step& step, std::uint32_t kv_block_tokens) {
  std::uint32_t n_used = 1;
  for (std::uint32_t seq = 0; seq < step.n_seqs; ++seq) {
    const std::uint32_t last_row = step.seq_first_row[seq + 1];
    if (last_row == step.seq_first_row[seq]) continue;
    const std::uint32_t n_pruned = step.seq_prunes != nullptr ? step.seq_prunes[seq].n_pruned : 0;
    const std::uint32_t n_slots = step.positions[last_row - 1] + 1 - n_pruned;
    n_used = std::max(n_used, div_ceil(n_slots, kv_block_tokens));
  }
  return std::min(n_used, step.block_table_stride);
}

void put_slices(WireWriter& writer,
                const luna_step& step,
                [[maybe_unused]] std::uint32_t kv_block_tokens) {
  for (std::uint32_t i = 0; i < step.n_slices; ++i) {
    const luna_slice& slice = step.slices[i];
    LUNA_ASSERT(slice.blocks ==
                step.block_tables + std::size_t{slice.seq} * step.block_table_stride +
                    slice.first_partition * (LUNA_PARTITION_TOKENS / kv_block_tokens));
    const StepSlice sent{slice.seq, slice.peer, slice.first_partition, slice.n_partitions};
    writer.array(&sent, 1);
  }
}

/// They ascend and do not overlap.
bool slices_ascend(const Step& step) {
  const std::size_t n_seqs = step.seq_first_row.size() - 1;
  for (std::size_t i = 0; i < step.slices.size(); ++i) {
    const StepSlice& slice = step.slices[i];
    if (slice.seq >= n_seqs || slice.n_partitions == 0 || slice.first_partition > kStepItemsMax ||
        slice.n_partitions > kStepItemsMax)
      return false;
    if (i == 0 || step.slices[i - 1].seq < slice.seq) continue;
    const StepSlice& before = step.slices[i - 1];
    if (before.seq > slice.seq ||
        before.first_partition + before.n_partitions > slice.first_partition)
      return false;
  }
  return true;
}

}  // namespace

void encode_step(const luna_step& step,
                 std::uint32_t lane,
                 std::uint64_t number,
                 std::uint32_t kv_block_tokens,
                 Bytes& bytes) {
  bytes.clear();
  WireWriter writer(bytes);
  const std::uint32_t stride = n_blocks_used(step, kv_block_tokens);
  const bool prunes = step.seq_prunes != nullptr;
  writer.number(lane);
  writer.number(number);
  writer.number(step.n_rows);
  writer.number(step.n_seqs);
  writer.number(step.n_out_rows);
  writer.number(stride);
  writer.number(step.n_kv_copies);
  writer.number(step.n_slices);
  writer.flag(prunes);
  writer.array(step.token_ids, step.n_rows);
  writer.array(step.positions, step.n_rows);
  writer.array(step.seq_first_row, std::size_t{step.n_seqs} + 1);
  for (std::size_t seq = 0; seq < step.n_seqs; ++seq)
    writer.array(step.block_tables + seq * step.block_table_stride, stride);
  writer.array(step.kv_copies, step.n_kv_copies);
  writer.array(step.out_rows, step.n_out_rows);
  writer.array(step.out_flags, step.n_out_rows);
  if (prunes) writer.array(step.seq_prunes, step.n_seqs);
  put_slices(writer, step, kv_block_tokens);
}

Result<void> parse_step(std::span<const std::byte> payload, Step& step) {
  WireReader reader(payload);
  step.lane = reader.number<std::uint32_t>();
  step.number = reader.number<std::uint64_t>();
  const std::uint32_t n_rows = reader.count(kStepItemsMax);
  const std::uint32_t n_seqs = reader.count(kStepItemsMax);
  const std::uint32_t n_out_rows = reader.count(kStepItemsMax);
  step.block_table_stride = reader.count(kStepItemsMax);
  const std::uint32_t n_kv_copies = reader.count(kStepItemsMax);
  const std::uint32_t n_slices = reader.count(kStepItemsMax);
  const bool prunes = reader.flag();
  reader.array(step.token_ids, n_rows);
  reader.array(step.positions, n_rows);
  reader.array(step.seq_first_row, std::uint64_t{n_seqs} + 1);
  reader.array(step.block_tables, std::uint64_t{n_seqs} * step.block_table_stride);
  reader.array(step.kv_copies, n_kv_copies);
  reader.array(step.out_rows, n_out_rows);
  reader.array(step.out_flags, n_out_rows);
  reader.array(step.seq_prunes, prunes ? n_seqs : 0);
  reader.array(step.slices, n_slices);
  if (const auto whole = reader.finish(); !whole) return whole.error().in("step");
  const bool rows_are_split =
      n_rows > 0 && n_seqs > 0 && step.block_table_stride > 0 && step.seq_first_row.front() == 0 &&
      step.seq_first_row.back() == n_rows && std::ranges::is_sorted(step.seq_first_row);
  if (!rows_are_split) return Error{Code::corrupt, "step: rows that belong to no sequence"};
  const bool outs_ascend =
      std::ranges::adjacent_find(step.out_rows, std::greater_equal<>()) == step.out_rows.end() &&
      (step.out_rows.empty() || step.out_rows.back() < n_rows);
  if (!outs_ascend) return Error{Code::corrupt, "step: wanted rows that it does not have"};
  if (!slices_ascend(step)) return Error{Code::corrupt, "step: slices of no sequence"};
  return {};
}

std::uint64_t step_bytes_max(const model::ProgramOptions& program, std::uint32_t n_kv_blocks) {
  const model::StepLimits& limits = program.limits;
  const std::uint64_t head = 64;
  std::uint64_t stride = div_ceil(limits.n_positions_max, program.kv_block_tokens);
  std::uint64_t slice_bytes = 0;  // of a sequence, which may be longer than the shard has blocks
  if (program.n_slice_peers > 0)
    slice_bytes = div_ceil(limits.n_positions_max, LUNA_PARTITION_TOKENS) * sizeof(StepSlice);
  else
    stride = std::min<std::uint64_t>(stride, n_kv_blocks);
  const std::uint64_t per_seq = sizeof(std::uint32_t) * (stride + 1) + sizeof(luna_seq_prune) +
                                sizeof(luna_kv_copy) + slice_bytes;
  return head + std::uint64_t{limits.n_rows_max} * 2 * sizeof(std::uint32_t) +
         std::uint64_t{limits.n_seqs_max} * per_seq +
         std::uint64_t{limits.n_out_rows_max} * 2 * sizeof(std::uint32_t);
}

Result<Output> parse_output(std::span<const std::byte> payload) {
  Output output;
  if (payload.size() < sizeof(output.head)) return Error{Code::corrupt, "output: it is cut off"};
  std::memcpy(&output.head, payload.data(), sizeof(output.head));
  output.bytes = payload.subspan(sizeof(output.head));
  return output;
}

Bytes encode_done(const Done& done) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(done.lane);
  writer.number(done.number);
  writer.number(static_cast<std::int32_t>(done.status));
  writer.number(done.busy_ns);
  writer.number(done.wait_ns);
  writer.text(std::string_view(done.message).substr(0, kMessageBytesMax));
  writer.number(static_cast<std::uint32_t>(done.slice_masses.size()));
  writer.array(done.slice_masses.data(), done.slice_masses.size());
  return bytes;
}

Result<Done> parse_done(std::span<const std::byte> payload) {
  WireReader reader(payload);
  Done done;
  done.lane = reader.number<std::uint32_t>();
  done.number = reader.number<std::uint64_t>();
  done.status = reader.number<std::int32_t>();
  done.busy_ns = reader.number<std::uint64_t>();
  done.wait_ns = reader.number<std::uint64_t>();
  done.message = reader.text(kMessageBytesMax);
  const std::uint32_t n_slices = reader.count(kStepItemsMax);
  reader.array(done.slice_masses, n_slices);
  if (const auto whole = reader.finish(); !whole) return whole.error().in("done");
  return done;
}

}  // namespace luna::cluster
