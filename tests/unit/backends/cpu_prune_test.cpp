// backend_cpu: kv_prune on whole models, whatever the pieces and the threads.
#include "loaded_model.hpp"

#include <gtest/gtest.h>

namespace luna::test {
namespace {

/// Logits of a prompt that is run in pieces and pruned, then of what follows it, row by row.
std::vector<float> run_pruned(TestProgram& run,
                              const TinyLlama& model,
                              std::span<const std::uint32_t> tokens,
                              std::uint32_t n_prompt,
                              std::uint32_t piece) {
  constexpr std::uint32_t kPruned = 160;
  const auto blocks = block_ids(3, 12);
  std::vector<float> rows;
  std::uint32_t n = 0;
  for (std::uint32_t at = 0; at < tokens.size(); at += n) {
    n = at < n_prompt ? std::min(piece, n_prompt - at) : 1;
    StepInput step(model.table_stride());
    step.add(tokens.subspan(at, n), at, blocks);
    luna_seq_prune prune{};
    if (at >= n_prompt) {
      prune.n_pruned = kPruned;
    } else {
      const std::uint32_t observed = n_prompt - LUNA_PRUNE_RECENT;
      if (at + n > observed) prune.n_observed = std::min(n, at + n - observed);
      if (at + n == n_prompt) prune.n_keep = n_prompt - kPruned;
    }
    step.seq_prunes = {prune};
    const StepAnswer answer = run.run(step);
    EXPECT_EQ(answer.status, LUNA_OK) << answer.text;
    rows.insert(rows.end(), run.logits(), run.logits() + std::size_t{n} * model.shape().vocab);
  }
  return rows;
}

TEST(BackendCpu, PruningDependsOnTheTokensAlone) {
  for (const std::uint32_t kv_dtype : {LUNA_DTYPE_BF16, LUNA_DTYPE_I8}) {
    LlamaShape shape;
    shape.n_rows_max = 320;
    shape.kv_dtype = kv_dtype;
    shape.n_layers = 3;
    shape.prune_group_layers = 2;
    const TinyLlama model(shape, test_seed());
    const auto tokens = model.random_tokens(310, test_seed());
    std::vector<float> expected;
    for (const std::uint32_t n_threads : {1U, 2U, 3U}) {
      Loaded cpu("cpu", model, n_threads);
      for (const std::uint32_t piece : {300U, 100U, 41U, 8U}) {
        const auto got = run_pruned(*cpu.run, model, tokens, 300, piece);
        if (expected.empty()) expected = got;
        ASSERT_TRUE(same_bits(expected, got))
            << n_threads << " threads, pieces of " << piece << ", " << seed_text();
      }
    }
    // The oracle's masses differ in the last bits: at the edge it may keep another position.
    Loaded reference("reference", model);
    const auto oracle = run_pruned(*reference.run, model, tokens, 300, 300);
    EXPECT_LT(relative_error(oracle, expected), 3e-2) << seed_text();
    const auto tail = [&](const std::vector<float>& rows) {
      return std::vector<float>(rows.end() - 10 * static_cast<std::ptrdiff_t>(shape.vocab),
                                rows.end());
    };
    EXPECT_LT(relative_error(tail(oracle), tail(expected)), 6e-2) << seed_text();
  }
}

TEST(BackendCpu, KeepingAllChangesNoBit) {
  LlamaShape shape;
  shape.n_rows_max = 128;
  const TinyLlama plain(shape, test_seed());
  shape.prune_group_layers = 1;
  const TinyLlama pruning(shape, test_seed());
  const auto tokens = plain.random_tokens(110, test_seed());
  Loaded expected("cpu", plain, 2);
  Loaded cpu("cpu", pruning, 2);
  const auto blocks = block_ids(1, 4);
  StepInput step(pruning.table_stride());
  step.add(std::span(tokens).first(100), 0, blocks);
  step.seq_prunes = {{0, 64, 100, 0}};
  ASSERT_EQ(cpu.run->run(step).status, LUNA_OK);
  const auto whole = run_in_pieces(*expected.run, plain, tokens, 100, blocks);
  StepInput rest(pruning.table_stride());
  rest.add(std::span(tokens).subspan(100), 100, blocks);
  ASSERT_EQ(cpu.run->run(rest).status, LUNA_OK);
  EXPECT_EQ(0,
            std::memcmp(cpu.run->logits(),
                        whole.data() + std::size_t{100} * shape.vocab,
                        std::size_t{10} * shape.vocab * sizeof(float)))
      << seed_text();
}

TEST(BackendCpu, PruningOutOfBoundsIsRefused) {
  LlamaShape shape;
  shape.prune_group_layers = 1;
  for (const bool can_prune : {true, false}) {
    shape.prune_group_layers = can_prune ? 1 : 0;
    const TinyLlama model(shape, test_seed());
    const auto tokens = model.random_tokens(10, test_seed());
    Loaded cpu("cpu", model, 1);
    const luna_seq_prune wrong[] = {{6, 0, 0, 0}, {0, 11, 0, 0}, {0, 0, 16, 0}, {0, 0, 5, 0}};
    for (const luna_seq_prune& prune : wrong) {
      StepInput step(model.table_stride());
      step.add(tokens, 5, block_ids(0, 1));
      step.seq_prunes = {prune};
      EXPECT_EQ(cpu.run->run(step).status, LUNA_INVALID_ARGUMENT);
    }
    StepInput step(model.table_stride());
    step.add(tokens, 5, block_ids(0, 1));
    step.seq_prunes = {{0, 10, 15, 0}};
    EXPECT_EQ(cpu.run->run(step).status, can_prune ? LUNA_OK : LUNA_INVALID_ARGUMENT);
  }
}

}  // namespace
}  // namespace luna::test
