// Small operations: every set has the portable bits, and they are near the FP64 value.
#include "kernel_support.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace luna::kernels {
namespace {

constexpr std::size_t kSizes[] = {1, 15, 16, 17, 64, 576, 577};

/// Runs `op` with every set and compares the outputs' bits; returns them.
template <class Op>
std::vector<float> same_on_every_set(std::size_t n, Op op) {
  set_thread_float_mode();
  std::vector<float> first;
  for (const KernelSet* set : kernel_sets()) {
    std::vector<float> y(n + 1, -7.0F);
    op(*set, y.data());
    EXPECT_EQ(y[n], -7.0F) << set->name << " wrote beyond the end";
    y.pop_back();
    if (first.empty()) {
      first = y;
    }
    EXPECT_EQ(0, std::memcmp(first.data(), y.data(), n * 4))
        << set->name << " n=" << n << " seed=" << test_seed();
  }
  return first;
}

TEST(Exp, IsTheSameOnEverySetAndWithinTheStatedError) {
  std::vector<float> x;
  for (int i = 0; i < 400000; ++i) {
    x.push_back(-87.0F + static_cast<float>(i) * (175.0F / 400000.0F));
  }
  const auto y = same_on_every_set(x.size(), [&](const KernelSet& set, float* out) {
    set.exp(x.data(), static_cast<std::int64_t>(x.size()), out);
  });
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    // The polynomial's error, and that of x * log2 e in FP32: half an ulp of |x| log2 e.
    const double bound = 1.0e-7 + std::fabs(static_cast<double>(x[i])) * 0x1p-23;
    ASSERT_NEAR(y[i] / exact, 1.0, bound) << x[i];
  }
}

TEST(Exp, EndsAreClampedAndNanStays) {
  const std::vector<float> x = {0.0F, -0.0F, -INFINITY, INFINITY, NAN, -1000.0F, 1000.0F};
  const auto y =
      same_on_every_set(7, [&](const KernelSet& set, float* out) { set.exp(x.data(), 7, out); });
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], 0x1p-126F);
  EXPECT_EQ(y[3], 0x1p+127F);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_EQ(y[5], 0x1p-126F);
}

TEST(Norms, AreTheSameOnEverySetAndNearTheExactValue) {
  for (const std::size_t n : kSizes) {
    Random random(n);
    const auto x = random.normals(n);
    const auto w = random.normals(n);
    const auto b = random.normals(n);
    const auto size = static_cast<std::int64_t>(n);
    double squares = 0.0;
    double sum = 0.0;
    for (const float v : x) {
      squares += static_cast<double>(v) * v;
      sum += v;
    }
    const auto rms = same_on_every_set(n, [&](const KernelSet& set, float* y) {
      set.rms_norm(x.data(), w.data(), size, 1e-5F, y);
    });
    const double mean = sum / static_cast<double>(n);
    double spread = 0.0;
    for (const float v : x) {
      spread += (v - mean) * (v - mean);
    }
    const auto layer = same_on_every_set(n, [&](const KernelSet& set, float* y) {
      set.layer_norm({x.data(), w.data(), b.data(), size, 1e-5F, y});
    });
    for (std::size_t i = 0; i < n; ++i) {
      const double by_rms = x[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5) * w[i];
      EXPECT_NEAR(rms[i], by_rms, 1e-6 * (1.0 + std::fabs(by_rms)));
      const double by_layer =
          (x[i] - mean) / std::sqrt(spread / static_cast<double>(n) + 1e-5) * w[i] + b[i];
      EXPECT_NEAR(layer[i], by_layer, 4e-6 * (1.0 + std::fabs(by_layer))) << n;
    }
  }
}

TEST(RmsNorm, SumsSixteenLanesAndTheirTree) {
  set_thread_float_mode();
  const auto x = Random(3).normals(100);
  float lanes[16] = {};
  for (std::size_t i = 0; i < 100; ++i) {
    lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  }
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) {
      lanes[i] = lanes[i] + lanes[i + width];
    }
  }
  const float r = 1.0F / std::sqrt(lanes[0] / 100.0F + 1e-6F);
  const std::vector<float> ones(100, 1.0F);
  std::vector<float> y(100);
  for (const KernelSet* set : kernel_sets()) {
    set->rms_norm(x.data(), ones.data(), 100, 1e-6F, y.data());
    for (std::size_t i = 0; i < 100; ++i) {
      ASSERT_EQ(y[i], x[i] * r * 1.0F) << set->name;
    }
  }
}

