// Extension luna.ext.slices/1: attention over KV that lies on other devices has the bits of KV that
// lies at home.
#include "slice_rig.hpp"

#include <gmock/gmock.h>

#include <numeric>
#include <thread>

namespace luna::test {
namespace {

using testing::HasSubstr;

LlamaShape sliced_shape() {
  LlamaShape shape;
  shape.n_rows_max = 320;
  shape.n_positions_max = 2400;
  shape.has_slices = true;
  return shape;
}

/// A long prompt in pieces and then single rows, with a short sequence beside it.
struct Story {
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint32_t> beside;
  std::uint32_t piece = 300;
  std::uint32_t n_single = 4;

  Story(const TinyLlama& model, std::uint32_t n, std::uint32_t piece_rows)
      : tokens(model.random_tokens(n, test_seed())),
        beside(model.random_tokens(40, test_seed() + 1)),
        piece(piece_rows) {}

  /// Calls body(first, n) for the rows of each step.
  template <typename Body>
  void for_steps(Body&& body) const {
    const auto n = static_cast<std::uint32_t>(tokens.size());
    for (std::uint32_t at = 0; at < n;) {
      const std::uint32_t rows = at < n - n_single ? std::min(piece, n - n_single - at) : 1;
      body(at, rows);
      at += rows;
    }
  }
};

std::vector<float> run_whole(const TinyLlama& model, const Story& story) {
  Loaded whole("cpu", model, 2, 96);
  std::vector<float> rows;
  story.for_steps([&](std::uint32_t at, std::uint32_t n) {
    const StepAnswer answer = run_rows(whole, model, {story.tokens, at, n}, block_ids(0, 75));
    EXPECT_EQ(answer.status, LUNA_OK) << answer.text;
    append_logits(*whole.run, n * model.shape().vocab, &rows);
  });
  return rows;
}

/// As run_whole(); closed partitions go to the guests as soon as they may.
std::vector<float> run_sliced(SliceRig& rig, const Story& story) {
  const TinyLlama& model = rig.model;
  std::vector<float> rows;
  SlicedSequence sequence(rig, test_seed());
  story.for_steps([&](std::uint32_t at, std::uint32_t n) {
    StepInput step(model.table_stride());
    // Beside it, before and behind in the step, a row of another sequence.
    step.add(std::span(story.beside).subspan(at % 39, 1), at % 39, block_ids(80, 2), false);
    sequence.add_rows(&step, std::span(story.tokens).subspan(at, n), at);
    EXPECT_TRUE(rig.owner.run->start(step));
    sequence.copy_closed(at);  // beside the step, which reads them at home for the last time
    const StepAnswer answer = rig.owner.run->wait();
    EXPECT_EQ(answer.status, LUNA_OK) << answer.text;
    append_logits(*rig.owner.run, n * model.shape().vocab, &rows);
    sequence.let_go();
  });
  EXPECT_GE(sequence.n_partitions_away(), 4U);
  return rows;
}

TEST(Slices, AreBitEqualToTheWholeOnAnyNumberOfGuests) {
  struct Case {
    std::uint32_t kv_dtype;
    std::uint32_t window;
    float softcap;
    std::uint32_t piece;
  };
  for (const Case& c : {Case{LUNA_DTYPE_BF16, 0, 0.0F, 300},
                        Case{LUNA_DTYPE_I8, 0, 0.0F, 299},
                        Case{LUNA_DTYPE_BF16, 700, 20.0F, 290}}) {
    LlamaShape shape = sliced_shape();
    shape.kv_dtype = c.kv_dtype;
    shape.window = c.window;
    shape.softcap = c.softcap;
    const TinyLlama model(shape, test_seed());
    const Story story(model, 2300, c.piece);
    const auto expected = run_whole(model, story);
    for (const std::uint32_t n_guests : {2U, 4U, 7U}) {
      SliceRig rig(model, n_guests, n_guests == 2 ? 2 : 1);
      EXPECT_TRUE(same_bits(expected, run_sliced(rig, story)))
          << n_guests << " guests, window " << c.window << ", " << seed_text();
    }
  }
}

TEST(Slices, ManyRowsAndHeadsTakeSeveralTiles) {
  LlamaShape shape = sliced_shape();
  shape.n_heads = 16;
  shape.head_dim = 64;
  shape.n_layers = 1;
  const TinyLlama model(shape, test_seed());
  const Story story(model, 1500, 280);
  SliceRig rig(model, 3, 2);
  EXPECT_TRUE(same_bits(run_whole(model, story), run_sliced(rig, story))) << seed_text();
}

TEST(Slices, TwoDevicesMayServeEachOther) {
  const TinyLlama model(sliced_shape(), test_seed());
  const Story story(model, 1400, 150);
  const auto expected = run_whole(model, story);
  SliceRig a(model, 0, 1);
  SliceRig b(model, 0, 1);
  a.join(b.owner);
  b.join(a.owner);
  std::vector<float> of_a;
  std::thread other([&] { of_a = run_sliced(a, story); });
  const auto of_b = run_sliced(b, story);
  other.join();
  a.end();
  b.end();
  EXPECT_TRUE(same_bits(expected, of_a)) << seed_text();
  EXPECT_TRUE(same_bits(expected, of_b)) << seed_text();
}

/// By slice, what five rows from 1,024 on pay it; three of four partitions lie on three guests.
struct WeighedSlices {
  std::vector<luna_slice> slices;
  std::vector<double> shares;

