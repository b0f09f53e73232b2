// Workers that die at any point of a load, or leave in order: nothing of theirs is left behind.
#include "unit/cluster/fake_worker.hpp"

namespace luna::cluster {
namespace {

using ::testing::HasSubstr;

/// w0 is one that dies, w1 a real one.
class DyingWorker : public Cluster, public ::testing::WithParamInterface<FrameType> {};

TEST_P(DyingWorker, LeavesNothingOfALoadBehind) {
  const auto expected = expected_logits(kPrompt);
  open_controller();
  const TestWorkerOptions options = worker("w0");
  FakeWorker dying(options, join_of(gateway_, *gateway_.add_device("w0/0"), options), GetParam());
  TestWorker other(worker("w1"));
  ASSERT_TRUE(has_devices(2));
  const auto devices = controller_->devices();
  {
    const auto model = load(devices);
    if (GetParam() == FrameType::step) {
      ASSERT_TRUE(model) << model.error().message();
      // Its own step ends with its connection, the other's wait for it when somebody says so.
      std::thread waiting([&] {
        EXPECT_TRUE(has_devices(1));
        (*model)->abort_steps();
      });
      const Ran ran = run_prompt((*model)->compiled(), kPrompt);
      waiting.join();
      EXPECT_THAT(ran.failures, ::testing::Contains(HasSubstr("worker w0")));
    } else {
      ASSERT_FALSE(model);
      EXPECT_THAT(model.error().message(), HasSubstr("worker w0"));
      EXPECT_EQ(model.error().code(), Code::unavailable);
    }
    EXPECT_TRUE(has_devices(1));
  }
  for (const auto& device : devices)
    EXPECT_EQ(device->memory_bytes_left(), device->memory_bytes());
  // In the other process, too, all is given back: it has room for the whole model.
  const auto alone = load(controller_->devices());
  ASSERT_TRUE(alone) << alone.error().message();
  EXPECT_EQ(run_prompt((*alone)->compiled(), kPrompt).logits, expected);
}

INSTANTIATE_TEST_SUITE_P(AtAnyPoint,
                         DyingWorker,
                         ::testing::Values(FrameType::survey,
                                           FrameType::plan,
                                           FrameType::pack,
                                           FrameType::bind,
                                           FrameType::step),
                         [](const auto& at) { return std::string(name_of(at.param)); });

TEST_F(Cluster, AWorkerThatIsToldToEndStaysUntilItIsDismissed) {
  open_controller();
  TestWorkerOptions options = worker("w0");
  options.drain_timeout = std::chrono::hours(1);
  TestWorker leaving(options);
  TestWorker staying(worker("w1"));
  ASSERT_TRUE(has_devices(2));
  leaving.tell_to_end();
  ASSERT_TRUE(comes([this] { return controller_->staying_devices().size() == 1; }));
  // It still serves.
  EXPECT_EQ(controller_->devices().size(), 2U);
  {
    const auto model = load(controller_->devices());
    ASSERT_TRUE(model) << model.error().message();
    EXPECT_EQ(run_prompt((*model)->compiled(), kPrompt).logits, expected_logits(kPrompt));
  }
  const auto workers = controller_->leaving();
  ASSERT_EQ(workers.size(), 1U);
  EXPECT_EQ(workers[0].name, "w0");
  EXPECT_EQ(workers[0].farewell, Farewell::asked);
  controller_->dismiss("w1");  // it does not leave: nothing happens
  controller_->dismiss("w0");
  EXPECT_EQ(leaving.farewell(), Farewell::asked);
  EXPECT_TRUE(has_devices(1));
  EXPECT_EQ(controller_->stats().n_drained, 1U);
  EXPECT_EQ(controller_->stats().n_lost, 0U);
}

TEST_F(Cluster, AWorkerThatHasToStayLeavesWhenAnotherHasCome) {
  open_controller();
  TestWorkerOptions options = worker("w0");
  options.drain_timeout = std::chrono::hours(1);
  TestWorker leaving(options);
  TestWorker asked_by_others(worker("w1"));
  ASSERT_TRUE(has_devices(2));
  leaving.tell_to_end();
  ASSERT_TRUE(comes([this] { return controller_->staying_devices().size() == 1; }));
  ASSERT_TRUE(controller_->drain("w1", Farewell::drained));
  controller_->keep_leaving("nobody has room");
  EXPECT_EQ(controller_->staying_devices().size(), 2U);
  EXPECT_THAT(controller_->leaving(), ::testing::IsEmpty());
  // The wish stands, what others ordered does not.
  TestWorker third(worker("w2"));
  ASSERT_TRUE(has_devices(3));
  const auto workers = controller_->leaving();
  ASSERT_EQ(workers.size(), 1U);
  EXPECT_EQ(workers[0].name, "w0");
  EXPECT_EQ(workers[0].farewell, Farewell::asked);
  controller_->dismiss("w0");
  EXPECT_EQ(leaving.farewell(), Farewell::asked);
}

TEST_F(Cluster, AWorkerThatNobodyDismissesLeavesInTime) {
  open_controller();
  TestWorkerOptions options = worker("w0");
  options.drain_timeout = std::chrono::milliseconds(200);
  TestWorker leaving(options);
  ASSERT_TRUE(has_devices(1));
  leaving.tell_to_end();
  EXPECT_EQ(leaving.farewell(), std::nullopt);
  EXPECT_TRUE(has_devices(0));
  EXPECT_EQ(controller_->stats().n_lost, 1U);
}

TEST_F(Cluster, AWorkerIsDrainedByItsNameAndToldWhetherToComeBack) {
  open_controller();
  TestWorker first(worker("w0"));
  TestWorker second(worker("w1"));
  ASSERT_TRUE(has_devices(2));
  const auto unknown = controller_->drain("w7", Farewell::drained);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), Code::not_found);
  ASSERT_TRUE(controller_->drain("w0", Farewell::drained));
  EXPECT_EQ(controller_->staying_devices().size(), 1U);
  controller_->keep_leaving("nobody has room");
  EXPECT_EQ(controller_->staying_devices().size(), 2U);
  EXPECT_EQ(controller_->status().last_kept, "nobody has room");
  ASSERT_TRUE(controller_->drain("w0", Farewell::drained));
  ASSERT_TRUE(controller_->drain("w1", Farewell::restart));
  controller_->dismiss("w0");
  controller_->dismiss("w1");
  EXPECT_EQ(first.farewell(), Farewell::drained);
  EXPECT_EQ(second.farewell(), Farewell::restart);
}

TEST_F(Cluster, WorkersTellWhatTheyTake) {
  open_controller();
  TestWorker one(worker("w0"));
  ASSERT_TRUE(has_devices(1));
  const auto report = [this] { return controller_->status().workers.at(0).memory; };
  ASSERT_TRUE(comes([&] { return report().has_value(); }));
  EXPECT_EQ(report()->budget, std::uint64_t{16} << 20U);
  EXPECT_EQ(report()->fixed, 0U);
  const auto model = load(controller_->devices());
  ASSERT_TRUE(model) << model.error().message();
  const model::ShardMemory& memory = (*model)->memory().shards.at(0);
  EXPECT_TRUE(
      comes([&] { return report()->kv == memory.kv && report()->fixed == memory.fixed(); }));
  controller_->relieve("w0");  // harmless
  EXPECT_EQ(run_prompt((*model)->compiled(), kPrompt).logits, expected_logits(kPrompt));
}

}  // namespace
}  // namespace luna::cluster
