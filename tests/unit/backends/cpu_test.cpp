// backend_cpu on whole models: near the oracle, and the same bits whatever the threads, the batch,
// the chunks and the devices.
#include "loaded_model.hpp"

#include <gmock/gmock.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

namespace luna::test {
namespace {

using testing::HasSubstr;

TEST(BackendCpu, LogitsAreNearTheOracle) {
  LlamaShape shapes[4];
  shapes[1].layers = {.bits = 8, .has_offset = false};
  shapes[1].rope_style = LUNA_ROPE_HALVES;
  shapes[2].layers = {.group = 0, .dtype = LUNA_DTYPE_BF16};
  shapes[2].n_kv_heads = 1;
  shapes[2].head_dim = 64;
  shapes[2].head = {.group = 0, .dtype = LUNA_DTYPE_F32};
  shapes[3].kv_dtype = LUNA_DTYPE_I8;
  for (const LlamaShape& shape : shapes) {
    const TinyLlama model(shape, test_seed());
    const auto tokens = model.random_tokens(50, test_seed());
    const auto blocks = block_ids(1, 2);
    Loaded reference("reference", model);
    Loaded cpu("cpu", model, 2);
    const auto expected = run_in_pieces(*reference.run, model, tokens, 50, blocks);
    const auto got = run_in_pieces(*cpu.run, model, tokens, 50, blocks);
    // BF16 KV: 2^-9 an element through two layers; 12-bit activations are below that. INT8: 2^-7.
    const double bound = shape.kv_dtype == LUNA_DTYPE_I8 ? 2e-2 : 1e-2;
    EXPECT_LT(relative_error(expected, got), bound) << seed_text();
  }
}

TEST(BackendCpu, ThreadCountChangesNoBit) {
  const TinyLlama model({}, test_seed());
  const auto blocks = block_ids(0, 2);
  // A wide step, narrow ones, single rows; few of the last, as threads may outnumber the cores.
  const std::pair<std::uint32_t, std::uint32_t> runs[] = {{64, 64}, {20, 5}, {6, 1}};
  for (const auto& [n_tokens, piece] : runs) {
    const auto tokens = model.random_tokens(n_tokens, test_seed());
    Loaded one("cpu", model, 1);
    const auto expected = run_in_pieces(*one.run, model, tokens, piece, blocks);
    for (const std::uint32_t n_threads : {2U, 3U, 5U}) {
      Loaded other("cpu", model, n_threads);
      EXPECT_TRUE(same_bits(expected, run_in_pieces(*other.run, model, tokens, piece, blocks)))
          << n_threads << " threads, pieces of " << piece << ", " << seed_text();
    }
  }
}

TEST(BackendCpu, AttentionCutWithinHeadsChangesNoBit) {
  LlamaShape shape;
  shape.n_rows_max = 600;
  shape.n_kv_heads = 1;
  shape.n_positions_max = 1216;
  shape.kv_dtype = LUNA_DTYPE_I8;
  const TinyLlama model(shape, test_seed());
  const auto tokens = model.random_tokens(1200, test_seed());  // partitions 0..4
  const auto blocks = block_ids(0, 38);
  const auto narrow = std::span(tokens).last(12);
  std::vector<float> expected;
  for (const std::uint32_t n_threads : {1U, 2U, 3U, 5U}) {
    Loaded cpu("cpu", model, n_threads, 48);
    auto rows = run_in_pieces(*cpu.run, model, std::span(tokens).first(1188), 594, blocks);
    for (std::uint32_t at = 0; at < narrow.size(); at += 4) {
      StepInput step(model.table_stride());  // beside it a short sequence
      step.add(narrow.subspan(at, 4), 1188 + at, blocks);
      step.add(narrow.subspan(at, 1), at / 4, block_ids(40, 1));
      const StepAnswer answer = cpu.run->run(step);
      ASSERT_EQ(answer.status, LUNA_OK) << answer.text;
      rows.insert(rows.end(), cpu.run->logits(), cpu.run->logits() + 5 * shape.vocab);
    }
    if (expected.empty()) expected = rows;
    EXPECT_TRUE(same_bits(expected, rows)) << n_threads << " threads, " << seed_text();
  }
}

TEST(BackendCpu, ChunkedPrefillEqualsWhole) {
  LlamaShape shape;
  shape.n_rows_max = 300;
  const TinyLlama model(shape, test_seed());
  const auto tokens = model.random_tokens(300, test_seed());  // more than one partition of 256
  const auto blocks = block_ids(0, 10);
  Loaded cpu("cpu", model, 2);
  const auto whole = run_in_pieces(*cpu.run, model, tokens, 300, blocks);
  for (const std::uint32_t piece : {7U, 8U, 9U, 100U, 256U})
    EXPECT_TRUE(same_bits(whole, run_in_pieces(*cpu.run, model, tokens, piece, block_ids(12, 10))))
        << "pieces of " << piece << ", " << seed_text();
}

TEST(BackendCpu, RowInABatchEqualsRowAlone) {
  const TinyLlama model({}, test_seed());
  const std::size_t row_bytes = model.shape().vocab * sizeof(float);
  Loaded cpu("cpu", model, 2);
  // Prompts of different lengths, each run alone; then one more token of each in one step.
  std::vector<std::vector<std::uint32_t>> prompts;
  std::vector<std::vector<float>> alone;
  for (std::uint32_t s = 0; s < 8; ++s) {
    prompts.push_back(model.random_tokens(3 + 7 * s, test_seed() + s));
    alone.push_back(run_in_pieces(*cpu.run, model, prompts[s], 60, block_ids(2 * s, 2)));
  }
  for (const std::uint32_t n_seqs : {2U, 8U}) {
    StepInput step(model.table_stride());
    for (std::uint32_t s = 0; s < n_seqs; ++s) {
      const auto last = static_cast<std::uint32_t>(prompts[s].size() - 1);
      step.add(std::span(prompts[s]).last(1), last, block_ids(2 * s, 2));
    }
    ASSERT_EQ(cpu.run->run(step).status, LUNA_OK);
    for (std::uint32_t s = 0; s < n_seqs; ++s) {
      const float* expected = alone[s].data() + alone[s].size() - model.shape().vocab;
      EXPECT_EQ(std::memcmp(
                    expected, cpu.run->logits() + std::size_t{s} * model.shape().vocab, row_bytes),
                0)
          << "sequence " << s << " of " << n_seqs << ", " << seed_text();
    }
  }
  // Two whole prompts and a decode row in one wide step.
  StepInput mixed(model.table_stride());
  mixed.add(prompts[4], 0, block_ids(20, 2));
  mixed.add(std::span(prompts[7]).last(1),
            static_cast<std::uint32_t>(prompts[7].size() - 1),
            block_ids(14, 2));
  mixed.add(prompts[1], 0, block_ids(24, 2));
  ASSERT_EQ(cpu.run->run(mixed).status, LUNA_OK);
  EXPECT_EQ(std::memcmp(cpu.run->logits(), alone[4].data(), prompts[4].size() * row_bytes), 0);
  const float* third = cpu.run->logits() + (prompts[4].size() + 1) * model.shape().vocab;
  EXPECT_EQ(std::memcmp(third, alone[1].data(), prompts[1].size() * row_bytes), 0) << seed_text();
}

TEST(BackendCpu, CopiedBlocksServeLikeTheirOriginals) {
  const TinyLlama model({}, test_seed());
  const auto tokens = model.random_tokens(40, test_seed());
  for (const std::string backend : {"cpu", "reference"}) {
    Loaded loaded(backend, model, 2);
    const auto whole = run_in_pieces(*loaded.run, model, tokens, 40, block_ids(0, 2));
    StepInput step(model.table_stride());
    step.kv_copies = {{0, 5}, {1, 9}};
    const std::uint32_t copies[] = {5, 9};
    step.add(std::span(tokens).last(1), 39, copies);
    ASSERT_EQ(loaded.run->run(step).status, LUNA_OK);
    EXPECT_EQ(std::memcmp(loaded.run->logits(),
                          whole.data() + 39 * model.shape().vocab,
                          model.shape().vocab * sizeof(float)),
              0)
        << backend << ", " << seed_text();
  }
}

TEST(BackendCpu, KvPoolThatStillGetsItsPagesServesTheSameBits) {
  const TinyLlama model({}, test_seed());
  const auto tokens = model.random_tokens(60, test_seed());
  constexpr std::uint32_t kBlocks = 8192;  // some hundred MiB: the last page comes long after
  Loaded small("cpu", model, 2);
  const auto expected = run_in_pieces(*small.run, model, tokens, 10, block_ids(0, 2));
  Loaded large("cpu", model, 2, kBlocks);
  const auto last = block_ids(kBlocks - 2, 2);
  EXPECT_TRUE(same_bits(expected, run_in_pieces(*large.run, model, tokens, 10, last)))
      << seed_text();
}

TEST(BackendCpu, StepWithoutOutputsFillsTheKv) {
  const TinyLlama model({}, test_seed());
  const auto tokens = model.random_tokens(50, test_seed());
  const auto blocks = block_ids(2, 2);
  for (const std::string backend : {"cpu", "reference"}) {
    Loaded loaded(backend, model, 2);
    const auto whole = run_in_pieces(*loaded.run, model, tokens, 50, block_ids(0, 2));
    for (const auto& [first, n] : {std::pair{0U, 40U}, std::pair{40U, 9U}}) {  // wide; narrow
      StepInput silent(model.table_stride());
      silent.add(std::span(tokens).subspan(first, n), first, blocks, false);
      ASSERT_EQ(loaded.run->run(silent).status, LUNA_OK);
    }
    StepInput last(model.table_stride());
    last.add(std::span(tokens).last(1), 49, blocks);
    ASSERT_EQ(loaded.run->run(last).status, LUNA_OK);
    EXPECT_EQ(std::memcmp(loaded.run->logits(),
                          whole.data() + 49 * model.shape().vocab,
                          model.shape().vocab * sizeof(float)),
              0)
        << backend << ", " << seed_text();
  }
}

TEST(BackendCpu, RowsAtPositionsWithGapsAttendToWhatIsThere) {
  // Positions of a sequence ascend, not necessarily by one: rows 0..9, then 20..29 over old KV.
  const TinyLlama model({}, test_seed());
  const auto tokens = model.random_tokens(30, test_seed());
  const auto blocks = block_ids(0, 1);
  Loaded cpu("cpu", model, 2);
  const auto whole = run_in_pieces(*cpu.run, model, tokens, 30, blocks);
  StepInput gap(model.table_stride());
  std::vector<std::uint32_t> some(tokens.begin(), tokens.begin() + 10);
  some.insert(some.end(), tokens.begin() + 20, tokens.end());
  gap.add(some, 0, blocks);
  for (std::uint32_t i = 10; i < 20; ++i)
    gap.positions[i] = 10 + i;
  ASSERT_EQ(cpu.run->run(gap).status, LUNA_OK);
  const std::size_t row = model.shape().vocab;
  EXPECT_EQ(std::memcmp(cpu.run->logits(), whole.data(), 10 * row * sizeof(float)), 0);
  EXPECT_EQ(
      std::memcmp(cpu.run->logits() + 10 * row, whole.data() + 20 * row, 10 * row * sizeof(float)),
      0)
      << seed_text();
}

TEST(BackendCpu, StepsQueueBehindEachOther) {
  const TinyLlama model({}, test_seed());
  Loaded cpu("cpu", model, 2);
  auto second =
      TestProgram::compile(cpu.device, cpu.program, *cpu.device.load_all(model.weights), 32);
  ASSERT_TRUE(second) << second.error().message();
  const auto tokens = model.random_tokens(64, test_seed());
  StepInput step(model.table_stride());
  step.add(tokens, 0, block_ids(0, 2));
  ASSERT_TRUE(cpu.run->start(step));
  ASSERT_TRUE((*second)->start(step));
  EXPECT_EQ(cpu.run->wait().status, LUNA_OK);
  EXPECT_EQ((*second)->wait().status, LUNA_OK);
  EXPECT_EQ(
      std::memcmp(cpu.run->logits(), (*second)->logits(), 64 * model.shape().vocab * sizeof(float)),
      0);
}

TEST(BackendCpu, StepsOutOfBoundsAreRefused) {
  const TinyLlama model({}, test_seed());
  for (const std::string backend : {"cpu", "reference"}) {
    Loaded loaded(backend, model, 1, 4);
    const auto refused = [&](auto&& spoil, const char* field) {
      StepInput step(model.table_stride());
      const std::uint32_t tokens[] = {1, 2, 3};
      step.add(tokens, 0, block_ids(0, 1));
      spoil(step);
      const StepAnswer answer = loaded.run->run(step);
      EXPECT_EQ(answer.status, LUNA_INVALID_ARGUMENT) << backend << " " << field;
      EXPECT_THAT(answer.text, HasSubstr(field)) << backend;
    };
    refused([](StepInput& s) { s.token_ids[1] = 200; }, "token_ids");
    refused([](StepInput& s) { s.positions[2] = 600; }, "positions");
    refused([](StepInput& s) { s.positions[2] = 1; }, "positions");
    refused([](StepInput& s) { s.tables[0] = 4; }, "block_tables");
    refused([](StepInput& s) { s.out_rows[2] = 3; }, "out_rows");
    refused([](StepInput& s) { s.out_rows[1] = 0; }, "out_rows");
    refused([](StepInput& s) { s.seq_first_row[1] = 2; }, "seq_first_row");
    refused([](StepInput& s) { s.kv_copies = {{0, 4}}; }, "kv_copies");
    refused([](StepInput& s) { s.table_stride = 0; }, "block_table_stride");
  }
}

// ---- Two devices --------------------------------------------------------------------------------

/// Two ranks of one communicator in this process: mailboxes by (from, to, tag).
class MailboxComm {
 public:
  MailboxComm() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ends_[rank] = {this, rank};
      comms_[rank] = {sizeof(luna_comm), rank, 2, 0, &ends_[rank], send, recv, all_reduce};
    }
  }
  const luna_comm* rank(std::uint32_t r) const { return &comms_[r]; }
  void abort() {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    arrived_.notify_all();
  }

