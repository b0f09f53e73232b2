// KV blocks that leave the devices of workers for others: bit for bit, wherever the layers are cut;
// and workers that die or lie in the middle of a copy.
#include "core/engine/kv_copier.hpp"
#include "support/test_seed.hpp"
#include "unit/cluster/fake_worker.hpp"

namespace luna::cluster {
namespace {

using engine::can_copy_kv;
using engine::KvCopier;
using engine::KvCopy;
using ::testing::HasSubstr;

class KvOfWorkers : public Cluster {
 protected:
  /// Copies blocks, and waits for the end.
  KvCopy::State copy(const model::CompiledModel& from,
                     const model::CompiledModel& to,
                     const std::vector<std::uint32_t>& from_blocks,
                     const std::vector<std::uint32_t>& to_blocks) {
    const RealClock clock;
    WakeSignal wake;
    KvCopier copier(clock, wake, 1, false);
    copy_.from = &from;
    copy_.to = &to;
    copy_.from_blocks = from_blocks;
    copy_.to_blocks = to_blocks;
    copier.start(copy_);
    return copy_.state.load();
  }
  /// Of workers with these names; held until the test ends, as whoever places a model on them does.
  std::vector<std::shared_ptr<model::Device>> devices(const std::vector<std::string>& names) {
    std::vector<std::shared_ptr<model::Device>> found;
    for (const auto& device : controller_->devices())
      for (const std::string& name : names)
        if (device->name() == name + "/0") found.push_back(device);
    held_.insert(held_.end(), found.begin(), found.end());
    return found;
  }

