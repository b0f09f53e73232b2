// Attention: every set against the contract written out, prefill against decode, whole against
// sliced, stale memory, windows, and an FP64 reference.
#include "attend_support.hpp"

#include <gtest/gtest.h>

namespace luna::kernels {
namespace {

struct State {
  float max = 0.0F;
  float sum = 0.0F;
  std::vector<float> out;
};

float exp_by_contract(float x) {
  x = x * kLog2E;
  x = x < kExp2Min ? kExp2Min : x > kExp2Max ? kExp2Max : x;
  const float n = std::nearbyint(x);
  const float f = x - n;
  float y = kExp2Coefficients[5];
  for (int i = 4; i >= 0; --i) {
    y = std::fma(y, f, kExp2Coefficients[i]);
  }
  y = std::fma(y, f, 1.0F);
  return std::ldexp(y, static_cast<int>(n));
}

/// acc + step sums of 32 products, the terms of `a` one after the other.
float chain(const std::vector<std::vector<float>>& a_terms, const std::vector<float>& b) {
  float acc = 0.0F;
  for (std::size_t i = 0; i < b.size(); i += 32) {
    for (const auto& a : a_terms) {
      float chains[2] = {0.0F, 0.0F};
      for (std::size_t j = i; j < i + 32; ++j) {
        chains[j % 2] = std::fma(a[j], b[j], chains[j % 2]);
      }
      acc = acc + (chains[0] + chains[1]);
    }
  }
  return acc + 0.0F;
}
std::vector<std::vector<float>> split(const std::vector<float>& x, int n_terms) {
  std::vector<std::vector<float>> terms(static_cast<std::size_t>(n_terms));
  for (float rest : x) {
    for (auto& term : terms) {
      term.push_back(round_to_bf16(rest));
      rest = rest - term.back();
    }
  }
  return terms;
}

State partition_by_contract(const Sequence& s,
                            const std::vector<float>& q,
                            std::int64_t position,
                            std::int64_t partition,
                            const Setting& setting) {
  const int head_dim = s.shape.head_dim;
  State state;
  std::vector<float> scores(kPartitionTokens, -INFINITY);
  const std::int64_t low =
      setting.window == 0 ? 0 : std::max<std::int64_t>(0, position - setting.window + 1);
  state.max = -INFINITY;
  for (std::int64_t i = 0; i < kPartitionTokens; ++i) {
    const std::int64_t t = partition * kPartitionTokens + i;
    if (t < low || t > position) {
      continue;
    }
    std::vector<float> k;
    for (int d = 0; d < head_dim; ++d) {
      k.push_back(s.kept(s.k, t, 0, d).code);
    }
    scores[static_cast<std::size_t>(i)] =
        chain(split(q, kQueryTerms), k) * (s.kept(s.k, t, 0, 0).scale * 0.125F);
    state.max = std::max(state.max, scores[static_cast<std::size_t>(i)]);
  }
  if (state.max == -INFINITY) {
    return state;
  }
  std::vector<float> p;
  float lanes[16] = {};
  for (std::size_t i = 0; i < kPartitionTokens; ++i) {
    p.push_back(scores[i] == -INFINITY ? 0.0F : exp_by_contract(scores[i] - state.max));
    lanes[i % 16] = lanes[i % 16] + p.back();
  }
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) {
      lanes[i] = lanes[i] + lanes[i + width];
    }
  }
  state.sum = lanes[0];
  for (std::size_t i = 0; i < kPartitionTokens; ++i) {
    const std::int64_t t = partition * kPartitionTokens + static_cast<std::int64_t>(i);
    p[i] = t < s.n_tokens ? p[i] * s.kept(s.v, t, 0, 0).scale : p[i];
  }
  const auto terms = split(p, kProbabilityTerms);
  for (int d = 0; d < head_dim; ++d) {
    std::vector<float> v;
    for (std::int64_t i = 0; i < kPartitionTokens; ++i) {
      const std::int64_t t = partition * kPartitionTokens + i;
      v.push_back(t < s.n_tokens ? s.kept(s.v, t, 0, d).code : 0.0F);
    }
    state.out.push_back(chain(terms, v));
  }
  return state;
}

/// The canonical tree, as a recursion over aligned ranges of partitions.
State tree_by_contract(const std::vector<State>& leaves, std::size_t first, std::size_t width) {
  if (first >= leaves.size()) {
    return {};
  }
  if (width == 1) {
    return leaves[first];
  }
  const State a = tree_by_contract(leaves, first, width / 2);
  const State b = tree_by_contract(leaves, first + width / 2, width / 2);
  if (a.sum == 0.0F || b.sum == 0.0F) {
    return a.sum == 0.0F ? b : a;
  }
  State r;
  r.max = std::max(a.max, b.max);
  const float wa = exp_by_contract(a.max - r.max);
  const float wb = exp_by_contract(b.max - r.max);
  r.sum = std::fma(b.sum, wb, a.sum * wa);
  for (std::size_t d = 0; d < a.out.size(); ++d) {
    r.out.push_back(std::fma(b.out[d], wb, a.out[d] * wa));
  }
  return r;
}

