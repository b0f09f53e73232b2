// Every op of backend_cpu against backend_reference, odd shapes included. A case is one op (or the
// few it needs) between an embedding that both hold exactly and the logits.
#include "support/tiny_llama.hpp"

#include <gmock/gmock.h>

#include <functional>

namespace luna::test {
namespace {

// Tolerances: factor * eps * sqrt(reduction length) * the case's largest value, plus the
// stated error of how activations are carried. One table, so that nothing is tuned case by case.
constexpr float kEps = 0x1p-23F;
struct Tolerance {
  float factor = 4.0F;         // of FP32 arithmetic
  float activation_error = 0;  // of the case's largest value
};
constexpr Tolerance kExact{0.0F, 0.0F};
constexpr Tolerance kF32{8.0F, 0.0F};
constexpr Tolerance kI12{8.0F, 1e-3F};  // 12 bits in groups: 3.2e-4 of a dot product's size
constexpr Tolerance kI11{8.0F, 3e-3F};
constexpr Tolerance kI10{8.0F, 6e-3F};
constexpr Tolerance kI8{8.0F, 1.6e-2F};    // 8 bits: 16 times the grid of 12
constexpr Tolerance kBf16{8.0F, 1.2e-2F};  // BF16 weights, activations or KV: 2^-9 an element

/// One op in a program: what it is built of and how far from the oracle it may be.
struct OpCase {
  std::string name;
  std::uint32_t width = 64;  // of the embedding
  std::function<ViewId(ProgramBuilder&, ViewId x)> build;
  Tolerance tolerance;
  std::uint32_t reduction = 1;
  std::uint32_t numerics = LUNA_NUMERICS_I12;  // of the cpu backend
  std::vector<HostWeight> weights;             // from number 1 on; 0 is the embedding
};

constexpr std::uint32_t kVocab = 100;
constexpr std::uint32_t kRows = 13;

struct OpResult {
  std::vector<float> rows;
  std::vector<std::uint32_t> candidates;
};

class OpTest : public testing::Test {
 protected:
  std::mt19937_64 rng_{test_seed()};