 private:
  struct End {
    MailboxComm* owner;
    std::uint32_t rank;
  };
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

  static luna_status send(
      void* self, std::uint32_t peer, std::uint32_t tag, const void* data, std::uint64_t n) {
    const End& end = *static_cast<End*>(self);
    const std::lock_guard lock(end.owner->mutex_);
    const auto* bytes = static_cast<const std::byte*>(data);
    end.owner->boxes_[Key{end.rank, peer, tag}].emplace_back(bytes, bytes + n);
    end.owner->arrived_.notify_all();
    return LUNA_OK;
  }
  static luna_status recv(
      void* self, std::uint32_t peer, std::uint32_t tag, void* data, std::uint64_t n) {
    const End& end = *static_cast<End*>(self);
    std::unique_lock lock(end.owner->mutex_);
    auto& box = end.owner->boxes_[Key{peer, end.rank, tag}];
    end.owner->arrived_.wait(lock, [&] { return end.owner->is_aborted_ || !box.empty(); });
    if (box.empty()) return LUNA_CANCELLED;
    EXPECT_EQ(box.front().size(), n);
    std::memcpy(data, box.front().data(), n);
    box.pop_front();
    return LUNA_OK;
  }
  static luna_status all_reduce(
      void* self, const void* in, void* out, std::uint64_t n, std::uint32_t) {
    const End& end = *static_cast<End*>(self);
    const std::uint32_t peer = 1 - end.rank;
    std::vector<float> other(n);
    send(self, peer, 999, in, n * sizeof(float));
    const luna_status status = recv(self, peer, 999, other.data(), n * sizeof(float));
    const float* own = static_cast<const float*>(in);
    for (std::uint64_t i = 0; i < n; ++i)  // rank order
      static_cast<float*>(out)[i] = end.rank == 0 ? own[i] + other[i] : other[i] + own[i];
    return status;
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Key, std::deque<std::vector<std::byte>>> boxes_;
  bool is_aborted_ = false;
  End ends_[2];
  luna_comm comms_[2];
};

TEST(BackendCpu, TwoDevicesInAPipelineEqualOne) {
  const TinyLlama model({}, test_seed());
  const auto tokens = model.random_tokens(40, test_seed());
  const auto blocks = block_ids(0, 2);
  Loaded one("cpu", model, 2);
  for (const std::uint32_t piece : {40U, 6U}) {
    const auto expected = run_in_pieces(*one.run, model, tokens, piece, blocks);
    MailboxComm comm;
    const Program first = model.program({0, 1, false, true});
    const Program second = model.program({1, 1, true, false});
    TestDevice devices[2] = {TestDevice("cpu", 2), TestDevice("cpu", 1)};
    auto a = TestProgram::compile(devices[0], first, *devices[0].load_all(model.weights));
    auto b = TestProgram::compile(devices[1], second, *devices[1].load_all(model.weights));
    ASSERT_TRUE(a) << a.error().message();
    ASSERT_TRUE(b) << b.error().message();
    (*a)->bind_comm(*first.bound_slot(LUNA_SLOT_COMM), comm.rank(0));
    (*b)->bind_comm(*second.bound_slot(LUNA_SLOT_COMM), comm.rank(1));
    std::vector<float> got;
    for (std::uint32_t at = 0; at < 40; at += piece) {
      const auto n = std::min<std::uint32_t>(piece, 40 - at);
      StepInput step(model.table_stride());
      step.add(std::span(tokens).subspan(at, n), at, blocks);
      ASSERT_TRUE((*b)->start(step));
      ASSERT_TRUE((*a)->start(step));
      EXPECT_EQ((*a)->wait().status, LUNA_OK);
      EXPECT_EQ((*b)->wait().status, LUNA_OK);
      got.insert(got.end(), (*b)->logits(), (*b)->logits() + std::size_t{n} * model.shape().vocab);
    }
    EXPECT_TRUE(same_bits(expected, got)) << "pieces of " << piece << ", " << seed_text();
  }
}

TEST(BackendCpu, AbortedCommunicatorEndsTheStepWithItsStatus) {
  const TinyLlama model({}, test_seed());
  const auto tokens = model.random_tokens(5, test_seed());
  for (const std::string backend : {"cpu", "reference"}) {
    MailboxComm comm;
    const Program second = model.program({1, 1, true, false});
    TestDevice device(backend, 2);
    auto run = TestProgram::compile(device, second, *device.load_all(model.weights));
    ASSERT_TRUE(run) << run.error().message();
    (*run)->bind_comm(*second.bound_slot(LUNA_SLOT_COMM), comm.rank(1));
    StepInput step(model.table_stride());
    step.add(tokens, 0, block_ids(0, 1));
    ASSERT_TRUE((*run)->start(step));
    comm.abort();
    EXPECT_EQ((*run)->wait().status, LUNA_CANCELLED) << backend;
  }
}

}  // namespace
}  // namespace luna::test