TEST(Attend, EverySetFollowsTheContractToTheBit) {
  set_thread_float_mode();
  for (const auto& [type, setting] : {std::pair{KvType::bf16, Setting{}},
                                      {KvType::bf16, Setting{300, 0.0F}},
                                      {KvType::int8, Setting{300, 0.0F}}}) {
    for (const KernelSet* set : kernel_sets()) {
      const Sequence s(*set, {1, 64, 32, type}, 1100, 53);
      const auto q = Random(59).normals(1100 * 64);
      const auto out = attend_rows(*set, s, q, 1, 37, setting);
      for (const std::int64_t position : {0, 1, 31, 255, 256, 300, 777, 1099}) {
        const auto* row = q.data() + position * 64;
        std::vector<State> leaves;
        for (std::int64_t p = 0; p <= position / kPartitionTokens; ++p) {
          leaves.push_back(partition_by_contract(s, {row, row + 64}, position, p, setting));
        }
        const State root = tree_by_contract(leaves, 0, 8);
        for (std::size_t d = 0; d < 64; ++d) {
          const float expected = root.out[d] * (1.0F / root.sum);
          ASSERT_EQ(out[static_cast<std::size_t>(position) * 64 + d], expected)
              << set->name << " position " << position << " window " << setting.window << " seed "
              << test_seed();
        }
      }
    }
  }
}

TEST(Attend, APrefillRowEqualsTheDecodedRowAtAnyChunkBorder) {
  set_thread_float_mode();
  for (const auto& [heads, head_dim, type] : {std::tuple{1, 32, KvType::bf16},
                                              {3, 64, KvType::bf16},
                                              {5, 96, KvType::bf16},
                                              {9, 256, KvType::bf16},
                                              {4, 128, KvType::bf16},
                                              {6, 64, KvType::bf16},
                                              {2, 96, KvType::int8},
                                              {3, 64, KvType::int8},
                                              {4, 128, KvType::int8},
                                              {7, 32, KvType::int8},
                                              {1, 256, KvType::int8}}) {
    for (const Setting& setting : {Setting{}, Setting{100, 0.0F}, Setting{0, 20.0F}}) {
      std::vector<float> first;
      const std::int64_t n = head_dim > 96 ? 70 : 290;
      for (const KernelSet* set : kernel_sets()) {
        const Sequence s(*set, {1, head_dim, 64, type}, n, 61);
        const auto q = Random(67).normals(static_cast<std::size_t>(n * heads * head_dim));
        for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{7}, std::int64_t{64}, n}) {
          const auto out = attend_rows(*set, s, q, heads, chunk, setting);
          if (first.empty()) {
            first = out;
          }
          ASSERT_EQ(0, std::memcmp(first.data(), out.data(), out.size() * 4))
              << set->name << " chunk " << chunk << " heads " << heads << " head_dim " << head_dim
              << " seed " << test_seed();
        }
      }
    }
  }
}

TEST(Attend, QueriesRoundAlikeAtTiesDenormalsAndLargeNumbers) {
  set_thread_float_mode();
  constexpr std::int64_t kTokens = 70;
  Random random(139);
  std::vector<float> q(static_cast<std::size_t>(kTokens) * 3 * 64);
  for (float& x : q) {
    const auto kind = random.integer(0, 5);
    std::uint32_t bits = static_cast<std::uint32_t>(random.integer(0, 0x7FFF)) << 16;
    bits = (bits & 0x007F0000U) | (kind == 0   ? 0x0U           // below the smallest number
                                   : kind == 1 ? 0x00800000U    // the smallest numbers
                                   : kind == 2 ? 0x41800000U    // 16 .. 32
                                               : 0x3E800000U);  // 0.25 .. 0.5
    bits |= kind % 2 == 0 ? 0x8000U : static_cast<std::uint32_t>(random.integer(0, 0xFFFF));
    bits |= static_cast<std::uint32_t>(random.integer(0, 1)) << 31;
    std::memcpy(&x, &bits, sizeof x);
  }
  for (const KvType type : kKvTypes) {
    std::vector<float> first;
    for (const KernelSet* set : kernel_sets()) {
      const Sequence s(*set, {1, 64, 32, type}, kTokens, 149);
      const auto out = attend_rows(*set, s, q, 3, kTokens, {});
      if (first.empty()) {
        first = out;
      }
      ASSERT_EQ(0, std::memcmp(first.data(), out.data(), out.size() * 4))
          << set->name << " seed " << test_seed();
    }
  }
}

