// The oracle's values by hand, and that its bounds are those of the formats.
#include "core/check/op_oracle.hpp"

#include "core/check/program_draft.hpp"
#include "core/check/step_draft.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace luna::check {
namespace {

DrawnWeight dense(std::uint64_t n_rows, std::uint64_t n_cols, std::vector<double> values) {
  DrawnWeight weight;
  weight.desc.klass = LUNA_WEIGHT_DENSE;
  weight.desc.dtype = LUNA_DTYPE_F32;
  weight.desc.n_rows = n_rows;
  weight.desc.n_cols = n_cols;
  weight.values = std::move(values);
  for (const double value : weight.values)
    weight.magnitudes.push_back(std::abs(value));
  return weight;
}

/// The row that a program makes of one token, which is row 0 of the first weight.
std::vector<Bounded> row_of(std::vector<DrawnWeight> weights,
                            const std::function<ViewId(ProgramBuilder&, ViewId)>& build,
                            std::uint32_t numerics = LUNA_NUMERICS_F32) {
  ProgramLimits limits;
  limits.numerics = numerics;
  limits.n_rows_max = limits.n_seqs_max = limits.n_out_rows_max = 4;
  limits.n_blocks_per_seq_max = 1;
  limits.n_positions_max = 16;
  limits.kv = {1, 1, 2, LUNA_DTYPE_BF16, 32, 0};
  ProgramBuilder builder(limits);
  const auto n_cols = static_cast<std::uint32_t>(weights[0].desc.n_cols);
  const ViewId x = builder.embed(builder.weight(0, 1, n_cols));
  builder.logits(builder.gather_rows(build(builder, x)));
  const Result<Program> program = std::move(builder).finish();
  EXPECT_TRUE(program) << program.error().message();
  const luna_program abi = program->abi();
  OpOracle oracle(abi, weights, 1);
  DrawnStep step;
  step.token_ids = {0};
  step.positions = {0};
  step.seq_first_row = {0, 1};
  step.tables = {0};
  step.table_stride = 1;
  step.out_rows = {0};
  step.out_flags = {LUNA_OUT_LOGITS};
  const luna_step in = step.abi();
  oracle.run(in);
  return oracle.logits().numbers;
}

TEST(OpOracle, KnowsALinearOpByHand) {
  const auto y = row_of(
      {dense(1, 2, {3, -2}), dense(2, 2, {1, 2, -1, 0.5})},
      [](ProgramBuilder& b, ViewId x) { return b.linear(x, b.weight(1, 2, 2), {.segment = 64}); });
  EXPECT_EQ(y[0].value, -1.0);
  EXPECT_EQ(y[1].value, -4.0);
  EXPECT_GT(y[0].error, 0.0);
  EXPECT_LT(y[0].error, 1e-4);
}

TEST(OpOracle, KnowsANormByHand) {
  const auto y =
      row_of({dense(1, 2, {3, 4}), dense(1, 2, {1, 2})},
             [](ProgramBuilder& b, ViewId x) { return b.rms_norm(x, b.weight(1, 2), 0.0F); });
  const double mean = std::sqrt(12.5);
  EXPECT_NEAR(y[0].value, 3 / mean, 1e-15);
  EXPECT_NEAR(y[1].value, 8 / mean, 1e-15);
  EXPECT_LT(y[1].error, 1e-5);
}

// One position: its value is the whole of the attention, whatever the score.
TEST(OpOracle, AttendsToTheOnlyPosition) {
  const auto y = row_of({dense(1, 6, {1, 2, 0.5, 0.25, -3, 7})}, [](ProgramBuilder& b, ViewId x) {
    b.kv_write(b.columns(x, 2, 2), b.columns(x, 4, 2), 0);
    return b.attend(b.columns(x, 0, 2), {0, 1, 1.0F, 0, 0.0F});
  });
  EXPECT_EQ(y[0].value, -3.0);
  EXPECT_EQ(y[1].value, 7.0);
  // The exponential may be rounded to BF16 where it weighs the value.
  EXPECT_GE(y[1].error, 7.0 * kBf16Unit);
  EXPECT_LT(y[1].error, 7.0 * 1.01 * kBf16Unit);
}

// Activations of 8 bits lie on a grid that is 16 times as wide as that of 12; what sums of FP32 may
// lose is the same beside both.
TEST(OpOracle, BoundsFollowTheBitsOfActivations) {
  std::mt19937_64 random(1);
  const DrawnWeight codes = draw_weight(random, 4, 32, weight_forms()[3]);
  ASSERT_FALSE(codes.is_dense());
  std::vector<double> x;
  for (int i = 0; i < 32; ++i)
    x.push_back((i - 13) / 16.0);  // BF16 has them: the embedding rounds nothing
  const auto error_of = [&](std::uint32_t bits, std::uint32_t numerics) {
    return row_of(
               {dense(1, 32, x), codes},
               [&](ProgramBuilder& b, ViewId in) {
                 return b.linear(in,
                                 b.weight(1, 4, 32),
                                 {.segment = 64, .activation_bits = bits, .activation_group = 32});
               },
               numerics)[0]
        .error;
  };
  const double of_12 = error_of(12, LUNA_NUMERICS_I12);
  const double of_8 = error_of(8, LUNA_NUMERICS_I8);
  const double of_sums = error_of(12, LUNA_NUMERICS_F32);
  EXPECT_LT(of_sums, of_12);
  EXPECT_NEAR((of_8 - of_sums) / (of_12 - of_sums), 2047.0 / 127.0, 0.2);
}

TEST(NumberBounds, AFormatDoesNotRoundWhatItHas) {
  EXPECT_EQ(carried({1.5, 0.0}, LUNA_DTYPE_BF16).error, 0.0);
  EXPECT_GT(carried({1.501, 0.0}, LUNA_DTYPE_BF16).error, 0.0);
  EXPECT_LE(carried({1.501, 0.0}, LUNA_DTYPE_BF16).error, 1.501 * kBf16Unit);
  EXPECT_GT(carried({1.5, 1e-3}, LUNA_DTYPE_BF16).error, 1e-3);
  EXPECT_LT(carried_in_two_terms({1.501, 0.0}).error, 1.501 * kQueryUnit);
}

TEST(NumberBounds, ASumOfNErrsByNRoundings) {
  EXPECT_NEAR(sum_unit(1), kF32Unit, 1e-12);
  EXPECT_NEAR(sum_unit(1000), 1000 * kF32Unit, 1e-7);
  EXPECT_GT(sum_unit(1000), 1000 * kF32Unit);
}

}  // namespace
}  // namespace luna::check
