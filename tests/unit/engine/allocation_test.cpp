// A step allocates nothing: neither the engine nor, with the cpu backend, its devices.
#include "support/counting_allocator.hpp"
#include "support/moving_policy.hpp"
#include "support/plugin_fixture.hpp"
#include "support/tiny_llama.hpp"
#include "support/varied_requests.hpp"

#include <luna/abi/transport.h>

#include <gtest/gtest.h>

#include <array>

namespace luna::test {
namespace {

void expect_steps_allocate_nothing(const EngineOptions& options,
                                   FakeModel* draft_model = nullptr,
                                   std::uint32_t n_lanes = 1,
                                   std::size_t n_other_groups = 0) {
  // Few blocks, so that sequences are pre-empted; choices, so that blocks are shared and copied.
  const FakeModelOptions group{.n_shards = 2,
                               .n_lanes = n_lanes,
                               .n_kv_blocks = 14,
                               .n_draft_rows_max = 16,
                               .completion = Completion::deferred};
  EngineRig rig(group, std::nullopt, options, std::vector<FakeModelOptions>(n_other_groups, group));
  std::vector<Asked> asked;
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < 15; ++i) {
      auto request = varied_request(i);
      request->stop.n_generated_max = 60;  // more than the blocks hold
      if (draft_model != nullptr) request->drafts = engine::Drafts::always;
      asked.push_back(rig.submit(std::move(request), 1 + i % 3));
    }
    rig.engine->cancel(asked[asked.size() - 2].id);
    bool works = true;
    while (works) {
      if (round > 0) start_counting();  // the first round warms the policy's buffers up
      works = rig.engine->advance();
      stop_counting();
      works |= rig.complete();
      if (draft_model != nullptr) works |= draft_model->complete();
      rig.clock.advance(std::chrono::milliseconds(1));
    }
  }
  EXPECT_GT(rig.stats.n_preempted.load(), 0U);
  const AllocationCount count = stop_counting();
  EXPECT_EQ(count.n_allocations, 0U);
  EXPECT_EQ(count.n_frees, 0U);
  rig.expect_empty();
}

TEST(EngineAllocation, StepsAllocateAndFreeNothing) {
  expect_steps_allocate_nothing({});
}

TEST(EngineAllocation, SeveralStepsInFlightAllocateAndFreeNothing) {
  EngineOptions options;
  options.speculation = {.n_draft_max = 4, .lengths = {.n_min = 1, .n_max = 3}};
  for (const std::uint32_t n_lanes : {2U, 3U})
    expect_steps_allocate_nothing(options, nullptr, n_lanes);
}

TEST(EngineAllocation, StepsOfSeveralGroupsAllocateAndFreeNothing) {
  for (const std::uint32_t n_lanes : {1U, 2U})
    expect_steps_allocate_nothing({}, nullptr, n_lanes, 2);
}

TEST(EngineAllocation, StepsWithDraftsAllocateAndFreeNothing) {
  EngineOptions options;
  options.speculation = {.n_draft_max = 4, .lengths = {.n_min = 1, .n_max = 3}};
  expect_steps_allocate_nothing(options);
}

TEST(EngineAllocation, StepsWithADraftModelAllocateAndFreeNothing) {
  // Few blocks here too: sequences give theirs back and draft again later.
  FakeModel draft({.n_kv_blocks = 8, .completion = Completion::deferred});
  EngineOptions options;
  options.speculation.n_draft_max = 4;
  options.speculation.draft_model = &draft.compiled;
  expect_steps_allocate_nothing(options, &draft);
  EXPECT_GT(draft.devices[0].n_submits, 50U);
}

TEST(EngineAllocation, AnswersThatWillBeCheckedAllocateNothingInTheStep) {
  const FakeModelOptions group{.n_kv_blocks = 60, .completion = Completion::deferred};
  EngineOptions options;
  options.copies_at_once = true;
  options.output_check.percent = 100;
  EngineRig rig(group, mover(at_times(1, 8)), options, {group});
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < 6; ++i)
      rig.submit(EngineRig::request(some_prompt(20 + i, i), 40));
    bool works = true;
    while (works) {
      if (round > 0) start_counting();
      works = rig.engine->advance();
      stop_counting();
      works |= rig.complete();
      rig.clock.advance(std::chrono::milliseconds(1));
    }
  }
  const AllocationCount count = stop_counting();
  EXPECT_EQ(count.n_allocations, 0U);
  EXPECT_EQ(count.n_frees, 0U);
  rig.engine->check_outputs();
  EXPECT_GT(rig.stats.output_check.n_waiting.load(), 6U);
}

/// A small model on two cpu devices that hand rows to each other through the inproc transport.
class CpuModel {
 public:
  static constexpr std::uint32_t kKvBlocks = 24;
  static constexpr std::uint32_t kLanes = 2;

  CpuModel()
      : llama_(shape(), 1),
        transport_(load_table<luna_transport_if>("transport_inproc", LUNA_KIND_TRANSPORT)) {
    luna_err err = make_err();
    EXPECT_EQ(transport_->head.create(host_.raw(), nullptr, 0, &transport_self_, &err), LUNA_OK);
    collective_ = static_cast<const luna_collective_if*>(
        transport_->head.ext(transport_self_, LUNA_EXT_COLLECTIVE));
    add_shard(0, {0, 1, false, true});
    add_shard(1, {1, 1, true, false});
    describe();
  }
  ~CpuModel() {
    programs_ = {};
    for (const luna_comm* comm : comms_)
      collective_->close(collective_self(), comm);
    transport_->head.destroy(transport_self_);
  }
  CpuModel(const CpuModel&) = delete;
  CpuModel& operator=(const CpuModel&) = delete;