  WeighedSlices(const TinyLlama& model, std::uint32_t n_guests) {
    const auto tokens = model.random_tokens(1029, test_seed());
    SliceRig rig(model, n_guests, 2);
    SlicedSequence sequence(rig, test_seed());
    sequence.run_to(tokens, 1024);
    StepInput step(model.table_stride());
    step.add(std::span(tokens).first(3), 0, block_ids(80, 2), false);
    sequence.add_rows(&step, std::span(tokens).subspan(1024), 1024);
    std::vector<std::uint64_t> masses(step.slices.size());
    step.slice_masses = masses.data();
    const StepAnswer answer = rig.owner.run->run(step);
    EXPECT_EQ(answer.status, LUNA_OK) << answer.text;
    slices = step.slices;
    for (const std::uint64_t mass : masses)
      shares.push_back(static_cast<double>(mass) * 0x1p-32 /
                       (model.shape().n_layers * model.shape().n_heads));
  }
  [[nodiscard]] double sum() const { return std::accumulate(shares.begin(), shares.end(), 0.0); }
};

TEST(Slices, AreToldTheAttentionThatTheLastRowPaysThem) {
  for (const std::uint32_t window : {0U, 700U}) {
    LlamaShape shape = sliced_shape();
    shape.window = window;
    TinyLlama model(shape, test_seed());
    const WeighedSlices on_three(model, 3);
    const WeighedSlices on_one(model, 1);
    EXPECT_NE(on_three.slices.size(), 0U);
    EXPECT_NEAR(on_three.sum(), on_one.sum(), 1e-6) << "however they are cut";
    // Queries of zero: every position that is seen counts the same.
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer)
      for (std::vector<std::byte>& plane : model.weights[2 + 9 * layer + 1].planes)
        std::ranges::fill(plane, std::byte{0});
    const WeighedSlices even(model, 3);
    const std::uint32_t first_seen = window == 0 ? 0 : 1029 - window;
    for (std::size_t s = 0; s < even.slices.size(); ++s) {
      const std::uint32_t first = even.slices[s].first_partition * LUNA_PARTITION_TOKENS;
      const std::uint32_t end = first + even.slices[s].n_partitions * LUNA_PARTITION_TOKENS;
      const double n_seen = end > first_seen ? end - std::max(first, first_seen) : 0;
      EXPECT_NEAR(even.shares[s], n_seen / (1029 - first_seen), 1e-5) << "slice " << s;
    }
  }
}

TEST(Slices, AGuestThatIsGoneEndsTheStepAndNoOther) {
  const TinyLlama model(sliced_shape(), test_seed());
  const Story story(model, 600, 300);
  for (const luna_status end : {LUNA_UNAVAILABLE, LUNA_CANCELLED}) {
    SliceRig rig(model, 2, 2);
    SlicedSequence sequence(rig, test_seed());
    sequence.run_to(story.tokens, 512);
    ASSERT_EQ(sequence.n_partitions_away(), 2U);
    rig.comms[sequence.peer_of(1)]->end(end);
    StepInput step(model.table_stride());
    sequence.add_rows(&step, std::span(story.tokens).subspan(512, 1), 512);
    const StepAnswer answer = rig.owner.run->run(step);
    EXPECT_EQ(answer.status, end);
    EXPECT_THAT(answer.text, HasSubstr("slices: a device"));
    // What the others answered was taken, so that they and the device go on.
    const StepAnswer next = run_rows(rig.owner, model, {story.beside, 0, 20}, block_ids(80, 2));
    EXPECT_EQ(next.status, LUNA_OK) << next.text;
  }
}

TEST(Slices, OutOfBoundsAreRefusedByName) {
  const TinyLlama model(sliced_shape(), test_seed());
  const Story story(model, 600, 300);
  SliceRig rig(model, 2, 1);
  SlicedSequence sequence(rig, test_seed());
  sequence.run_to(story.tokens, 512);
  const auto refused = [&](auto&& spoil, const char* field) {
    StepInput step(model.table_stride());
    sequence.add_rows(&step, std::span(story.tokens).subspan(512, 1), 512);
    ASSERT_GE(step.slices.size(), 1U);
    spoil(step);
    const StepAnswer answer = rig.owner.run->run(step);
    EXPECT_EQ(answer.status, LUNA_INVALID_ARGUMENT) << field;
    EXPECT_THAT(answer.text, HasSubstr(field));
  };
  refused([](StepInput& s) { s.slices[0].seq = 1; }, "slices.seq");
  refused([](StepInput& s) { s.slices[0].peer = 2; }, "slices.peer");
  refused([](StepInput& s) { s.slices[0].blocks = nullptr; }, "slices.n_partitions");
  refused([](StepInput& s) { s.slices.back().n_partitions += 1; }, "slices.n_partitions");
  refused([](StepInput& s) { s.slices.back().n_partitions = 0; }, "slices.n_partitions");
  refused([](StepInput& s) { s.slices.push_back(s.slices.back()); }, "slices.first_partition");
  refused([](StepInput& s) { s.slices.clear(); }, "block_tables");
  LlamaShape shape = sliced_shape();
  shape.has_slices = false;
  const TinyLlama plain(shape, test_seed());
  Loaded without("cpu", plain, 1, 96);
  StepInput step(plain.table_stride());
  sequence.add_rows(&step, std::span(story.tokens).subspan(512, 1), 512);
  EXPECT_THAT(without.run->run(step).text, HasSubstr("n_slices"));
}

TEST(Slices, AreNoneOfTheReferenceBackends) {
  const TinyLlama model(sliced_shape(), test_seed());
  TestDevice device("reference");
  EXPECT_EQ(device.extension<luna_slices_if>(LUNA_EXT_SLICES), nullptr);
  const auto compiled =
      TestProgram::compile(device, model.program(), *device.load_all(model.weights));
  ASSERT_FALSE(compiled);
  EXPECT_THAT(compiled.error().message(), HasSubstr("slices"));
}

}  // namespace
}  // namespace luna::test
