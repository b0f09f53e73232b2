// Where the rows, the scratch and the states of the kernels lie; and what is joined outside of
// them.
#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace luna::kernels {
namespace {

constexpr std::int64_t round_up(std::int64_t n, std::int64_t quantum) {
  return (n + quantum - 1) / quantum * quantum;
}

/// Elements between rows of `bytes_each`: whole lines, and no multiple of 1024 bytes, because rows
/// that far apart share sets of the L1 cache.
std::int64_t row_stride(std::int64_t n, std::int64_t bytes_each) {
  std::int64_t bytes = round_up(n * bytes_each, 64);
  if (bytes % 1024 == 0) {
    bytes += 64;
  }
  return bytes / bytes_each;
}

/// Everything but where it lies.
QuantizedRows quantized_shape(std::int64_t n_rows, std::int64_t k, std::int64_t group, int bits) {
  QuantizedRows rows;
  rows.n_rows = n_rows;
  rows.k = k;
  rows.group = group;
  rows.bits = bits;
  rows.n_groups = (k + group - 1) / group;
  rows.code_stride = row_stride(k, has_byte_codes(bits, group) ? 1 : 2);
  rows.group_stride = round_up(n_rows, 16);
  rows.sum_stride = group == 256 ? round_up(k / 16, 16) : 0;
  return rows;
}

}  // namespace

QuantizedRows place_quantized_rows(
    void* memory, std::int64_t n_rows, std::int64_t k, std::int64_t group, int bits) {
  QuantizedRows rows = quantized_shape(n_rows, k, group, bits);
  auto* p = static_cast<std::byte*>(memory);
  if (has_byte_codes(bits, group)) {
    rows.bytes = reinterpret_cast<std::int8_t*>(p);
    p += n_rows * rows.code_stride;
    rows.sums = reinterpret_cast<std::int32_t*>(p);
    p += rows.n_groups * rows.group_stride * 4;
  } else {
    rows.codes = reinterpret_cast<std::int16_t*>(p);
    p += n_rows * rows.code_stride * 2;
  }
  rows.scale = reinterpret_cast<float*>(p);
  p += rows.n_groups * rows.group_stride * 4;
  rows.scaled_sum = reinterpret_cast<float*>(p);
  p += rows.n_groups * rows.group_stride * 4;
  rows.sums16 = group == 256 ? reinterpret_cast<std::int32_t*>(p) : nullptr;
  return rows;
}

std::size_t quantized_rows_bytes(std::int64_t n_rows,
                                 std::int64_t k,
                                 std::int64_t group,
                                 int bits) {
  const QuantizedRows rows = quantized_shape(n_rows, k, group, bits);
  const bool is_short = has_byte_codes(bits, group);
  return static_cast<std::size_t>(n_rows * rows.code_stride * (is_short ? 1 : 2) +
                                  rows.n_groups * rows.group_stride * (is_short ? 12 : 8) +
                                  n_rows * rows.sum_stride * 4);
}

DenseRows place_dense_rows(void* memory, std::int64_t n_rows, std::int64_t k) {
  DenseRows rows;
  rows.n_rows = n_rows;
  rows.k = k;
  rows.k_padded = round_up(k, 32);
  rows.stride = row_stride(rows.k_padded, 4);
  rows.values = static_cast<float*>(memory);
  return rows;
}

std::size_t dense_rows_bytes(std::int64_t n_rows, std::int64_t k) {
  return static_cast<std::size_t>(n_rows * row_stride(round_up(k, 32), 4) * 4);
}

std::size_t linear_scratch_bytes(const PackedForm& form) {
  // shared/linear.inl, place_unpacked(): words, scales, sub-offsets of at most two strips.
  const auto segment = static_cast<std::size_t>(form.form.segment);
  // amx/linear_tiles.inl, place_tile_scratch(): stored tiles, left sides, right sides, sums.
  const std::size_t tiles = 4 * 1024 + 32 * 2 * segment + 48 * segment + (segment / 32 + 1) * 128;
  if (form.is_dense()) {
    return tiles;  // shared/dense_pairs.inl needs less: BF16 of two strips
  }
  const auto group = static_cast<std::size_t>(form.scale_group);
  return std::max(tiles, 2 * (segment * 32 + (segment / group + 1) * 128 + segment / 16 * 64));
}