  static ProgramLimits limits() {
    ProgramLimits l;
    l.n_rows_max = 64;
    l.n_seqs_max = 4;
    l.n_out_rows_max = 64;
    l.n_blocks_per_seq_max = 4;
    l.n_positions_max = 128;
    l.kv = {2, 2, 32, LUNA_DTYPE_BF16, 32, 0};
    return l;
  }
  Program program_of(const OpCase& c, std::uint32_t* width) {
    ProgramLimits own = limits();
    own.numerics = c.numerics;
    ProgramBuilder b(own);
    const ViewId x = b.embed(b.weight(0, kVocab, c.width));
    const ViewId y = b.gather_rows(c.build(b, x));
    *width = b.view(y).dims[1];
    b.logits(y);
    Result<Program> program = std::move(b).finish();
    EXPECT_TRUE(program) << c.name << ": " << program.error().message();
    return std::move(program).value();
  }
  /// Runs a case's program on one backend: two sequences, every row an output.
  OpResult run(const std::string& backend, const OpCase& c, const HostWeight& embedding) {
    std::uint32_t width = 0;
    const Program program = program_of(c, &width);
    TestDevice device(backend, 2);
    std::vector<HostWeight> weights = {embedding};
    weights.insert(weights.end(), c.weights.begin(), c.weights.end());
    const auto handles = device.load_all(weights, c.numerics);
    EXPECT_TRUE(handles) << c.name << ": " << handles.error().message();
    const auto compiled = TestProgram::compile(device, program, *handles);
    EXPECT_TRUE(compiled) << c.name << ": " << compiled.error().message();
    StepInput step(4);
    std::vector<std::uint32_t> tokens(kRows);
    for (std::uint32_t i = 0; i < kRows; ++i)
      tokens[i] = (7 * i + 3) % kVocab;
    const std::uint32_t blocks[2][1] = {{4}, {2}};
    step.add(std::span(tokens).first(9), 0, blocks[0]);
    step.add(std::span(tokens).subspan(9), 5, blocks[1]);
    const StepAnswer answer = (*compiled)->run(step);
    EXPECT_EQ(answer.status, LUNA_OK) << c.name << ": " << answer.text;
    return {{(*compiled)->logits(), (*compiled)->logits() + std::size_t{kRows} * width}, {}};
  }
  void compare(const OpCase& c) {
    SCOPED_TRACE(c.name + ", LUNA_TEST_SEED=" + std::to_string(test_seed()));
    HostWeight embedding =
        random_weight(rng_, kVocab, c.width, {.group = 0, .dtype = LUNA_DTYPE_BF16});
    embedding.fill<std::uint16_t>(
        LUNA_PLANE_VALUES, [&] { return f32_to_bf16(std::normal_distribution<float>()(rng_)); });
    const OpResult expected = run("reference", c, embedding);
    const OpResult got = run("cpu", c, embedding);
    ASSERT_EQ(expected.rows.size(), got.rows.size());
    const std::size_t width = expected.rows.size() / kRows;
    float largest = 0;
    for (const float x : expected.rows)
      largest = std::max(largest, std::abs(x));
    const float bound =
        largest * (c.tolerance.factor * kEps * std::sqrt(static_cast<float>(c.reduction)) +
                   c.tolerance.activation_error);
    for (std::size_t i = 0; i < expected.rows.size(); ++i)
      ASSERT_NEAR(expected.rows[i], got.rows[i], bound)
          << "row " << i / width << " column " << i % width;
  }
  void compare_linear(const std::string& name,
                      std::uint32_t n,
                      std::uint32_t k,
                      const WeightKind& kind,
                      Tolerance tolerance,
                      std::uint32_t numerics_class = LUNA_NUMERICS_I12) {
    OpCase c;
    c.numerics = numerics_class;
    c.name = name + " " + std::to_string(n) + "x" + std::to_string(k);
    c.width = k;
    c.weights = {random_weight(rng_, n, k, kind)};
    const LinearNumerics numerics = linear_numerics(c.weights[0].desc, n, numerics_class);
    c.build = [=](ProgramBuilder& b, ViewId x) { return b.linear(x, b.weight(1, n, k), numerics); };
    c.tolerance = tolerance;
    c.reduction = k;
    compare(c);
  }
};

TEST_F(OpTest, LinearOfEveryQuantizationAgreesWithTheOracle) {
  for (const std::uint32_t n : {5U, 48U, 130U})
    for (const std::uint32_t k : {32U, 96U, 576U}) {
      compare_linear("4 bits", n, k, {}, kI12);
      compare_linear("4 bits, symmetric", n, k, {.has_offset = false}, kI12);
      compare_linear("5 bits", n, k, {.bits = 5}, kI11);
      compare_linear("6 bits", n, k, {.bits = 6, .has_offset = false}, kI10);
      compare_linear("8 bits", n, k, {.bits = 8, .has_offset = false}, kI12);
      compare_linear("code book", n, k, {.has_offset = false, .code_book = true}, kI12);
    }
}

TEST_F(OpTest, LinearOfSuperBlocksAgreesWithTheOracle) {
  for (const std::uint32_t n : {5U, 130U}) {
    compare_linear("2 bits, 16", n, 512, {.bits = 2, .group = 16, .super = 256}, kI12);
    compare_linear(
        "3 bits, 16", n, 256, {.bits = 3, .group = 16, .super = 256, .has_offset = false}, kI12);
    compare_linear("4 bits, 32", n, 1536, {.bits = 4, .group = 32, .super = 256}, kI12);
    compare_linear("5 bits, 32", n, 256, {.bits = 5, .group = 32, .super = 256}, kI11);
    compare_linear(
        "6 bits, 16", n, 512, {.bits = 6, .group = 16, .super = 256, .has_offset = false}, kI10);
  }
}

TEST_F(OpTest, LinearOfEveryNumericsClassAgreesWithTheOracle) {
  const std::pair<std::uint32_t, Tolerance> classes[] = {{LUNA_NUMERICS_I8, kI8},
                                                         {LUNA_NUMERICS_BF16, kBf16}};
  for (const auto& [numerics, tolerance] : classes) {
    const std::string name = numerics == LUNA_NUMERICS_I8 ? "i8, " : "bf16, ";
    for (const std::uint32_t n : {5U, 130U}) {
      compare_linear(name + "4 bits", n, 576, {}, tolerance, numerics);
      compare_linear(name + "symmetric", n, 96, {.has_offset = false}, tolerance, numerics);
      compare_linear(
          name + "8 bits", n, 576, {.bits = 8, .has_offset = false}, tolerance, numerics);
      compare_linear(name + "code book",
                     n,
                     576,
                     {.has_offset = false, .code_book = true},
                     tolerance,
                     numerics);
      compare_linear(name + "super-blocks",
                     n,
                     512,
                     {.bits = 4, .group = 32, .super = 256},
                     tolerance,
                     numerics);
      compare_linear(
          name + "dense", n, 200, {.group = 0, .dtype = LUNA_DTYPE_BF16}, kBf16, numerics);
    }
  }
}

TEST_F(OpTest, LinearOfDenseWeightsAgreesWithTheOracle) {
  for (const std::uint32_t dtype : {LUNA_DTYPE_F32, LUNA_DTYPE_F16, LUNA_DTYPE_BF16})
    for (const std::uint32_t k : {30U, 64U, 200U})
      compare_linear("dense " + std::to_string(dtype), 37, k, {.group = 0, .dtype = dtype}, kBf16);
}

TEST_F(OpTest, LinearAddsItsBias) {
  OpCase c;
  c.name = "bias";
  c.weights = {random_weight(rng_, 50, 64, {}), random_vector(rng_, 50)};
  const LinearNumerics numerics = linear_numerics(c.weights[0].desc, 50);
  c.build = [=](ProgramBuilder& b, ViewId x) {
    return b.linear(x, b.weight(1, 50, 64), numerics, b.weight(2, 50));
  };
  c.tolerance = kI12;
  c.reduction = 64;
  compare(c);
}

TEST_F(OpTest, NormsAgreeWithTheOracle) {
  for (const std::uint32_t width : {32U, 64U, 100U}) {
    OpCase c;
    c.width = width;
    c.weights = {random_vector(rng_, width), random_vector(rng_, width)};
    c.tolerance = kF32;
    c.reduction = width;
    c.name = "rms_norm " + std::to_string(width);
    c.build = [=](ProgramBuilder& b, ViewId x) { return b.rms_norm(x, b.weight(1, width), 1e-5F); };
    compare(c);
    c.name = "layer_norm " + std::to_string(width);
    c.build = [=](ProgramBuilder& b, ViewId x) {
      return b.layer_norm(x, b.weight(1, width), b.weight(2, width), 1e-5F);
    };
    compare(c);
  }
}

TEST_F(OpTest, ElementwiseOpsAgreeWithTheOracle) {
  const auto compare_op = [&](const char* name, auto build, Tolerance tolerance) {
    for (const std::uint32_t width : {64U, 77U}) {
      OpCase c;
      c.name = name;
      c.width = width;
      c.build = build;
      c.tolerance = tolerance;
      compare(c);
    }
  };
  compare_op(
      "add", [](ProgramBuilder& b, ViewId x) { return b.add(x, x); }, kExact);
  compare_op(
      "scale",
      [](ProgramBuilder& b, ViewId x) {
        b.scale_in_place(x, 0.37F);
        return x;
      },
      kExact);
  compare_op(
      "softcap",
      [](ProgramBuilder& b, ViewId x) {
        b.softcap_in_place(x, 1.5F);
        return x;
      },
      kF32);
  compare_op(
      "silu", [](ProgramBuilder& b, ViewId x) { return b.act_mul(x, x, LUNA_ACT_SILU); }, kF32);
  compare_op(
      "gelu",
      [](ProgramBuilder& b, ViewId x) { return b.act_mul(x, x, LUNA_ACT_GELU_TANH); },
      kF32);
  compare_op(
      "copy", [](ProgramBuilder& b, ViewId x) { return b.copy(x); }, kExact);
  compare_op(
      "bf16 and back",
      [](ProgramBuilder& b, ViewId x) {
        b.scale_in_place(x, 0.37F);
        return b.convert(b.convert(x, LUNA_DTYPE_BF16), LUNA_DTYPE_F32);
      },
      kExact);
  compare_op(
      "f16 and back",
      [](ProgramBuilder& b, ViewId x) {
        b.scale_in_place(x, 0.37F);
        return b.convert(b.convert(x, LUNA_DTYPE_F16), LUNA_DTYPE_F32);
      },
      kExact);
}

TEST_F(OpTest, RopeAgreesWithTheOracle) {
  const std::vector<double> frequencies = {1.0,
                                           0.3,
                                           0.1,
                                           0.03,
                                           0.01,
                                           0.003,
                                           0.001,
                                           0.0003,
                                           2.0,
                                           0.7,
                                           0.2,
                                           0.07,
                                           0.02,
                                           0.007,
                                           0.002,
                                           0.0007};
  for (const std::uint32_t style : {LUNA_ROPE_INTERLEAVED, LUNA_ROPE_HALVES})
    for (const std::uint32_t n_rot : {32U, 16U, 20U})
      for (const std::uint32_t n_heads : {2U, 4U}) {
        OpCase c;
        c.name = "rope style " + std::to_string(style) + " n_rot " + std::to_string(n_rot);
        c.width = n_heads * 32;
        c.tolerance = kF32;
        c.build = [=, &frequencies](ProgramBuilder& b, ViewId x) {
          const ViewId f = b.constant(std::span(frequencies).first(n_rot / 2));
          b.rope_in_place(x, f, {n_heads, 32, n_rot, style, 1.2F});
          return x;
        };
        compare(c);
      }
}

TEST_F(OpTest, HeadNormAgreesWithTheOracle) {
  for (const std::uint32_t head_dim : {32U, 64U, 96U})
    for (const std::uint32_t n_heads : {1U, 2U, 4U}) {
      OpCase c;
      c.name = "head_norm of " + std::to_string(n_heads) + " heads of " + std::to_string(head_dim);
      c.width = 32 + n_heads * head_dim;
      c.tolerance = kF32;
      c.weights = {random_vector(rng_, head_dim)};
      c.reduction = head_dim;
      c.build = [=](ProgramBuilder& b, ViewId x) {
        b.head_norm_in_place(b.columns(x, 32, n_heads * head_dim), b.weight(1, head_dim), 1e-5F);
        return x;
      };
      compare(c);
    }
}

TEST_F(OpTest, ExpertsAgreeWithTheOracle) {
  for (const bool normalizes : {true, false})
    for (const std::uint32_t k : {1U, 3U, 5U}) {
      constexpr std::uint32_t kExperts = 5, kHidden = 64, kFfn = 32;
      OpCase c;
      c.name = std::to_string(k) + " experts" + (normalizes ? ", normalized" : "");
      c.width = kHidden + kExperts;  // what experts read, then scores, so that no rounding chooses
      c.tolerance = kBf16;
      c.reduction = kHidden;
      c.weights = {
          random_weight(rng_, kExperts * kFfn, kHidden, {.group = 0, .dtype = LUNA_DTYPE_BF16}),
          random_weight(rng_, kExperts * kHidden, kFfn, {.group = 0, .dtype = LUNA_DTYPE_BF16})};
      const LinearNumerics up = linear_numerics(c.weights[0].desc, kFfn);
      const LinearNumerics down = linear_numerics(c.weights[1].desc, kHidden);
      c.build = [=](ProgramBuilder& b, ViewId x) {
        const ViewId routes = b.moe_route(b.columns(x, kHidden, kExperts), k, normalizes);
        const ViewId inner = b.grouped_linear(
            b.columns(x, 0, kHidden), routes, b.weight(1, kExperts * kFfn, kHidden), k, up);
        const ViewId outer =
            b.grouped_linear(inner, routes, b.weight(2, kExperts * kHidden, kFfn), k, down);
        return b.moe_sum(outer, routes, k);
      };
      compare(c);
    }
}

TEST_F(OpTest, AttentionAgreesWithTheOracle) {
  for (const std::uint32_t window : {0U, 1U, 4U})
    for (const float softcap : {0.0F, 2.0F}) {
      OpCase c;
      c.name = "attend window " + std::to_string(window) + " softcap " + std::to_string(softcap);
      c.width = 192;  // q of 4 heads, then k and v of 2 heads, as columns
      c.tolerance = kBf16;
      c.build = [=](ProgramBuilder& b, ViewId x) {
        b.kv_write(b.columns(x, 128, 64), b.columns(x, 64, 64), 1);
        return b.attend(b.columns(x, 0, 128), {1, 4, 0.3F, window, softcap});
      };
      // The second sequence starts at position 5: what lies before was never written and is zero.
      compare(c);
    }
}

TEST(TopCandidates, AreTheLargestInOrderWithTheLogSumExp) {
  for (const std::string backend : {"reference", "cpu"})
    for (const std::uint32_t n : {40U, 4096U, 9000U}) {
      SCOPED_TRACE(backend + " " + std::to_string(n));
      constexpr std::uint32_t kK = 7;
      ProgramLimits limits;
      limits.n_rows_max = limits.n_out_rows_max = 4;
      limits.n_seqs_max = limits.n_blocks_per_seq_max = 4;
      limits.n_positions_max = 16;
      ProgramBuilder b(limits);
      const ViewId x = b.gather_rows(b.embed(b.weight(0, 4, n)));
      b.top_candidates(x, kK);
      const Result<Program> program = std::move(b).finish();
      ASSERT_TRUE(program) << program.error().message();

      std::mt19937_64 rng(test_seed());
      HostWeight rows = random_weight(rng, 4, n, {.group = 0, .dtype = LUNA_DTYPE_BF16});
      // Few distinct values, so that ties decide.
      rows.fill<std::uint16_t>(LUNA_PLANE_VALUES, [&] {
        return f32_to_bf16(static_cast<float>(static_cast<int>(rng() % 16) - 8));
      });
      TestDevice device(backend, 3);
      const auto handles = device.load_all({rows});
      ASSERT_TRUE(handles);
      const auto compiled = TestProgram::compile(device, *program, *handles);
      ASSERT_TRUE(compiled) << compiled.error().message();
      StepInput step(4);
      const std::uint32_t tokens[] = {2, 0};
      step.add(tokens, 0, {});
      ASSERT_EQ((*compiled)->run(step).status, LUNA_OK);

      const auto* values = reinterpret_cast<const std::uint16_t*>(rows.planes[0].data());
      for (std::uint32_t row = 0; row < 2; ++row) {
        std::vector<std::pair<float, std::uint32_t>> expected;
        double sum = 0;
        for (std::uint32_t i = 0; i < n; ++i) {
          expected.emplace_back(-bf16_to_f32(values[std::size_t{tokens[row]} * n + i]), i);
          sum += std::exp(-double{expected.back().first});
        }
        std::sort(expected.begin(), expected.end());
        const std::uint32_t* got = (*compiled)->candidates() + std::size_t{row} * 2 * (kK + 1);
        for (std::uint32_t i = 0; i < kK; ++i) {
          EXPECT_EQ(std::bit_cast<float>(got[2 * i]), -expected[i].first);
          EXPECT_EQ(got[2 * i + 1], expected[i].second);
        }
        EXPECT_NEAR(std::bit_cast<float>(got[2 * kK]), std::log(sum), 1e-5);
        EXPECT_EQ(got[2 * kK + 1], 0U);
      }
    }
}

}  // namespace
}  // namespace luna::test
