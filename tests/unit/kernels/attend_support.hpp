// A sequence with its KV, and attention over it: what the tests of attention and of KV share.
#pragma once

#include "kernel_support.hpp"

#include <algorithm>
#include <utility>

namespace luna::kernels {

inline float round_to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U;
  std::memcpy(&x, &bits, 4);
  return x;
}

/// What INT8 KV keeps of an element: its code, by the scale of its row.
struct Coded {
  float scale;
  float code;
};
inline Coded code_by_contract(const float* row, int n, int at) {
  float x_max = 0.0F;
  for (int i = 0; i < n; ++i) {
    x_max = std::max(x_max, std::fabs(row[i]));
  }
  const float scale = round_to_bf16(x_max / kKvCodeLimit);
  const float scaled = row[at] * (1.0F / scale);
  return {scale, std::nearbyint(std::clamp(scaled, -kKvCodeLimit, kKvCodeLimit))};
}

inline constexpr KvType kKvTypes[] = {KvType::bf16, KvType::int8};

/// A sequence with KV in shuffled blocks whose unwritten slots hold NaN.
struct Sequence {
  Sequence(const KernelSet& set, KvShape shape_, std::int64_t n, std::uint64_t salt)
      : shape(shape_),
        n_tokens(n),
        row(static_cast<std::size_t>(shape.n_kv_heads * shape.head_dim)),
        n_blocks(static_cast<std::size_t>((n + shape.block_tokens - 1) / shape.block_tokens)),
        pool((n_blocks + 1) * stride()) {
    Random random(salt);
    k = random.normals(static_cast<std::size_t>(n) * row);
    v = random.normals(static_cast<std::size_t>(n) * row);
    for (std::size_t i = 0; i < n_blocks; ++i) {
      table.push_back(static_cast<std::uint32_t>(n_blocks - i));  // block 0 of the pool stays NaN
    }
    for (std::int64_t t = 0; t < n; ++t) {
      const auto at = static_cast<std::size_t>(t) * row;
      set.kv_write({view(), t, k.data() + at, v.data() + at});
    }
  }
  std::size_t stride() const { return kv_block_bytes(shape); }
  KvView view() const { return {shape, pool.get(), stride(), table.data(), 0}; }
  /// An element as it is kept, without its scale; 1 is the scale of BF16.
  Coded kept(const std::vector<float>& of, std::int64_t t, int head, int d) const {
    const float* x = of.data() + static_cast<std::size_t>(t) * row + head * shape.head_dim;
    return shape.type == KvType::bf16 ? Coded{1.0F, round_to_bf16(x[d])}
                                      : code_by_contract(x, shape.head_dim, d);
  }
  float k_at(std::int64_t t, int head, int d) const {
    return kept(k, t, head, d).scale * kept(k, t, head, d).code;
  }
  float v_at(std::int64_t t, int head, int d) const {
    return kept(v, t, head, d).scale * kept(v, t, head, d).code;
  }

  KvShape shape;
  std::int64_t n_tokens;
  std::size_t row;
  std::size_t n_blocks;
  AlignedBytes pool;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<std::uint32_t> table;
};

struct Setting {
  std::int64_t window = 0;
  float softcap = 0.0F;
};

inline AttendArgs rows_of(const Sequence& s, const AlignedBytes& scratch, const Setting& setting) {
  AttendArgs args;
  args.kv = s.view();
  args.window = setting.window;
  args.softcap = setting.softcap;
  args.scale = 0.125F;
  args.scratch = scratch.get();
  return args;
}

/// Output of rows [first, first + n) for one KV head, taken `chunk` rows a call.
inline std::vector<float> attend_rows(const KernelSet& set,
                                      const Sequence& s,
                                      const std::vector<float>& q,  // [n_tokens, heads, head_dim]
                                      int heads,
                                      std::int64_t chunk,
                                      const Setting& setting) {
  const AlignedBytes scratch(attend_scratch_bytes(s.shape.head_dim));
  const std::int64_t q_row = std::int64_t{heads} * s.shape.head_dim;
  std::vector<float> out(q.size());
  for (std::int64_t t = 0; t < s.n_tokens; t += chunk) {
    AttendArgs args = rows_of(s, scratch, setting);
    args.group_heads = heads;
    args.first_position = t;
    args.n_rows = std::min(chunk, s.n_tokens - t);
    args.q = q.data() + t * q_row;
    args.q_stride = q_row;
    args.out = out.data() + t * q_row;
    args.out_stride = q_row;
    set.attend(args);
  }
  return out;
}

inline std::vector<std::pair<const KernelSet*, KvType>> sets_and_types() {
  std::vector<std::pair<const KernelSet*, KvType>> all;
  for (const KernelSet* set : kernel_sets()) {
    for (const KvType type : kKvTypes) {
      all.emplace_back(set, type);
    }
  }
  return all;
}

}  // namespace luna::kernels
