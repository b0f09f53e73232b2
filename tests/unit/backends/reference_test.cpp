// backend_reference: what an oracle must have, and what its limits answer.
#include "support/tiny_llama.hpp"

#include <gmock/gmock.h>

namespace luna::test {
namespace {

TEST(BackendReference, RowInABatchEqualsRowAlone) {
  const TinyLlama model({}, test_seed());
  TestDevice device("reference");
  const auto weights = device.load_all(model.weights);
  ASSERT_TRUE(weights) << weights.error().message();
  const Program program = model.program();
  const auto run = TestProgram::compile(device, program, *weights);
  ASSERT_TRUE(run) << run.error().message();

  const auto tokens = model.random_tokens(33, test_seed());
  const std::uint32_t blocks[] = {3, 5};
  StepInput whole(model.table_stride());
  whole.add(tokens, 0, blocks);
  ASSERT_EQ((*run)->run(whole).status, LUNA_OK);
  const std::size_t row_floats = model.shape().vocab;
  const std::vector<float> expected((*run)->logits(), (*run)->logits() + 33 * row_floats);

  const std::uint32_t other_blocks[] = {7, 1};
  for (std::uint32_t i = 0; i < 33; ++i) {
    StepInput one(model.table_stride());
    one.add(std::span(tokens).subspan(i, 1), i, other_blocks);
    ASSERT_EQ((*run)->run(one).status, LUNA_OK);
    ASSERT_EQ(std::memcmp((*run)->logits(), expected.data() + i * row_floats, 4 * row_floats), 0)
        << "row " << i << ", LUNA_TEST_SEED=" << test_seed();
  }
}

TEST(BackendReference, WeightBeyondTheBudgetIsExhausted) {
  TestDevice device("reference", 1, 1 << 16);
  std::mt19937_64 rng(test_seed());
  const auto loaded = device.load(random_weight(rng, 256, 256, {}));
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code(), Code::exhausted);
  EXPECT_THAT(loaded.error().message(), testing::HasSubstr("262144 bytes do not fit"));
}

}  // namespace
}  // namespace luna::test