TEST(Rope, RotatesPairsInBothStylesAndLeavesTheRest) {
  const int n_heads = 3;
  const int head_dim = 64;
  for (const int n_rot : {64, 40, 20}) {
    const auto half = static_cast<std::size_t>(n_rot / 2);
    Random random(static_cast<std::uint64_t>(n_rot));
    const auto x = random.normals(n_heads * head_dim);
    std::vector<float> c(half);
    std::vector<float> s(half);
    for (std::size_t i = 0; i < half; ++i) {
      c[i] = static_cast<float>(std::cos(0.3 * static_cast<double>(i)));
      s[i] = static_cast<float>(std::sin(0.3 * static_cast<double>(i)));
    }
    for (const RopeStyle style : {RopeStyle::interleaved, RopeStyle::halves}) {
      const auto run = [&](const KernelSet& set, const float* in, float* out) {
        set.rope({style, n_heads, head_dim, n_rot, c.data(), s.data(), in, out});
      };
      const auto y = same_on_every_set(
          x.size(), [&](const KernelSet& set, float* out) { run(set, x.data(), out); });
      const auto in_place = same_on_every_set(x.size(), [&](const KernelSet& set, float* out) {
        std::copy(x.begin(), x.end(), out);
        run(set, out, out);
      });
      EXPECT_EQ(y, in_place);
      for (std::size_t h = 0; h < n_heads; ++h) {
        for (std::size_t i = 0; i < half; ++i) {
          const bool is_halves = style == RopeStyle::halves;
          const std::size_t a = h * head_dim + (is_halves ? i : 2 * i);
          const std::size_t b = is_halves ? a + half : a + 1;
          EXPECT_NEAR(
              y[a], static_cast<double>(x[a]) * c[i] - static_cast<double>(x[b]) * s[i], 1e-6);
          EXPECT_NEAR(
              y[b], static_cast<double>(x[a]) * s[i] + static_cast<double>(x[b]) * c[i], 1e-6);
        }
        for (std::size_t i = static_cast<std::size_t>(n_rot); i < head_dim; ++i) {
          EXPECT_EQ(y[h * head_dim + i], x[h * head_dim + i]);
        }
      }
    }
  }
}

TEST(Activations, AreTheSameOnEverySetAndNearTheExactValue) {
  for (const std::size_t n : kSizes) {
    Random random(n + 1000);
    auto gate = random.normals(n);
    for (float& g : gate) {
      g *= 6.0F;
    }
    const auto up = random.normals(n);
    const auto size = static_cast<std::int64_t>(n);
    const auto silu = same_on_every_set(n, [&](const KernelSet& set, float* y) {
      set.act_mul(Activation::silu, gate.data(), up.data(), size, y);
    });
    const auto gelu = same_on_every_set(n, [&](const KernelSet& set, float* y) {
      set.act_mul(Activation::gelu_tanh, gate.data(), up.data(), size, y);
    });
    const auto capped = same_on_every_set(
        n, [&](const KernelSet& set, float* y) { set.softcap(gate.data(), 5.0F, size, y); });
    const auto sum = same_on_every_set(
        n, [&](const KernelSet& set, float* y) { set.add(gate.data(), up.data(), size, y); });
    const auto scaled = same_on_every_set(
        n, [&](const KernelSet& set, float* y) { set.scale(gate.data(), 0.3F, size, y); });
    for (std::size_t i = 0; i < n; ++i) {
      const double g = gate[i];
      const double inner = std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g);
      const double tolerance = 4e-6 * (1.0 + std::fabs(g * up[i]));
      EXPECT_NEAR(silu[i], g / (1.0 + std::exp(-g)) * up[i], tolerance);
      EXPECT_NEAR(gelu[i], 0.5 * g * (1.0 + std::tanh(inner)) * up[i], tolerance);
      EXPECT_NEAR(capped[i], 5.0 * std::tanh(g / 5.0), 4e-6);
      EXPECT_EQ(sum[i], gate[i] + up[i]);
      EXPECT_EQ(scaled[i], gate[i] * 0.3F);
    }
  }
}