  model::CompiledModel compiled;

 private:
  static LlamaShape shape() {
    LlamaShape shape;
    shape.vocab = 264;  // as the tokenizer
    shape.n_candidates = 16;
    shape.n_positions_max = 256;
    return shape;
  }
  [[nodiscard]] void* collective_self() const { return transport_self_; }

  void add_shard(std::uint32_t rank, const LlamaPart& part) {
    const Program program = llama_.program(part);
    devices_[rank] = std::make_unique<TestDevice>("cpu");
    auto weights = devices_[rank]->load_all(llama_.weights);
    EXPECT_TRUE(weights) << weights.error().message();
    auto made = TestProgram::compile(*devices_[rank], program, *weights, kKvBlocks);
    EXPECT_TRUE(made) << made.error().message();
    programs_[rank] = std::move(*made);
    const luna_comm_lane lane{0, 7};
    luna_comm_open options{};
    options.struct_size = sizeof(options);
    options.rank = rank;
    options.n_ranks = 2;
    options.n_lanes = rank;  // the second receives
    options.message_bytes_max = 64 * 64 * sizeof(float);
    options.group = to_abi("cpu");
    options.lanes = &lane;
    options.n_messages_max = kLanes;
    luna_err err = make_err();
    EXPECT_EQ(collective_->open(collective_self(), &options, &comms_[rank], &err), LUNA_OK);
    programs_[rank]->bind_comm(*program.bound_slot(LUNA_SLOT_COMM), comms_[rank]);
    model::Shard shard;
    shard.device_name = "cpu" + std::to_string(rank);
    shard.backend = &devices_[rank]->table();
    shard.executable = programs_[rank]->raw();
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      auto own = programs_[rank]->add_lane(program);
      EXPECT_TRUE(own) << own.error().message();
      shard.binds.push_back(own->binds);
      if (own->logits != nullptr)
        compiled.outputs.push_back({static_cast<const float*>(own->logits),
                                    static_cast<const model::Candidate*>(own->candidates)});
    }
    compiled.shards.push_back(shard);
  }

  void describe() {
    const LlamaShape& shape = llama_.shape();
    compiled.name = "tiny";
    compiled.config.vocab_size = shape.vocab;
    compiled.config.context_length = shape.n_positions_max;
    compiled.limits = {.n_rows_max = shape.n_rows_max,
                       .n_seqs_max = 8,
                       .n_out_rows_max = shape.n_rows_max,
                       .n_positions_max = shape.n_positions_max};
    compiled.kv_block_tokens = shape.block_tokens;
    compiled.n_kv_blocks = kKvBlocks;
    compiled.kv_block_bytes = 4096;
    compiled.n_candidates = shape.n_candidates;
  }

  FakeHost host_;
  TinyLlama llama_;
  const luna_transport_if* transport_;
  void* transport_self_ = nullptr;
  const luna_collective_if* collective_ = nullptr;
  std::array<const luna_comm*, 2> comms_{};
  std::array<std::unique_ptr<TestDevice>, 2> devices_;
  std::array<std::unique_ptr<TestProgram>, 2> programs_;
};

TEST(EngineAllocation, PrefillAndDecodeOnCpuDevicesAllocateNothing) {
  CpuModel cpu;
  RealClock clock;
  const text::Tokenizer tokenizer = tiny_tokenizer();
  auto scheduler = static_scheduler();
  telemetry::EngineStats stats;
  auto engine = Engine::create(
      {{&cpu.compiled}, scheduler, tokenizer, clock, stats, [](void*) {}, nullptr}, {});
  ASSERT_TRUE(engine) << engine.error().message();
  for (std::uint32_t round = 0; round < 2; ++round) {
    std::vector<Asked> asked;
    for (std::uint32_t i = 0; i < 10; ++i) {
      auto request = varied_request(i);
      request->stop.n_generated_max = 20;
      request->id = 100 * round + i + 1;
      const std::size_t n_bytes = TokenStream::text_bytes_for(20, tokenizer.token_bytes_max());
      request->streams.push_back(
          std::make_shared<TokenStream>(20, n_bytes, request->logprobs.n_top));
      asked.push_back({.id = request->id, .streams = request->streams});
      ASSERT_TRUE((*engine)->submit(std::move(request)));
    }
    const auto all_ended = [&] {
      return std::all_of(asked.begin(), asked.end(), [](const Asked& a) { return a.ended(); });
    };
    if (round > 0) start_counting();
    while (!all_ended())
      if (!(*engine)->advance()) (*engine)->wait();
    stop_counting();
    for (const Asked& one : asked)
      EXPECT_NE(one.end().reason, pipeline::FinishReason::failed);
  }
  const AllocationCount count = stop_counting();
  EXPECT_GT(stats.n_steps.load(), 40U);
  EXPECT_EQ(count.n_allocations, 0U);
  EXPECT_EQ(count.n_frees, 0U);
  (*engine)->stop();
}

}  // namespace
}  // namespace luna::test