TEST(Attend, WhatComesNextChangesNoBit) {
  set_thread_float_mode();
  for (const auto& [set, type] : sets_and_types()) {
    for (const std::int64_t n : {1, 31, 33, 96, 257, 600}) {
      const Sequence s(*set, {2, 64, 32, type}, n, 151);
      const Sequence other(*set, {2, 64, 32, type}, 40, 157);
      const auto q = Random(163).normals(3 * 64);
      const AlignedBytes scratch(attend_scratch_bytes(64));
      AttendArgs next = rows_of(other, scratch, {5, 0.0F});
      next.group_heads = 3;
      next.first_position = 39;
      next.n_rows = 1;
      std::vector<float> out[2];
      for (int i = 0; i < 2; ++i) {
        AttendArgs args = rows_of(s, scratch, {});
        args.group_heads = 3;
        args.first_position = n - 1;
        args.n_rows = 1;
        args.q = q.data();
        args.q_stride = 192;
        out[i].resize(192);
        args.out = out[i].data();
        args.out_stride = 192;
        args.next = i == 0 ? nullptr : &next;
        set->attend(args);
      }
      EXPECT_EQ(0, std::memcmp(out[0].data(), out[1].data(), 192 * 4)) << set->name << " " << n;
    }
  }
}

/// Writes a row whose V is not finite at `position`; what reads it is lost, nothing else may be.
void spoil_value(const KernelSet& set, Sequence& s, std::int64_t position, float value) {
  const auto at = static_cast<std::size_t>(position) * s.row;
  std::fill_n(s.v.begin() + static_cast<std::ptrdiff_t>(at), s.row, value);
  set.kv_write({s.view(), position, s.k.data() + at, s.v.data() + at});
}

