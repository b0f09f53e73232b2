// backend_cpu on sequences that begin in the same KV blocks: the bits of sequences that do not.
#include "loaded_model.hpp"
#include "plugins/backend_cpu/attend_order.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace luna::test {
namespace {

constexpr std::uint32_t kBlockTokens = 32;

/// Eight prompts: all begin alike for four blocks, the last five for nine.
std::vector<std::vector<std::uint32_t>> related_prompts(const TinyLlama& model) {
  const auto common = model.random_tokens(288, test_seed());
  std::vector<std::vector<std::uint32_t>> prompts;
  for (std::uint32_t s = 0; s < 8; ++s) {
    std::vector<std::uint32_t> prompt(common.begin(), common.begin() + (s < 3 ? 128 : 288));
    const auto own = model.random_tokens(5 + 23 * s, test_seed() + 1 + s);
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

/// The blocks of each prompt: its own all of them; or the common ones of the last prompt.
std::vector<std::vector<std::uint32_t>> tables_of(
    const std::vector<std::vector<std::uint32_t>>& prompts, bool shares) {
  std::vector<std::vector<std::uint32_t>> tables;
  for (std::uint32_t s = 0; s < prompts.size(); ++s) {
    auto table = block_ids(16 * s, 16);
    const auto own_first = static_cast<std::ptrdiff_t>(s < 3 ? 4 : 9);
    const auto common = block_ids(16 * 7, 16);
    if (shares) std::copy(common.begin(), common.begin() + own_first, table.begin());
    tables.push_back(std::move(table));
  }
  return tables;
}

/// Logits of a step with the last `n_last` tokens of each prompt, whose KV is there before.
std::vector<float> last_logits(
    Loaded& cpu, const TinyLlama& model, bool shares, std::uint32_t n_seqs, std::uint32_t n_last) {
  const auto prompts = related_prompts(model);
  const auto tables = tables_of(prompts, shares);
  for (std::uint32_t s = 8; s-- > 0;)  // the one whose blocks the others use first
    run_in_pieces(*cpu.run, model, prompts[s], 64, tables[s]);
  StepInput step(model.table_stride());
  std::uint32_t n_rows = 0;
  for (std::uint32_t i = 0; i < n_seqs; ++i) {
    const std::uint32_t s = i * 3 % 8;  // those that begin alike are not neighbours
    const auto n = static_cast<std::uint32_t>(prompts[s].size());
    step.add(std::span(prompts[s]).last(n_last), n - n_last, tables[s]);
    n_rows += n_last;
  }
  const StepAnswer answer = cpu.run->run(step);
  EXPECT_EQ(answer.status, LUNA_OK) << answer.text;
  return {cpu.run->logits(), cpu.run->logits() + std::size_t{n_rows} * model.shape().vocab};
}

TEST(BackendCpu, SequencesThatShareBlocksGetTheBitsOfThoseThatDoNot) {
  for (const std::uint32_t kv_dtype : {LUNA_DTYPE_BF16, LUNA_DTYPE_I8}) {
    LlamaShape shape;
    shape.kv_dtype = kv_dtype;
    const TinyLlama model(shape, test_seed());
    for (const auto& [n_seqs, n_last] : {std::pair{8U, 1U}, {8U, 3U}, {5U, 1U}, {8U, 5U}}) {
      Loaded one("cpu", model, 1, 128);
      const auto expected = last_logits(one, model, false, n_seqs, n_last);
      for (const std::uint32_t n_threads : {1U, 2U, 3U}) {
        Loaded cpu("cpu", model, n_threads, 128);
        EXPECT_TRUE(same_bits(expected, last_logits(cpu, model, true, n_seqs, n_last)))
            << n_threads << " threads, " << n_seqs << " sequences, " << n_last << " rows, "
            << seed_text();
      }
    }
  }
}

// ---- The order of a step ------------------------------------------------------------------------

/// Tables of random families: each begins like an earlier one up to some block.
StepInput random_step(std::mt19937_64& rng, std::uint32_t n_seqs) {
  StepInput step(16);
  std::uint32_t next_block = 0;
  std::vector<std::vector<std::uint32_t>> tables;
  for (std::uint32_t s = 0; s < n_seqs; ++s) {
    std::vector<std::uint32_t> table(16);
    std::size_t n_common = 0;
    if (s != 0 && rng() % 4 != 0) {
      table = tables[rng() % s];
      n_common = rng() % 17;
    }
    for (std::size_t i = n_common; i < 16; ++i)
      table[i] = next_block++;
    const auto n_rows = static_cast<std::uint32_t>(rng() % 5 == 0 ? 1 + rng() % 9 : 1);
    const auto first = static_cast<std::uint32_t>(rng() % (16 * kBlockTokens - n_rows));
    step.add(std::vector<std::uint32_t>(n_rows, 1), first, table);
    tables.push_back(std::move(table));
  }
  return step;
}

TEST(AttendOrder, TasksHoldEverySequenceOnceAndOnlyWhatTheyShare) {
  std::mt19937_64 rng(test_seed());
  bool has_shared = false;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " " + seed_text());
    const auto n_seqs = static_cast<std::uint32_t>(1 + rng() % 40);
    const StepInput input = random_step(rng, n_seqs);
    luna_step step{};
    step.struct_size = sizeof(step);
    step.n_seqs = n_seqs;
    step.n_rows = input.seq_first_row.back();
    step.positions = input.positions.data();
    step.seq_first_row = input.seq_first_row.data();
    step.block_tables = input.tables.data();
    step.block_table_stride = input.table_stride;
    const auto rows_max = static_cast<std::uint32_t>(rng() % 13);
    cpu::AttendOrder order;
    order.reserve(n_seqs);
    order.find(step, {kBlockTokens, rows_max, 3, 1 + static_cast<std::uint32_t>(rng() % 3)});
    std::set<std::uint32_t> seen;
    std::uint32_t at = 0;
    for (const cpu::AttendTask& task : order.tasks()) {
      ASSERT_EQ(task.first, at);
      std::uint32_t n_rows = 0;
      for (std::uint32_t i = 0; i < task.n_seqs; ++i) {
        const std::uint32_t seq = order.seq(task.first + i);
        EXPECT_TRUE(seen.insert(seq).second);
        n_rows += step.seq_first_row[seq + 1] - step.seq_first_row[seq];
        const std::uint32_t* table = step.block_tables + std::size_t{seq} * 16;
        const std::uint32_t* of_first = step.block_tables + std::size_t{order.seq(task.first)} * 16;
        EXPECT_TRUE(std::equal(table, table + task.shared_slots / kBlockTokens, of_first));
      }
      at += task.n_seqs;
      if (task.is_alone()) continue;
      has_shared = true;
      EXPECT_LE(n_rows, rows_max);
      EXPECT_GE(task.shared_slots, 128U);
      EXPECT_TRUE(order.has_shared());
    }
    EXPECT_EQ(seen.size(), n_seqs);
    EXPECT_EQ(at, n_seqs);
    EXPECT_EQ(order.group_ends().back(), order.tasks().size());
    EXPECT_TRUE(std::is_sorted(order.group_ends().begin(), order.group_ends().end()));
  }
  EXPECT_TRUE(has_shared);
}

}  // namespace
}  // namespace luna::test
