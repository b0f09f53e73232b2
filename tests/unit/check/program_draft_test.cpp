// What op conformance draws: every op of the contract, and steps that core could make.
#include "core/check/program_draft.hpp"

#include "core/check/step_draft.hpp"
#include "support/test_seed.hpp"

#include <luna/backend_blocks.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace luna::check {
namespace {

DeviceOffer all_forms(std::uint32_t numerics = LUNA_NUMERICS_I12) {
  return {numerics, LUNA_DTYPE_BF16, {weight_forms().begin(), weight_forms().end()}};
}

bool has_op(const luna_program& program, std::uint32_t op) {
  return std::any_of(
      program.ops, program.ops + program.n_ops, [op](const luna_op& one) { return one.op == op; });
}

// An op that gets its arguments gets a row too. Those of experts have none yet.
TEST(OpRows, HaveEveryOpOfTheContract) {
  std::set<std::uint32_t> covered = {LUNA_OP_MOE_ROUTE, LUNA_OP_GROUPED_LINEAR, LUNA_OP_MOE_SUM};
  for (const OpRow& row : op_rows())
    covered.insert(row.op);
  for (std::uint32_t op = 0; op < LUNA_N_OPS; ++op)
    EXPECT_EQ(covered.contains(op), kOpRules[op].defined) << op_name(op);
}

TEST(OpRows, PutTheirOpIntoTheProgram) {
  for (const OpRow& row : op_rows()) {
    const auto drawn = ProgramDraft::of_row(row, test::test_seed(), all_forms());
    ASSERT_TRUE(drawn) << row.name << ": " << drawn.error().message();
    EXPECT_TRUE(has_op(drawn->program.abi(), row.op)) << row.name;
  }
}

TEST(ProgramDraft, GivesTheSameProgramForTheSameSeed) {
  const DeviceOffer offer = all_forms();
  std::vector<const OpRow*> rows;
  for (const OpRow& row : op_rows())
    if (row.op != LUNA_OP_KV_PRUNE) rows.push_back(&row);  // by itself alone
  for (std::uint64_t seed = test::test_seed(); seed < test::test_seed() + 50; ++seed) {
    const auto one = ProgramDraft::of_rows(rows, seed, offer);
    const auto other = ProgramDraft::of_rows(rows, seed, offer);
    ASSERT_TRUE(one && other) << "seed " << seed;
    EXPECT_EQ(one->program.abi().hash, other->program.abi().hash) << "seed " << seed;
    EXPECT_EQ(one->text, other->text);
  }
}

TEST(StepDraft, MakesStepsThatADeviceMustTake) {
  for (const OpRow& row : op_rows())
    for (std::uint64_t seed = test::test_seed(); seed < test::test_seed() + 10; ++seed) {
      SCOPED_TRACE(std::string(row.name) + ", seed " + std::to_string(seed));
      const auto drawn = ProgramDraft::of_row(row, seed, all_forms());
      ASSERT_TRUE(drawn) << drawn.error().message();
      std::mt19937_64 random(seed);
      const Conversation conversation = draw_conversation(*drawn, random);
      StepBounds bounds = step_bounds(drawn->program.abi());
      bounds.n_kv_blocks = conversation.n_kv_blocks;
      std::size_t n_rows = 0;
      for (const DrawnStep& step : draw_batches(*drawn, conversation, random)) {
        const auto checked = check_step(bounds, step.abi());
        ASSERT_TRUE(checked) << checked.error().message();
        n_rows += step.token_ids.size();
      }
      std::size_t n_tokens = 0;
      for (std::uint32_t s = 0; s < conversation.sequences.size(); ++s) {
        n_tokens += conversation.sequences[s].size();
        for (const DrawnStep& step : steps_alone(*drawn, conversation, s))
          ASSERT_TRUE(check_step(bounds, step.abi()));
      }
      EXPECT_EQ(n_rows, n_tokens);
    }
}

}  // namespace
}  // namespace luna::check