  KvCopy copy_;
  std::vector<std::shared_ptr<model::Device>> held_;
};

constexpr PromptPlace kThere{.lane = 0, .blocks = {2, 6}};

PromptPlace behind(PromptPlace place) {
  place.first_position = static_cast<std::uint32_t>(kPrompt.size());
  return place;
}

TEST_F(KvOfWorkers, GoesToOtherCutsOfTheLayersBitForBit) {
  const std::vector<std::uint32_t> next = {17};
  open_controller();
  TestWorker first(worker("w0"));
  TestWorker second(worker("w1"));
  TestWorker third(worker("w2"));
  ASSERT_TRUE(has_devices(3));
  const auto two = load(devices({"w0", "w1"}));
  const auto three = load(devices({"w0", "w1", "w2"}));
  const auto one = load(devices({"w2"}));
  ASSERT_TRUE(two && three && one);
  const model::CompiledModel& home = (*two)->compiled();
  ASSERT_THAT(run_prompt(home, kPrompt).failures, ::testing::IsEmpty());
  const Ran expected = run_prompt(home, next, behind({}));
  for (const model::CompiledModel* away : {&(*one)->compiled(), &(*three)->compiled()}) {
    ASSERT_TRUE(can_copy_kv(home, *away));
    ASSERT_EQ(copy(home, *away, {3, 1}, {2, 6}), KvCopy::State::done);
    EXPECT_EQ(run_prompt(*away, next, behind(kThere)).logits, expected.logits);
  }
  // And back, over what was there.
  ASSERT_EQ(copy((*three)->compiled(), home, {2, 6}, {0, 1}), KvCopy::State::done);
  EXPECT_EQ(run_prompt(home, next, behind({.lane = 1, .blocks = {0, 1}})).logits, expected.logits);
}

/// What the blocks of a shard hold, outside.
Bytes blocks_of(const model::Shard& shard, std::span<const std::uint32_t> blocks) {
  Bytes bytes(blocks.size() * shard.kv.block_bytes);
  luna_kv_part part{};
  part.struct_size = sizeof(part);
  part.n_blocks = static_cast<std::uint32_t>(blocks.size());
  part.buffer = shard.kv.buffer;
  part.layout = &shard.kv.layout;
  part.blocks = blocks.data();
  part.n_layers = shard.kv.layout.n_layers;
  part.n_bytes = bytes.size();
  luna_err err = make_err();
  EXPECT_EQ(shard.kv.table->kv_export(shard.kv.device, &part, bytes.data(), &err), LUNA_OK)
      << text_of(err);
  return bytes;
}

TEST_F(KvOfWorkers, GoesInManyMessagesWhereItIsLarge) {
  open_controller();
  TestWorker first(worker("w0"));
  TestWorker second(worker("w1"));
  ASSERT_TRUE(has_devices(2));
  kv_block_tokens_ = 256;
  kv_blocks_max_ = 48;
  const auto one = load(devices({"w0"}));
  const auto other = load(devices({"w1"}));
  ASSERT_TRUE(one && other) << one.error().message();
  const model::Shard& from = (*one)->compiled().shards.front();
  const model::Shard& to = (*other)->compiled().shards.front();
  std::vector<std::uint32_t> blocks(48);
  std::iota(blocks.begin(), blocks.end(), 0U);
  ASSERT_GT(blocks.size() * from.kv.block_bytes, 3 * kKvPiecesMax * kKvPieceBytes);
  // Random bytes go in and come out; then from one worker to the other, in another order.
  Bytes bytes(blocks.size() * from.kv.block_bytes);
  std::mt19937_64 rng(test::test_seed());
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(rng());
  luna_kv_part part{};
  part.struct_size = sizeof(part);
  part.n_blocks = static_cast<std::uint32_t>(blocks.size());
  part.buffer = from.kv.buffer;
  part.layout = &from.kv.layout;
  part.blocks = blocks.data();
  part.n_layers = from.kv.layout.n_layers;
  part.n_bytes = bytes.size();
  luna_err err = make_err();
  ASSERT_EQ(from.kv.table->kv_import(from.kv.device, &part, bytes.data(), &err), LUNA_OK)
      << text_of(err);
  EXPECT_TRUE(blocks_of(from, blocks) == bytes);
  const std::vector<std::uint32_t> reversed(blocks.rbegin(), blocks.rend());
  ASSERT_EQ(copy((*one)->compiled(), (*other)->compiled(), blocks, reversed), KvCopy::State::done);
  EXPECT_TRUE(blocks_of(to, reversed) == bytes);
}

TEST_F(KvOfWorkers, AsksForNothingThatAShardDoesNotHave) {
  open_controller();
  TestWorker first(worker("w0"));
  for (const bool is_block : {true, false}) {
    ASSERT_TRUE(has_devices(1));
    const auto model = load(devices({"w0"}));
    ASSERT_TRUE(model) << model.error().message();
    const model::Shard& shard = (*model)->compiled().shards.front();
    const std::uint32_t block = is_block ? 8U : 7U;  // of eight
    const std::uint64_t n_lost = controller_->stats().n_lost;
    luna_kv_part part{};
    part.struct_size = sizeof(part);
    part.n_blocks = 1;
    part.layout = &shard.kv.layout;
    part.blocks = &block;
    part.first_layer = is_block ? 0U : 1U;
    part.n_layers = shard.kv.layout.n_layers;
    part.n_bytes = shard.kv.block_bytes;
    Bytes bytes(part.n_bytes);
    luna_err err = make_err();
    // The worker ends the connection of a server that asks so, and joins again.
    EXPECT_EQ(shard.kv.table->kv_import(shard.kv.device, &part, bytes.data(), &err),
              LUNA_UNAVAILABLE);
    EXPECT_TRUE(comes([&] { return controller_->stats().n_lost > n_lost; }));
  }
}

/// w0 dies when it is asked for KV, or is sent some.
class DyingKv : public KvOfWorkers, public ::testing::WithParamInterface<FrameType> {};

TEST_P(DyingKv, EndsTheCopyAndTouchesNothingElse) {
  const bool is_source = GetParam() == FrameType::kv_export;
  open_controller();
  const TestWorkerOptions options = worker("w0");
  TestWorker real(worker("w1"));
  ASSERT_TRUE(has_devices(1));
  const auto living = load(devices({"w1"}));
  ASSERT_TRUE(living) << living.error().message();
  const model::CompiledModel& there = (*living)->compiled();
  FakeWorker dying(options, join_of(gateway_, *gateway_.add_device("w0/0"), options), GetParam());
  dying.answer_binds_with(there.shards.front().kv.layout, there.shards.front().kv.block_bytes);
  ASSERT_TRUE(has_devices(2));
  const auto doomed = load(devices({"w0"}));
  ASSERT_TRUE(doomed) << doomed.error().message();
  const model::CompiledModel& here = (*doomed)->compiled();
  ASSERT_TRUE(can_copy_kv(here, there));
  const Ran before = run_prompt(there, kPrompt);
  const auto state = is_source ? copy(here, there, {0, 1, 2, 4, 5, 6}, {0, 2, 4, 5, 6, 7})
                               : copy(there, here, {0, 1, 2, 4, 5, 6}, {0, 2, 4, 5, 6, 7});
  EXPECT_EQ(state, KvCopy::State::failed);
  EXPECT_EQ(copy_.failed_at, is_source ? KvCopy::Side::from : KvCopy::Side::to);
  EXPECT_TRUE(has_devices(1));
  // Once more: nobody waits for a worker that has gone.
  EXPECT_EQ(copy(here, there, {0}, {0}), KvCopy::State::failed);
  EXPECT_EQ(run_prompt(there, kPrompt).logits, before.logits);
}

INSTANTIATE_TEST_SUITE_P(AtEitherEnd,
                         DyingKv,
                         ::testing::Values(FrameType::kv_export, FrameType::kv_import),
                         [](const auto& at) { return std::string(name_of(at.param)); });

/// w0 answers what nobody asked.
class LyingKv : public KvOfWorkers, public ::testing::WithParamInterface<std::string> {};

TEST_P(LyingKv, IsOneOfUsNoLonger) {
  open_controller();
  const TestWorkerOptions options = worker("w0");
  TestWorker real(worker("w1"));
  ASSERT_TRUE(has_devices(1));
  const auto living = load(devices({"w1"}));
  ASSERT_TRUE(living) << living.error().message();
  const model::CompiledModel& there = (*living)->compiled();
  FakeWorker lying(
      options, join_of(gateway_, *gateway_.add_device("w0/0"), options), FrameType::abort);
  lying.answer_binds_with(there.shards.front().kv.layout, there.shards.front().kv.block_bytes);
  lying.answer_copies_with([lie = GetParam()](const KvOrder& order, std::size_t n_bytes) {
    KvAnswer answer;
    answer.number = lie == "a_number" ? order.number + 1 : order.number;
    Bytes bytes = encode_kv_answer(answer);
    bytes.resize(bytes.size() + n_bytes + (lie == "a_byte_more" ? 1 : 0));
    if (lie == "no_message") bytes.resize(3);
    return FakeWorker::Lie{lie == "a_type" ? FrameType::kv_taken : FrameType::kv_given, bytes};
  });
  ASSERT_TRUE(has_devices(2));
  const auto wrong = load(devices({"w0"}));
  ASSERT_TRUE(wrong) << wrong.error().message();
  EXPECT_EQ(copy((*wrong)->compiled(), there, {0, 1}, {0, 2}), KvCopy::State::failed);
  EXPECT_TRUE(has_devices(1));
  EXPECT_THAT(controller_->status().last_loss, HasSubstr("worker w0"));
}

INSTANTIATE_TEST_SUITE_P(OfEachKind,
                         LyingKv,
                         ::testing::Values("a_number", "a_byte_more", "a_type", "no_message"),
                         [](const auto& of) { return of.param; });

TEST_F(KvOfWorkers, ThatRefuseACopyStay) {
  open_controller();
  const TestWorkerOptions options = worker("w0");
  TestWorker real(worker("w1"));
  ASSERT_TRUE(has_devices(1));
  const auto living = load(devices({"w1"}));
  ASSERT_TRUE(living) << living.error().message();
  const model::CompiledModel& there = (*living)->compiled();
  FakeWorker refusing(
      options, join_of(gateway_, *gateway_.add_device("w0/0"), options), FrameType::abort);
  refusing.answer_binds_with(there.shards.front().kv.layout, there.shards.front().kv.block_bytes);
  refusing.answer_copies_with([](const KvOrder& order, std::size_t) {
    KvAnswer answer;
    answer.number = order.number;
    answer.result = Error{Code::io, "the device is ill"};
    return FakeWorker::Lie{FrameType::kv_given, encode_kv_answer(answer)};
  });
  ASSERT_TRUE(has_devices(2));
  const auto ill = load(devices({"w0"}));
  ASSERT_TRUE(ill) << ill.error().message();
  EXPECT_EQ(copy((*ill)->compiled(), there, {0, 1}, {0, 2}), KvCopy::State::failed);
  EXPECT_EQ(copy_.failed_at, KvCopy::Side::from);
  EXPECT_EQ(controller_->devices().size(), 2U);
}

}  // namespace
}  // namespace luna::cluster