std::size_t attend_scratch_bytes(int head_dim) {
  // shared/attend_panel.inl, place_attend_memory(); BF16 values take half of it.
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t floats =
      kAttendTogetherQueries * (kQueryTerms * dim + kPartitionTokens +
                                kProbabilityTerms * kPartitionTokens + 33 * (dim + 16)) +
      16 * dim;
  return floats * sizeof(float);
}

int cover_partitions(std::int64_t first_partition, std::int64_t n_partitions, TreeNode* nodes) {
  int n_nodes = 0;
  std::int64_t at = first_partition;
  const std::int64_t end = first_partition + n_partitions;
  while (at < end) {
    int level = 0;
    while (level < 30 && at % (std::int64_t{2} << level) == 0 &&
           at + (std::int64_t{2} << level) <= end) {
      ++level;
    }
    nodes[n_nodes++] = {level, static_cast<std::int32_t>(at >> level)};
    at += std::int64_t{1} << level;
  }
  return n_nodes;
}

void move_kv(const KvView& kv, int kv_head, std::int64_t from, std::int64_t to) {
  const KvShape& shape = kv.shape;
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto tokens = static_cast<std::size_t>(shape.block_tokens);
  const auto slot_of = [&](std::int64_t position) {
    return static_cast<std::size_t>(position) % tokens;
  };
  const std::size_t a = slot_of(from);
  const std::size_t b = slot_of(to);
  const std::byte* source = kv_head_at(kv, kv_head, from);
  std::byte* target = kv_head_at(kv, kv_head, to);
  const std::size_t v = kv_codes_bytes(shape);
  if (shape.type == KvType::bf16) {
    for (std::size_t d = 0; d < dim; d += 2) {  // a pair of K
      std::memcpy(target + (b / 16 * dim + d) * 32 + b % 16 * 4,
                  source + (a / 16 * dim + d) * 32 + a % 16 * 4,
                  4);
    }
    for (std::size_t d = 0; d < dim; ++d) {
      std::memcpy(target + v + (b / 2 * dim + d) * 4 + b % 2 * 2,
                  source + v + (a / 2 * dim + d) * 4 + a % 2 * 2,
                  2);
    }
    return;
  }
  for (std::size_t d = 0; d < dim; ++d) {
    target[(b / 16 * dim + d) * 16 + b % 16] = source[(a / 16 * dim + d) * 16 + a % 16];
  }
  std::memcpy(target + v + b * dim, source + v + a * dim, dim);
  std::memcpy(target + 2 * v + b * 2, source + 2 * v + a * 2, 2);
  std::memcpy(target + 2 * v + (tokens + b) * 2, source + 2 * v + (tokens + a) * 2, 2);
}

float log_of_sum(float max, float sum) {
  if (sum == 0.0F) {
    return -std::numeric_limits<float>::infinity();
  }
  return static_cast<float>(static_cast<double>(max) + std::log(static_cast<double>(sum)));
}

int merge_logits(
    const LogitsState* chunks, int n_chunks, int k, Candidate* candidates, float* log_sum_exp) {
  float top = -std::numeric_limits<float>::infinity();
  for (int c = 0; c < n_chunks; ++c) {
    top = chunks[c].max > top ? chunks[c].max : top;
  }
  double sum = 0.0;
  int n = 0;
  for (int c = 0; c < n_chunks; ++c) {
    if (chunks[c].max > -std::numeric_limits<float>::infinity()) {
      sum += static_cast<double>(chunks[c].sum) *
             std::exp(static_cast<double>(chunks[c].max) - static_cast<double>(top));
    }
    for (int i = 0; i < chunks[c].n_candidates; ++i) {
      const Candidate& one = chunks[c].candidates[i];
      if (n == k && !(one.logit > candidates[n - 1].logit)) {
        break;
      }
      int at = n < k ? n++ : n - 1;
      for (; at > 0 && one.logit > candidates[at - 1].logit; --at) {
        candidates[at] = candidates[at - 1];
      }
      candidates[at] = one;
    }
  }
  *log_sum_exp = static_cast<float>(static_cast<double>(top) + std::log(sum));
  return n;
}

}  // namespace luna::kernels
