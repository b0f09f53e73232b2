// Every message is read back as it was written; cut or changed it is refused or harmless.
#include "core/cluster/messages.hpp"

#include "core/cluster/step_messages.hpp"
#include "support/test_seed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

namespace luna::cluster {
namespace {

Join some_join() {
  Join join;
  join.name = "w0";
  join.version = "0.1.0";
  join.host = "boot/0/pid/mnt";
  join.process_id = 4711;
  join.plugins = {{"org.luna.backend.cpu", "0.1.0", 3}};
  join.transports = {{"tcp", LUNA_REACH_NETWORK}};
  join.roles = {"generate", "postprocess"};
  DeviceOffer& device = join.devices.emplace_back();
  device.name = "w0/0";
  device.backend = "cpu";
  std::strcpy(device.info.detail, "avx512-vnni, 2 threads");
  device.info.numerics = 14;
  device.memory_bytes = 1 << 30;
  device.n_threads = 2;
  device.can_slice = true;
  device.fingerprints = {{LUNA_NUMERICS_I12, LUNA_DTYPE_BF16, 0x1234}};
  return join;
}

Plan some_plan() {
  Plan plan;
  plan.device_idx = 1;
  plan.order.model = "main";
  plan.order.source = "./model.gguf";
  plan.order.identity = std::string(64, 'a');
  plan.order.transport = "shm";
  plan.order.slice_transport = "tcp";
  plan.order.program.n_slice_peers = 3;
  plan.order.program.n_lanes = 2;
  plan.order.program.limits = {512, 64, 96, 8192};
  plan.order.vocab_size = 49152;
  plan.order.layers = {{0, 14}, {14, 16}};
  plan.order.rank = 1;
  return plan;
}

Survey some_survey() {
  Survey survey;
  survey.device_idx = 1;
  survey.order.source = "./model.gguf";
  survey.order.identity = std::string(64, 'a');
  survey.order.program.n_lanes = 2;
  survey.order.program.limits = {512, 64, 96, 8192};
  survey.order.is_timed = true;
  return survey;
}

model::DeviceSurvey some_device() {
  model::DeviceSurvey device;
  device.speed.layer = model::RowTimes({{1, 10}, {32, 100.5}});
  device.speed.head = model::RowTimes({{1, 7}});
  device.speed.kv_token_ns = 0.25;
  device.speed.step_ns = 3;
  device.layer_bytes = {100, 200};
  device.kv_token_bytes = 768;
  device.fixed_bytes = {1, 2, 3, 4};
  return device;
}

/// A step of two sequences, three rows and one, of which two have logits.
struct SomeStep {
  std::vector<std::uint32_t> token_ids = {5, 6, 7, 8};
  std::vector<std::uint32_t> positions = {30, 31, 32, 2};
  std::vector<std::uint32_t> seq_first_row = {0, 3, 4};
  std::vector<std::uint32_t> block_tables = {9, 4, 0, 0, 7, 0, 0, 0};
  std::vector<luna_kv_copy> kv_copies = {{1, 2}};
  std::vector<std::uint32_t> out_rows = {2, 3};
  std::vector<std::uint32_t> out_flags = {LUNA_OUT_CANDIDATES, LUNA_OUT_LOGITS};
  luna_step abi{};

