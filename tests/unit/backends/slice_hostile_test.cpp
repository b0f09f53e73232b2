// Slices beside an owner or a guest that breaks the format of their messages.
#include "plugins/backend_cpu/slice_wire.hpp"
#include "slice_rig.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <thread>

namespace luna::test {
namespace {

using cpu::SliceHeader;
using cpu::SliceRange;
using cpu::SliceRun;
using cpu::SliceVerdict;
using testing::HasSubstr;

LlamaShape small_shape() {
  LlamaShape shape;
  shape.n_rows_max = 320;
  shape.has_slices = true;
  return shape;
}

/// One row at position 256 that asks for partition 0.
struct Request {
  SliceHeader header;
  std::vector<float> queries;
  SliceRun run{256, 1, 1, 0};
  SliceRange slice{0, 1};
  std::vector<std::uint32_t> blocks = block_ids(10, 8);

  explicit Request(const LlamaShape& shape)
      : queries(std::size_t{shape.n_heads} * shape.head_dim, 0.5F) {
    header.magic = cpu::kSliceMagic;
    header.serial = 7;
    header.n_rows = 1;
    header.n_runs = 1;
    header.n_slices = 1;
    header.n_blocks = 8;
    header.body_bytes = body().size();
    header.state_bytes = std::uint64_t{shape.n_heads} * (shape.head_dim + 16) * sizeof(float);
  }
  [[nodiscard]] std::vector<std::byte> body() const {
    std::vector<std::byte> bytes;
    const auto append = [&](const void* data, std::size_t n) {
      const auto* at = static_cast<const std::byte*>(data);
      bytes.insert(bytes.end(), at, at + n);
    };
    append(queries.data(), queries.size() * sizeof(float));
    append(&run, sizeof(run));
    append(&slice, sizeof(slice));
    append(blocks.data(), blocks.size() * sizeof(std::uint32_t));
    return bytes;
  }
};

struct Answer {
  SliceVerdict verdict;
  bool has_states = false;
};

/// What a service answers to a request: states and a verdict, or a verdict alone.
Answer ask(const PairComm& pair, const Request& request) {
  const luna_comm& comm = *pair.rank(LUNA_SLICE_OWNER);
  comm.send(comm.self, 1, LUNA_SLICE_TAG_QUERIES, &request.header, sizeof(request.header));
  const auto body = request.body();
  comm.send(comm.self, 1, LUNA_SLICE_TAG_QUERIES, body.data(), body.size());
  std::vector<std::byte> states(request.header.state_bytes + sizeof(SliceVerdict));
  Answer answer;
  const luna_status status =
      comm.recv(comm.self, 1, LUNA_SLICE_TAG_STATES, states.data(), states.size());
  answer.has_states = status == LUNA_OK;
  if (!answer.has_states) {
    EXPECT_EQ(status, LUNA_INVALID_ARGUMENT);
    comm.recv(comm.self, 1, LUNA_SLICE_TAG_STATES, states.data(), sizeof(SliceVerdict));
  }
  std::memcpy(static_cast<void*>(&answer.verdict),
              states.data() + (answer.has_states ? request.header.state_bytes : 0),
              sizeof(SliceVerdict));
  return answer;
}

TEST(HostileSlices, QueriesOutOfBoundsAreRefusedAndTheNextAnswered) {
  const LlamaShape shape = small_shape();
  const TinyLlama model(shape, test_seed());
  SliceRig rig(model, 1, 1);
  const auto refused = [&](auto&& spoil, const char* what) {
    Request request(shape);
    spoil(request);
    const Answer answer = ask(*rig.comms[0], request);
    EXPECT_TRUE(answer.has_states) << what;
    EXPECT_EQ(answer.verdict.status, LUNA_CORRUPT) << what;
    const Answer next = ask(*rig.comms[0], Request(shape));
    EXPECT_EQ(next.verdict.status, LUNA_OK) << what;
    EXPECT_EQ(next.verdict.serial, 7U);
  };
  refused([](Request& r) { r.blocks[3] = SliceRig::kPoolBlocks; }, "block");
  refused([](Request& r) { r.blocks[3] = 0xFFFFFFFF; }, "block");
  refused([](Request& r) { r.run.first_position = 255; }, "a partition that is open");
  refused([&](Request& r) { r.run.first_position = shape.n_positions_max; }, "position");
  refused([](Request& r) { r.run.first_position = 0xFFFFFFFF; }, "position");
  refused([](Request& r) { r.run.n_rows = 0; }, "rows of a run");
  refused([](Request& r) { r.run.n_rows = 2; }, "rows of a run");
  refused([](Request& r) { r.run.n_slices = 2; }, "slices of a run");
  refused([](Request& r) { r.run.n_slices = 0; }, "slices of a run");
  refused([](Request& r) { r.slice.n_partitions = 0; }, "partitions");
  refused([](Request& r) { r.slice.n_partitions = 0xFFFFFFFF; }, "partitions");
  refused([](Request& r) { r.slice.first_partition = 0xFFFFFFFF; }, "partitions");
  refused([](Request& r) { r.header.state_bytes += 4; }, "bytes of states");
}

TEST(HostileSlices, AHeaderThatLiesEndsTheService) {
  const LlamaShape shape = small_shape();
  const TinyLlama model(shape, test_seed());
  const std::function<void(SliceHeader&)> spoils[] = {
      [](SliceHeader& h) { h.magic = 1; },
      [](SliceHeader& h) { h.layer = 2; },
      [](SliceHeader& h) { h.n_rows = 0; },
      [](SliceHeader& h) { h.n_rows = 0xFFFFFFFF; },
      [](SliceHeader& h) { h.n_runs = 0xFFFFFFFF; },
      [](SliceHeader& h) { h.n_blocks = 9; },
      [](SliceHeader& h) { h.body_bytes = ~std::uint64_t{0}; },
  };
  for (const auto& spoil : spoils) {
    SliceRig rig(model, 1, 1);
    Request request(shape);
    spoil(request.header);
    const Answer answer = ask(*rig.comms[0], request);
    EXPECT_FALSE(answer.has_states);
    EXPECT_EQ(answer.verdict.status, LUNA_CORRUPT);
  }
}

TEST(HostileSlices, AGuestThatAnswersWronglyEndsTheStepWithItsReason) {
  const LlamaShape shape = small_shape();
  const TinyLlama model(shape, test_seed());
  const auto tokens = model.random_tokens(300, test_seed());
  struct Case {
    std::int64_t more_bytes;
    std::uint32_t more_serial;
    luna_status status;
    const char* text;
  };
  for (const Case& c : {Case{4, 0, LUNA_OK, "another size"},
                        Case{0, 1, LUNA_OK, "was not asked"},
                        Case{0, 0, LUNA_EXHAUSTED, "refuses the queries"}}) {
    SliceRig rig(model, 0, 2);
    Loaded guest("cpu", model, 1, SliceRig::kPoolBlocks);
    rig.join_silent(guest);
    SlicedSequence sequence(rig, test_seed());
    sequence.run_to(tokens, 256);
    std::thread hostile([&] {
      const luna_comm& comm = *rig.comms[0]->rank(LUNA_SLICE_GUEST);
      SliceHeader header;
      comm.recv(comm.self, 0, LUNA_SLICE_TAG_QUERIES, &header, sizeof(header));
      std::vector<std::byte> body(header.body_bytes);
      comm.recv(comm.self, 0, LUNA_SLICE_TAG_QUERIES, body.data(), body.size());
      const auto size = static_cast<std::int64_t>(header.state_bytes) + c.more_bytes;
      std::vector<std::byte> states(static_cast<std::size_t>(size) + sizeof(SliceVerdict));
      const SliceVerdict verdict{header.serial + c.more_serial, c.status, 0};
      std::memcpy(states.data() + size, &verdict, sizeof(verdict));
      comm.send(comm.self, 0, LUNA_SLICE_TAG_STATES, states.data(), states.size());
    });
    StepInput step(model.table_stride());
    sequence.add_rows(&step, std::span(tokens).subspan(256, 1), 256);
    const StepAnswer answer = rig.owner.run->run(step);
    hostile.join();
    EXPECT_LT(answer.status, LUNA_OK);
    EXPECT_THAT(answer.text, HasSubstr(c.text));
  }
}

}  // namespace
}  // namespace luna::test
