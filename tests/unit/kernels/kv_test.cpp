// KV in its blocks: what INT8 keeps, and how much memory it takes.
#include "attend_support.hpp"

#include <gtest/gtest.h>

namespace luna::kernels {
namespace {

TEST(KvWrite, Int8CodesAreWithinHalfAStepOfTheirValue) {
  set_thread_float_mode();
  for (const KernelSet* set : kernel_sets()) {
    for (const float size : {1e-20F, 1.0F, 3e37F}) {
      Sequence s(*set, {2, 64, 32, KvType::int8}, 40, 107);
      std::vector<float> q(64);
      for (std::int64_t t = 0; t < 40; ++t) {
        for (std::size_t i = 0; i < s.row; ++i) {
          s.k[static_cast<std::size_t>(t) * s.row + i] *= size;
        }
        const auto at = static_cast<std::size_t>(t) * s.row;
        set->kv_write({s.view(), t, s.k.data() + at, s.v.data() + at});
        for (int d = 0; d < 64; ++d) {
          const Coded kept = s.kept(s.k, t, 1, d);
          ASSERT_LE(std::fabs(kept.code * kept.scale - s.k[at + 64 + static_cast<std::size_t>(d)]),
                    0.5001F * kept.scale)
              << set->name;
        }
      }
    }
  }
}

TEST(KvWrite, RowsOfZerosAndOfNonFiniteNumbersHaveTheirScale) {
  set_thread_float_mode();
  for (const KernelSet* set : kernel_sets()) {
    Sequence s(*set, {1, 32, 32, KvType::int8}, 3, 109);
    std::fill_n(s.v.begin(), 32, 0.0F);
    s.v[32 + 7] = INFINITY;
    for (std::int64_t t = 0; t < 3; ++t) {
      set->kv_write({s.view(), t, s.k.data() + t * 32, s.v.data() + t * 32});
    }
    const std::byte* v = s.view().base + s.table[0] * s.stride() + 32 * 32;
    const std::byte* v_scales = v + 32 * 32 + 32 * 2;
    const auto scale = [&](std::size_t t) {
      std::uint16_t bits;
      std::memcpy(&bits, v_scales + t * 2, 2);
      return bits;
    };
    EXPECT_EQ(scale(0), 0U) << set->name;
    EXPECT_EQ(scale(1), 0x7FC0U) << set->name;
    EXPECT_NE(scale(2), 0U) << set->name;
    for (std::size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(v[i], std::byte{0}) << set->name;
    }
  }
}

/// Masses of positions when rows [first, n_tokens) are observed, `chunk` rows a call.
std::vector<float> observe_rows(const KernelSet& set,
                                Sequence& s,
                                const std::vector<float>& q,
                                std::int64_t first,
                                std::int64_t chunk) {
  const AlignedBytes scratch(attend_scratch_bytes(64));
  for (std::int64_t t = 0; t < s.n_tokens; ++t)
    set.kv_write({s.view(), t, s.k.data() + t * 64, s.v.data() + t * 64});
  std::vector<float> out(q.size());
  for (std::int64_t t = first; t < s.n_tokens; t += chunk) {
    AttendArgs args = rows_of(s, scratch, {});
    args.group_heads = 3;
    args.first_position = t;
    args.n_rows = std::min(chunk, s.n_tokens - t);
    args.q = q.data() + t * 192;
    args.q_stride = 192;
    args.out = out.data();
    args.out_stride = 192;
    std::vector<float> exponents(static_cast<std::size_t>(args.n_rows) * 3);
    args.log_sum_exp = exponents.data();
    set.attend(args);
    for (std::int64_t part = 0; part < s.n_tokens; part += kPartitionTokens) {
      const std::int64_t end = (t + args.n_rows + 31) / 32 * 32;
      const std::int64_t last = std::min<std::int64_t>(part + kPartitionTokens, end);
      if (part < last) set.observe({args, exponents.data(), part, last});
    }
  }
  std::vector<float> masses;
  for (std::int64_t t = 0; t < s.n_tokens; ++t)
    masses.push_back(*kv_masses_at(s.view(), 0, t));
  return masses;
}

TEST(Observe, MassesAreTheProbabilitiesOfTheRowsInAnyChunks) {
  set_thread_float_mode();
  constexpr std::int64_t kTokens = 300;
  const auto q = Random(113).normals(kTokens * 192);
  for (const KvType type : kKvTypes) {
    std::vector<float> expected;
    for (const KernelSet* set : kernel_sets()) {
      for (const std::int64_t chunk : {64, 7, 1}) {
        Sequence s(*set, {1, 64, 32, type, true}, kTokens, 127);
        const auto masses = observe_rows(*set, s, q, kTokens - 64, chunk);
        if (expected.empty()) {
          expected = masses;
          double sum = 0.0;  // each row and head gives away 1
          for (const float mass : masses) {
            sum += mass;
          }
          EXPECT_NEAR(sum, 64.0 * 3.0, 1e-2);
        }
        ASSERT_EQ(0, std::memcmp(expected.data(), masses.data(), masses.size() * 4))
            << set->name << " chunk " << chunk << " seed " << test_seed();
      }
    }
  }
}

TEST(MoveKv, ServesWhatItMovedFromItsNewPlace) {
  set_thread_float_mode();
  const KernelSet& set = select_kernels();
  const auto q = Random(131).normals(192);
  const std::int64_t kept[] = {0, 1, 5, 33, 34, 63, 70, 95};
  for (const KvType type : kKvTypes) {
    Sequence whole(set, {2, 64, 32, type, true}, 96, 137);
    Sequence small(set, {2, 64, 32, type, true}, 8, 137);
    for (std::int64_t to = 0; to < 8; ++to) {
      const auto at = static_cast<std::size_t>(kept[to]) * whole.row;
      set.kv_write({small.view(), to, whole.k.data() + at, whole.v.data() + at});
      for (int head = 0; head < 2; ++head) {
        move_kv(whole.view(), head, kept[to], to);
      }
    }
    const AlignedBytes scratch(attend_scratch_bytes(64));
    std::vector<float> out[2] = {std::vector<float>(192), std::vector<float>(192)};
    for (int i = 0; i < 2; ++i) {
      AttendArgs args = rows_of(i == 0 ? whole : small, scratch, {});
      args.kv_head = 1;
      args.group_heads = 3;
      args.first_position = 7;
      args.n_rows = 1;
      args.q = q.data();
      args.out = out[i].data();
      set.attend(args);
    }
    EXPECT_EQ(0, std::memcmp(out[0].data(), out[1].data(), 192 * 4));
  }
}

TEST(KvShape, Int8TakesLittleMoreThanHalf) {
  const KvShape bf16{3, 64, 32, KvType::bf16};
  const KvShape int8{3, 64, 32, KvType::int8};
  EXPECT_LE(static_cast<double>(kv_block_bytes(int8)),
            0.53 * static_cast<double>(kv_block_bytes(bf16)));
}

}  // namespace
}  // namespace luna::kernels