TEST(RoundBf16, IsNearestEvenOnEverySet) {
  const std::vector<float> x = {1.0F,
                                0x1.01p0F,
                                0x1.03p0F,
                                0x1.010002p0F,
                                -0x1.01p0F,
                                0x1.fffffep127F,
                                INFINITY,
                                -INFINITY,
                                NAN,
                                0.0F,
                                -0.0F,
                                0x1.02p0F};
  const std::uint16_t expected[] = {0x3F80,
                                    0x3F80,
                                    0x3F82,
                                    0x3F81,
                                    0xBF80,
                                    0x7F80,
                                    0x7F80,
                                    0xFF80,
                                    0x7FC0,
                                    0x0000,
                                    0x8000,
                                    0x3F81};
  for (const KernelSet* set : kernel_sets()) {
    std::uint16_t y[12];
    set->round_bf16(x.data(), 12, y);
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(y[i], expected[i]) << set->name << " " << x[i];
    }
  }
}

TEST(Logits, CandidatesAreTheLargestTiesToTheLowestId) {
  set_thread_float_mode();
  const std::uint32_t vocab = 10007;
  Random random(41);
  auto logits = random.normals(vocab);
  for (float& v : logits) {
    v = std::round(v * 8.0F);  // many ties
  }
  logits[17] = NAN;
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < vocab; ++i) {
    if (i != 17) {
      order.push_back(i);
    }
  }
  std::stable_sort(
      order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  for (const int k : {0, 1, 40, kCandidatesMax}) {
    std::vector<LogitsState> states((vocab + kLogitsChunk - 1) / kLogitsChunk);
    for (const KernelSet* set : kernel_sets()) {
      // A chunk alone, and two together, as threads may share them out.
      set->logits_chunks({logits.data(), 0, kLogitsChunk, k, states.data()});
      set->logits_chunks({logits.data(), kLogitsChunk, vocab - kLogitsChunk, k, &states[1]});
      std::vector<Candidate> found(kCandidatesMax);
      float lse = 0.0F;
      ASSERT_EQ(
          k, merge_logits(states.data(), static_cast<int>(states.size()), k, found.data(), &lse));
      for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
        ASSERT_EQ(found[i].id, order[i]) << set->name << " k=" << k << " place " << i;
        ASSERT_EQ(found[i].logit, logits[order[i]]);
      }
    }
  }
}

TEST(Logits, LogSumExpIsTheSameOnEverySetAndNearTheExactValue) {
  set_thread_float_mode();
  const auto logits = Random(43).normals(9000);
  double sum = 0.0;
  for (const float v : logits) {
    sum += std::exp(static_cast<double>(v));
  }
  std::vector<float> found;
  for (const KernelSet* set : kernel_sets()) {
    std::vector<LogitsState> states(3);
    for (const std::uint32_t first : {0U, 1U, 2U}) {  // chunks together
      for (std::uint32_t c = 0; c < first; ++c) {
        set->logits_chunks({logits.data(), c * kLogitsChunk, kLogitsChunk, 4, &states[c]});
      }
      const std::uint32_t from = first * kLogitsChunk;
      set->logits_chunks({logits.data(), from, 9000 - from, 4, &states[first]});
      Candidate candidates[4];
      found.emplace_back();
      merge_logits(states.data(), 3, 4, candidates, &found.back());
      EXPECT_EQ(0, std::memcmp(&found[0], &found.back(), 4)) << set->name;
      EXPECT_NEAR(found.back(), std::log(sum), 1e-6);
    }
  }
}

TEST(FloatMode, IsRightOnlyAfterItWasSet) {
  set_thread_float_mode();
  EXPECT_TRUE(float_mode_is_right());
  volatile float tiny = 1e-38F;
  volatile float smaller = tiny * 0.01F;
  EXPECT_EQ(smaller, 0.0F);
}

}  // namespace
}  // namespace luna::kernels