  SomeStep() {
    abi.struct_size = sizeof(abi);
    abi.n_rows = 4;
    abi.n_seqs = 2;
    abi.n_out_rows = 2;
    abi.token_ids = token_ids.data();
    abi.positions = positions.data();
    abi.seq_first_row = seq_first_row.data();
    abi.block_tables = block_tables.data();
    abi.block_table_stride = 4;
    abi.n_kv_copies = 1;
    abi.kv_copies = kv_copies.data();
    abi.out_rows = out_rows.data();
    abi.out_flags = out_flags.data();
  }
};

TEST(ClusterMessages, AreReadBackAsTheyWereWritten) {
  const Join join = some_join();
  const auto joined = parse_join(encode_join(join));
  ASSERT_TRUE(joined) << joined.error().message();
  EXPECT_EQ(encode_join(*joined), encode_join(join));
  EXPECT_EQ(joined->devices[0].fingerprints, join.devices[0].fingerprints);
  EXPECT_TRUE(joined->devices[0].can_slice);
  EXPECT_STREQ(joined->devices[0].info.detail, "avx512-vnni, 2 threads");

  const Plan plan = some_plan();
  const auto planned = parse_plan(encode_plan(plan));
  ASSERT_TRUE(planned) << planned.error().message();
  EXPECT_EQ(encode_plan(*planned), encode_plan(plan));
  EXPECT_EQ(planned->order.layers, plan.order.layers);
  EXPECT_EQ(planned->order.program.n_slice_peers, 3U);
  EXPECT_EQ(planned->order.slice_transport, "tcp");

  Bind bind;
  bind.n_kv_blocks = 77;
  bind.terms = {"group", 1, 2, 4096, 2, {"here", "there"}};
  const auto bound = parse_bind(encode_bind(bind));
  ASSERT_TRUE(bound) << bound.error().message();
  EXPECT_EQ(encode_bind(*bound), encode_bind(bind));

  Answer answer;
  answer.result = Error{Code::exhausted, "too large"};
  answer.memory.weights = 12345;
  answer.address = std::string("\0x", 2);
  answer.kv = luna_kv_layout{3, 2, 64, LUNA_DTYPE_BF16, 32, 0};
  const auto answered = parse_answer(encode_answer(answer));
  ASSERT_TRUE(answered) << answered.error().message();
  EXPECT_EQ(answered->result.error(), answer.result.error());
  EXPECT_EQ(answered->memory.weights, 12345U);
  EXPECT_EQ(answered->address, answer.address);
  ASSERT_TRUE(answered->kv);
  EXPECT_EQ(answered->kv->n_layers, 3U);
  EXPECT_EQ(answered->kv->block_tokens, 32U);

  const Survey survey = some_survey();
  const auto surveyed = parse_survey(encode_survey(survey));
  ASSERT_TRUE(surveyed) << surveyed.error().message();
  EXPECT_EQ(encode_survey(*surveyed), encode_survey(survey));
  EXPECT_TRUE(surveyed->order.is_timed);

  const Done done{1, 99, LUNA_CANCELLED, 5, 6, "ended", {7, ~std::uint64_t{0}}};
  const auto ended = parse_done(encode_done(done));
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_EQ(encode_done(*ended), encode_done(done));
  EXPECT_EQ(ended->slice_masses, done.slice_masses);
}

model::SliceTerms some_terms() {
  model::SliceTerms terms;
  terms.place = 2;
  terms.is_first = true;
  terms.group = "slices/7";
  terms.message_bytes = 4096;
  terms.n_waiters_max = 18;
  terms.own_address = "here";
  terms.other_address = std::string("\0there", 6);
  return terms;
}

TEST(ClusterMessages, TermsOfSlicesAreReadBackAsTheyWereWritten) {
  const model::SliceTerms terms = some_terms();
  const auto read = parse_slice_terms(encode_slice_terms(terms));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(encode_slice_terms(*read), encode_slice_terms(terms));
  EXPECT_EQ(read->other_address, terms.other_address);
  model::SliceTerms unnamed = terms;
  unnamed.group.clear();
  EXPECT_FALSE(parse_slice_terms(encode_slice_terms(unnamed)));
  EXPECT_EQ(*parse_slice_place(encode_slice_place(63)), 63U);
  EXPECT_FALSE(parse_slice_place(encode_slice_place(64)));
  Plan crowded = some_plan();
  crowded.order.program.n_slice_peers = 64;
  EXPECT_FALSE(parse_plan(encode_plan(crowded)));
}

/// A step of two long sequences with slices, in blocks of 256 tokens.
struct SlicedStep : SomeStep {
  std::vector<std::uint32_t> long_tables = {9, 4, 5, 6, 7, 1, 2, 3};
  std::vector<luna_slice> slices = {
      {0, 2, 0, 1, &long_tables[0]}, {0, 1, 1, 1, &long_tables[1]}, {1, 2, 0, 3, &long_tables[4]}};
  std::array<std::uint64_t, 3> masses{};

