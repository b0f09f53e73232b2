// backend_cpu with share_weights: one memory for equal weights, the same results.
#include "core/base/process_memory.hpp"
#include "loaded_model.hpp"

#include <luna/plugin.hpp>

namespace luna::test {
namespace {

std::vector<float> logits_of(TestDevice& device,
                             const TinyLlama& model,
                             std::span<const std::uint64_t> weights) {
  const Program program = model.program();
  auto compiled = TestProgram::compile(device, program, weights);
  EXPECT_TRUE(compiled) << compiled.error().message();
  StepInput step(model.table_stride());
  const auto tokens = model.random_tokens(9, test_seed());
  step.add(tokens, 0, block_ids(0, 4));
  const StepAnswer answer = (*compiled)->run(step);
  EXPECT_EQ(answer.status, LUNA_OK) << answer.text;
  return {(*compiled)->logits(), (*compiled)->logits() + tokens.size() * model.shape().vocab};
}

TEST(WeightShare, DevicesThatShareGetTheBitsOfDevicesThatDoNot) {
  SCOPED_TRACE(seed_text());
  const TinyLlama model(LlamaShape{}, test_seed());
  std::vector<float> expected;
  {
    TestDevice alone("cpu");
    const auto weights = alone.load_all(model.weights);
    ASSERT_TRUE(weights);
    expected = logits_of(alone, model, *weights);
  }
  auto first = std::make_unique<TestDevice>("cpu", TestDevice::Setup{.shares_weights = true});
  TestDevice second("cpu", TestDevice::Setup{.shares_weights = true});
  const auto weights_of_first = first->load_all(model.weights);
  const auto weights = second.load_all(model.weights);
  ASSERT_TRUE(weights_of_first && weights);
  EXPECT_EQ(logits_of(*first, model, *weights_of_first), expected);
  EXPECT_EQ(logits_of(second, model, *weights), expected);
  first.reset();  // whoever packed them goes; the other still reads them
  EXPECT_EQ(logits_of(second, model, *weights), expected);
  // And a third finds them there, or packs its own.
  TestDevice third("cpu", TestDevice::Setup{.shares_weights = true});
  const auto weights_of_third = third.load_all(model.weights);
  ASSERT_TRUE(weights_of_third);
  EXPECT_EQ(logits_of(third, model, *weights_of_third), expected);
}

TEST(WeightShare, WeightsThatDifferStayApart) {
  SCOPED_TRACE(seed_text());
  const TinyLlama model(LlamaShape{}, test_seed()), other(LlamaShape{}, test_seed() + 1);
  TestDevice first("cpu", TestDevice::Setup{.shares_weights = true});
  TestDevice second("cpu", TestDevice::Setup{.shares_weights = true});
  TestDevice alone("cpu");
  const auto weights = first.load_all(model.weights);
  const auto weights_of_other = second.load_all(other.weights);
  const auto expected = alone.load_all(other.weights);
  ASSERT_TRUE(weights && weights_of_other && expected);
  EXPECT_EQ(logits_of(second, other, *weights_of_other), logits_of(alone, other, *expected));
}

TEST(WeightShare, EqualWeightsTakeTheirMemoryOnceAndTheirBudgetTwice) {
  SCOPED_TRACE(seed_text());
  std::mt19937_64 rng(test_seed());
  // 32 MiB packed, so that it stands out of what else the process does.
  const HostWeight weight = random_weight(rng, 8192, 8192, {.bits = 4, .group = 32});
  TestDevice first("cpu", TestDevice::Setup{.shares_weights = true});
  TestDevice second("cpu", TestDevice::Setup{.shares_weights = true});
  TestDevice apart("cpu");
  luna_err err = make_err();
  std::uint64_t bytes = 0;
  ASSERT_EQ(first.table().weight_bytes(first.raw(), &weight.desc, LUNA_NUMERICS_I12, &bytes, &err),
            LUNA_OK);
  const std::uint64_t before = resident_bytes();
  ASSERT_TRUE(first.load(weight));
  const std::uint64_t with_one = resident_bytes();
  ASSERT_TRUE(second.load(weight));
  const std::uint64_t with_two = resident_bytes();
  ASSERT_TRUE(apart.load(weight));
  const std::uint64_t with_three = resident_bytes();
#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // these have pages of their own
  EXPECT_GT(with_one - before, bytes / 2);
  EXPECT_LT(with_two, with_one + bytes / 4);
  EXPECT_GT(with_three - with_two, bytes / 2);
#else
  static_cast<void>(before + with_one + with_two + with_three);
#endif
  TestDevice small("cpu", TestDevice::Setup{.memory_bytes = bytes - 1, .shares_weights = true});
  const auto refused = small.load(weight);
  ASSERT_FALSE(refused) << "each device is charged";
  EXPECT_EQ(refused.error().code(), Code::exhausted);
}

}  // namespace
}  // namespace luna::test