TEST(Attend, WhatARowDoesNotSeeCannotReachIt) {
  set_thread_float_mode();
  constexpr std::int64_t kTokens = 80;
  for (const int heads : {1, 2, 3, 4, 5}) {
    for (const std::int64_t window : {0, 5, 40}) {
      for (const auto& [set, type] : sets_and_types()) {
        const auto q = Random(101).normals(static_cast<std::size_t>(kTokens * heads * 32));
        const Sequence s(*set, {1, 32, 32, type}, kTokens, 103);
        const auto clean = attend_rows(*set, s, q, heads, kTokens, {window, 0.0F});
        for (const std::int64_t spoilt : {0, 13, 31, 32, 47, 79}) {
          for (const float value : {INFINITY, -INFINITY, NAN}) {
            Sequence other(*set, {1, 32, 32, type}, kTokens, 103);
            spoil_value(*set, other, spoilt, value);
            const auto out = attend_rows(*set, other, q, heads, kTokens, {window, 0.0F});
            for (std::int64_t row = 0; row < kTokens; ++row) {
              const bool sees = row >= spoilt && (window == 0 || row < spoilt + window);
              const auto n = static_cast<std::size_t>(heads * 32);
              const auto at = static_cast<std::size_t>(row) * n;
              if (!sees) {
                ASSERT_EQ(0, std::memcmp(clean.data() + at, out.data() + at, n * 4))
                    << set->name << " row " << row << " spoilt at " << spoilt << " by " << value
                    << " heads " << heads << " window " << window;
              } else {
                ASSERT_FALSE(std::isfinite(out[at])) << set->name << " row " << row;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Attend, SlicedEqualsWholeAtEveryTreeBorder) {
  set_thread_float_mode();
  const std::int64_t n = 1500;  // partitions 0..5
  for (const KernelSet* set : kernel_sets()) {
    const KvType type = set == kernel_sets().front() ? KvType::int8 : KvType::bf16;
    const Sequence s(*set, {2, 64, 32, type}, n, 71);
    const auto q = Random(73).normals(3 * 64);
    const AlignedBytes scratch(attend_scratch_bytes(64));
    AttendArgs args = rows_of(s, scratch, {});
    args.kv_head = 1;
    args.group_heads = 3;
    args.first_position = n - 1;
    args.n_rows = 1;
    args.q = q.data();
    args.q_stride = 192;
    std::vector<float> whole(192);
    std::vector<float> whole_lse(3);
    args.out = whole.data();
    args.out_stride = 192;
    args.log_sum_exp = whole_lse.data();
    set->attend(args);
    for (std::int64_t a = 0; a <= 6; ++a) {
      for (std::int64_t b = a; b <= 6; ++b) {
        // Three slices: [0, a), [a, b), [b, 6).
        std::vector<TreeNode> nodes;
        std::vector<float> states;
        for (const auto& [first, last] :
             {std::pair{std::int64_t{0}, a}, {a, b}, {b, std::int64_t{6}}}) {
          TreeNode of_slice[kTreeNodesMax];
          const int count = cover_partitions(first, last - first, of_slice);
          nodes.insert(nodes.end(), of_slice, of_slice + count);
          std::vector<float> part(static_cast<std::size_t>(count * 3 * state_floats(64)));
          set->attend_partial({args, first, last - first, part.data()});
          states.insert(states.end(), part.begin(), part.end());
        }
        for (std::int64_t h = 0; h < 3; ++h) {
          std::vector<const float*> of_head;
          for (std::size_t i = 0; i < nodes.size(); ++i) {
            of_head.push_back(states.data() +
                              (static_cast<std::int64_t>(i) * 3 + h) * state_floats(64));
          }
          std::vector<float> out(64);
          float lse = 0.0F;
          set->merge_partials({64,
                               static_cast<int>(nodes.size()),
                               nodes.data(),
                               of_head.data(),
                               out.data(),
                               &lse,
                               scratch.get()});
          ASSERT_EQ(0, std::memcmp(out.data(), whole.data() + h * 64, 64 * 4))
              << set->name << " cut at " << a << " and " << b;
          ASSERT_EQ(lse, whole_lse[static_cast<std::size_t>(h)]);
        }
      }
    }
  }
}

TEST(Attend, ASliceNeedsOnlyItsOwnBlocks) {
  set_thread_float_mode();
  const KernelSet& set = select_kernels();
  const Sequence s(set, {1, 32, 32}, 700, 79);
  const auto q = Random(83).normals(32);
  const AlignedBytes scratch(attend_scratch_bytes(32));
  AttendArgs args = rows_of(s, scratch, {});
  args.group_heads = 1;
  args.first_position = 699;
  args.n_rows = 1;
  args.q = q.data();
  std::vector<float> whole(static_cast<std::size_t>(state_floats(32)));
  set.attend_partial({args, 1, 1, whole.data()});
  const std::vector<std::uint32_t> table(s.table.begin() + 8, s.table.begin() + 16);
  args.kv.table = table.data();
  args.kv.first_block = 8;
  std::vector<float> slice(whole.size());
  set.attend_partial({args, 1, 1, slice.data()});
  EXPECT_EQ(0, std::memcmp(whole.data() + 16, slice.data() + 16, 32 * 4));
}

TEST(Attend, IsNearTheExactValue) {
  set_thread_float_mode();
  const KernelSet& set = select_kernels();
  const Sequence s(set, {1, 64, 32}, 600, 89);
  const auto q = Random(97).normals(600 * 64);
  for (const float cap : {0.0F, 2.0F}) {
    const auto out = attend_rows(set, s, q, 1, 600, {0, cap});
    for (const std::int64_t position : {5, 256, 599}) {
      std::vector<double> scores;
      double sum = 0.0;
      for (std::int64_t t = 0; t <= position; ++t) {
        double dot = 0.0;
        for (int d = 0; d < 64; ++d) {
          dot +=
              static_cast<double>(q[static_cast<std::size_t>(position * 64 + d)]) * s.k_at(t, 0, d);
        }
        dot *= 0.125;
        scores.push_back(std::exp(cap == 0.0F ? dot : cap * std::tanh(dot / cap)));
        sum += scores.back();
      }
      for (int d = 0; d < 64; ++d) {
        double exact = 0.0;
        for (std::int64_t t = 0; t <= position; ++t) {
          exact += scores[static_cast<std::size_t>(t)] / sum * s.v_at(t, 0, d);
        }
        // Two terms carry Q and P to 2^-17; one term to 2^-9.
        const double bound = kQueryTerms == 2 && kProbabilityTerms == 2 ? 4e-5 : 2e-3;
        EXPECT_NEAR(out[static_cast<std::size_t>(position * 64 + d)], exact, bound);
      }
    }
  }
}

TEST(CoverPartitions, GivesAlignedAscendingNodesThatCoverTheRange) {
  for (std::int64_t first = 0; first < 70; ++first) {
    for (std::int64_t n = 0; n < 70; ++n) {
      TreeNode nodes[kTreeNodesMax];
      const int count = cover_partitions(first, n, nodes);
      std::int64_t at = first;
      for (int i = 0; i < count; ++i) {
        ASSERT_EQ(std::int64_t{nodes[i].index} << nodes[i].level, at);
        at += std::int64_t{1} << nodes[i].level;
      }
      ASSERT_EQ(at, first + n);
      ASSERT_LE(count, 2 * 7);
    }
  }
}

}  // namespace
}  // namespace luna::kernels