  SlicedStep() {
    positions = {600, 601, 602, 800};
    abi.block_tables = long_tables.data();
    abi.slices = slices.data();
    abi.n_slices = 3;
    abi.slice_masses = masses.data();
  }
};

TEST(ClusterMessages, ASlicedStepNamesWhereItsPartitionsLie) {
  SlicedStep some;
  Bytes bytes;
  encode_step(some.abi, 0, 1, 256, bytes);
  Step step;
  const auto parsed = parse_step(bytes, step);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(step.slices, (std::vector<StepSlice>{{0, 2, 0, 1}, {0, 1, 1, 1}, {1, 2, 0, 3}}));
  EXPECT_EQ(step.block_tables, some.long_tables);
  model::ProgramOptions program;
  program.kv_block_tokens = 256;
  program.limits = {4, 2, 2, 1024};
  program.n_slice_peers = 2;
  EXPECT_LE(bytes.size(), step_bytes_max(program, 1));
  // The same step without slices has to fit what a shard holds.
  program.n_slice_peers = 0;
  EXPECT_LT(step_bytes_max(program, 1), bytes.size());
}

TEST(ClusterMessages, SlicesThatOverlapOrBelongToNobodyAreRefused) {
  const std::vector<std::function<void(SlicedStep&)>> wrongs = {
      [](SlicedStep& step) { std::swap(step.slices[1], step.slices[2]); },
      [](SlicedStep& step) { step.slices[1] = step.slices[0]; },
      [](SlicedStep& step) { step.slices[2].n_partitions = 0; },
      [](SlicedStep& step) { step.slices[2].n_partitions = ~0U; },
  };
  for (const auto& spoil : wrongs) {
    SlicedStep some;
    spoil(some);
    Bytes bytes;
    encode_step(some.abi, 0, 1, 256, bytes);
    Step step;
    EXPECT_FALSE(parse_step(bytes, step));
  }
  SlicedStep some;
  Bytes bytes;
  encode_step(some.abi, 0, 1, 256, bytes);
  const StepSlice nobodys{2, 1, 0, 1};
  std::memcpy(bytes.data() + bytes.size() - sizeof(nobodys), &nobodys, sizeof(nobodys));
  Step step;
  EXPECT_FALSE(parse_step(bytes, step));
}

TEST(ClusterMessages, WhatADeviceSaysOfItselfComesBackAndIsNotTrusted) {
  const auto told = [](const model::DeviceSurvey& device) {
    Answer answer;
    answer.device = device;
    return parse_answer(encode_answer(answer));
  };
  const model::DeviceSurvey device = some_device();
  const auto answer = told(device);
  ASSERT_TRUE(answer) << answer.error().message();
  ASSERT_TRUE(answer->device && *answer->device);
  const model::DeviceSurvey& back = **answer->device;
  EXPECT_EQ(back.speed.layer.at(32), 100.5);
  EXPECT_EQ(back.speed.kv_token_ns, 0.25);
  EXPECT_EQ(back.layer_bytes, device.layer_bytes);
  EXPECT_EQ(back.kv_token_bytes, 768U);
  EXPECT_EQ(back.fixed_bytes, device.fixed_bytes);

  Answer refused;
  refused.device = Error{Code::exhausted, "no room for the probe"};
  const auto why = parse_answer(encode_answer(refused));
  ASSERT_TRUE(why && why->device && !*why->device);
  EXPECT_EQ(why->device->error(), refused.device->error());

  const auto refuses = [&](auto spoil) {
    model::DeviceSurvey spoiled = device;
    spoil(spoiled);
    return !told(spoiled);
  };
  EXPECT_TRUE(refuses([](auto& d) { d.speed.layer = {}; }));
  EXPECT_TRUE(refuses([](auto& d) { d.speed.layer = model::RowTimes({{1, 10}, {1, 11}}); }));
  EXPECT_TRUE(refuses([](auto& d) { d.speed.head = model::RowTimes({{1, -7}}); }));
  EXPECT_TRUE(refuses([](auto& d) { d.speed.step_ns = std::nan(""); }));
  EXPECT_TRUE(refuses([](auto& d) { d.speed.kv_token_ns = 1e300; }));
  EXPECT_TRUE(refuses([](auto& d) { d.layer_bytes.assign(5000, 1); }));
  EXPECT_TRUE(refuses([](auto& d) { d.layer_bytes[1] = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refuses([](auto& d) { d.fixed_bytes[3] = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refuses([](auto& d) { d.kv_token_bytes = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refuses([](auto& d) {
    std::vector<model::RowTimes::Point> points;
    for (int i = 1; i <= 65; ++i)
      points.push_back({double(i), 1.0});
    d.speed.layer = model::RowTimes(std::move(points));
  }));
}

TEST(ClusterMessages, AStepTakesOnlyTheBlocksThatItsSequencesHave) {
  const SomeStep some;
  Bytes bytes;
  encode_step(some.abi, 1, 42, 32, bytes);
  Step step;
  const auto parsed = parse_step(bytes, step);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(step.lane, 1U);
  EXPECT_EQ(step.number, 42U);
  EXPECT_EQ(step.token_ids, some.token_ids);
  EXPECT_EQ(step.positions, some.positions);
  EXPECT_EQ(step.seq_first_row, some.seq_first_row);
  EXPECT_EQ(step.block_table_stride, 2U);  // position 32 lies in the second block
  EXPECT_EQ(step.block_tables, (std::vector<std::uint32_t>{9, 4, 7, 0}));
  EXPECT_EQ(step.out_flags, some.out_flags);
  EXPECT_TRUE(step.seq_prunes.empty());
}

TEST(ClusterMessages, APrunedSequenceTakesFewerBlocksAndKeepsItsCounts) {
  SomeStep some;
  const std::vector<luna_seq_prune> prunes = {{10, 1, 0, 0}, {0, 0, 2, 0}};
  some.abi.seq_prunes = prunes.data();
  Bytes bytes;
  encode_step(some.abi, 0, 1, 32, bytes);
  Step step;
  ASSERT_TRUE(parse_step(bytes, step));
  EXPECT_EQ(step.block_table_stride, 1U);
  ASSERT_EQ(step.seq_prunes.size(), 2U);
  EXPECT_EQ(step.seq_prunes[0].n_pruned, 10U);
  EXPECT_EQ(step.seq_prunes[1].n_keep, 2U);
}

TEST(ClusterMessages, TheLongestStepFitsItsBound) {
  model::ProgramOptions program;
  program.limits = {4, 2, 2, 128};
  const SomeStep some;
  Bytes bytes;
  encode_step(some.abi, 0, 1, 1, bytes);  // the whole tables
  EXPECT_LE(bytes.size(), step_bytes_max(program, 1000));
}

TEST(ClusterMessages, FarewellsAndMemoryComeBackAsTheyWere) {
  for (const Farewell farewell : {Farewell::asked, Farewell::drained, Farewell::restart})
    EXPECT_EQ(*parse_farewell(encode_farewell(farewell)), farewell);
  EXPECT_FALSE(parse_farewell(Bytes{std::byte{3}}));
  const MemoryReport report{
      .resident = 1, .fixed = 2, .kv = 3, .spare = 4, .budget = ~std::uint64_t{0}};
  EXPECT_EQ(*parse_memory(encode_memory(report)), report);
}

TEST(ClusterMessages, EveryTruncationIsRefused) {
  Bytes step;
  encode_step(SomeStep().abi, 1, 42, 32, step);
  Step into;
  const auto check = [](const Bytes& whole, auto parse) {
    for (std::size_t n = 0; n < whole.size(); ++n)
      EXPECT_FALSE(parse(std::span(whole).first(n))) << n;
    Bytes longer = whole;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(parse(std::span<const std::byte>(longer)));
  };
  check(encode_join(some_join()), [](auto bytes) { return parse_join(bytes).has_value(); });
  check(encode_plan(some_plan()), [](auto bytes) { return parse_plan(bytes).has_value(); });
  check(encode_answer({}), [](auto bytes) { return parse_answer(bytes).has_value(); });
  check(encode_done({}), [](auto bytes) { return parse_done(bytes).has_value(); });
  check(encode_memory({}), [](auto bytes) { return parse_memory(bytes).has_value(); });
  check(encode_survey(some_survey()), [](auto bytes) { return parse_survey(bytes).has_value(); });
  Answer timed;
  timed.device = some_device();
  check(encode_answer(timed), [](auto bytes) { return parse_answer(bytes).has_value(); });
  check(encode_slice_terms(some_terms()),
        [](auto bytes) { return parse_slice_terms(bytes).has_value(); });
  check(encode_slice_place(1), [](auto bytes) { return parse_slice_place(bytes).has_value(); });
  check(encode_farewell({}), [](auto bytes) { return parse_farewell(bytes).has_value(); });
  check(step, [&](auto bytes) { return parse_step(bytes, into).has_value(); });
  SlicedStep sliced;
  encode_step(sliced.abi, 1, 42, 256, step);
  check(step, [&](auto bytes) { return parse_step(bytes, into).has_value(); });
}

TEST(ClusterMessages, RandomChangesNeverLeaveTheArrays) {
  std::mt19937_64 rng(test::test_seed());
  Bytes whole;
  encode_step(SomeStep().abi, 1, 42, 32, whole);
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes = whole;
    for (std::uint64_t n = 1 + rng() % 4; n > 0; --n)
      bytes[rng() % bytes.size()] = static_cast<std::byte>(rng());
    Step step;
    if (!parse_step(bytes, step)) continue;
    EXPECT_EQ(step.positions.size(), step.token_ids.size());
    EXPECT_EQ(step.seq_first_row.back(), step.token_ids.size());
    EXPECT_EQ(step.block_tables.size(), (step.seq_first_row.size() - 1) * step.block_table_stride);
    for (const std::uint32_t row : step.out_rows)
      EXPECT_LT(row, step.token_ids.size());
  }
}

}  // namespace
}  // namespace luna::cluster
