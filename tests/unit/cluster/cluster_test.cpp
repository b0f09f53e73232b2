// A controller and workers with real plugins: who may join, and what a model on their devices
// gives.
#include "core/model/shard_manifest.hpp"
#include "core/model/shard_writer.hpp"
#include "unit/cluster/cluster_rig.hpp"

namespace luna::cluster {
namespace {

using ::testing::HasSubstr;

TEST_F(Cluster, AModelOnWorkersGivesTheBitsOfOneProcess) {
  const auto expected = expected_logits(kPrompt);
  open_controller();
  TestWorker first(worker("w0"));
  TestWorker second(worker("w1"));
  ASSERT_TRUE(has_devices(2));
  const auto model = load(controller_->devices());
  ASSERT_TRUE(model) << model.error().message();
  const model::CompiledModel& compiled = (*model)->compiled();
  ASSERT_EQ(compiled.shards.size(), 2U);
  EXPECT_EQ(compiled.shards[0].device_name, "w0/0");
  for (std::size_t lane = 0; lane < 2; ++lane) {
    const Ran ran = run_prompt(compiled, kPrompt, {.lane = lane});
    EXPECT_THAT(ran.failures, ::testing::IsEmpty());
    EXPECT_EQ(ran.logits, expected);
    const auto best = std::ranges::max_element(expected) - expected.begin();
    EXPECT_EQ(compiled.outputs[lane].candidates[0].token_id, static_cast<std::uint32_t>(best));
  }
}

TEST_F(Cluster, DevicesOnSeveralHostsMeetOverTcp) {
  const auto expected = expected_logits(kPrompt);
  open_controller();
  TestWorker::Options far = worker("w1");
  far.host = "another host";
  TestWorker first(worker("w0"));
  TestWorker second(far);
  ASSERT_TRUE(has_devices(2));
  EXPECT_EQ(*choose_transport("auto", controller_->endpoints_of(controller_->devices())), "tcp");
  const auto model = load(controller_->devices());
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(run_prompt((*model)->compiled(), kPrompt).logits, expected);
}

TEST_F(Cluster, AWorkerThatEndsFailsItsStepsAndGivesItsMemoryBack) {
  open_controller();
  auto first = std::make_unique<TestWorker>(worker("w0"));
  TestWorker second(worker("w1"));
  ASSERT_TRUE(has_devices(2));
  const auto devices = controller_->devices();
  auto model = load(devices);
  ASSERT_TRUE(model) << model.error().message();
  first->stop();
  ASSERT_TRUE(has_devices(1));
  // Its own step fails at once; the other device's wait for it is ended.
  (*model)->abort_steps();
  const Ran ran = run_prompt((*model)->compiled(), kPrompt);
  ASSERT_THAT(ran.failures, ::testing::Not(::testing::IsEmpty()));
  EXPECT_THAT(ran.failures, ::testing::Contains(HasSubstr("worker w0")));
  model->reset();
  EXPECT_EQ(devices[0]->memory_bytes_left(), devices[0]->memory_bytes());
  // What is left serves alone.
  const auto alone = load(controller_->devices());
  ASSERT_TRUE(alone) << alone.error().message();
  EXPECT_EQ(run_prompt((*alone)->compiled(), kPrompt).logits, expected_logits(kPrompt));
}

TEST_F(Cluster, AModelIsPlacedAgainOverWeightsThatAreThere) {
  const auto expected = expected_logits(kPrompt);
  model::SplitOptions split;
  split.source = path_;
  split.folder = folder_ / "shards";
  split.n_shards = 4;
  ASSERT_TRUE(model::split_model(split));
  path_ = split.folder;
  open_controller();
  auto first = std::make_unique<TestWorker>(worker("w0"));
  TestWorker second(worker("w1"));
  ASSERT_TRUE(has_devices(2));
  for (int life = 0; life < 2; ++life) {
    const auto model = load(controller_->devices());
    ASSERT_TRUE(model) << model.error().message();
    EXPECT_EQ(run_prompt((*model)->compiled(), kPrompt).logits, expected);
  }
  first->stop();
  ASSERT_TRUE(has_devices(1));
  // What w1 has stays, what w0 had comes from the folder.
  const auto alone = load(controller_->devices());
  ASSERT_TRUE(alone) << alone.error().message();
  EXPECT_EQ(run_prompt((*alone)->compiled(), kPrompt).logits, expected);
}

TEST_F(Cluster, WorkersWithAShardOfTheirOwnGetThatAndNothingElse) {
  const auto expected = expected_logits(kPrompt);
  model::SplitOptions split;
  split.source = path_;
  split.folder = folder_ / "shards";
  split.n_shards = 2;
  ASSERT_TRUE(model::split_model(split));
  path_ = split.folder;
  open_controller();
  std::vector<TestWorkerOptions> options = {worker("w0"), worker("w1")};
  for (std::size_t i = 0; i < 2; ++i) {
    options[i].model = folder_ / ("own-" + std::to_string(i));
    std::filesystem::copy(split.folder, options[i].model);
    std::filesystem::remove(options[i].model / model::shard_file_name(1 - i));
  }
  TestWorker first(options[0]);
  auto second = std::make_unique<TestWorker>(options[1]);
  ASSERT_TRUE(has_devices(2));
  {
    const auto model = load(controller_->devices());
    ASSERT_TRUE(model) << model.error().message();
    EXPECT_EQ(run_prompt((*model)->compiled(), kPrompt).logits, expected);
  }
  second->stop();
  ASSERT_TRUE(has_devices(1));
  const auto alone = load(controller_->devices());
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code(), Code::not_found);
  EXPECT_THAT(alone.error().message(), HasSubstr("those that it has, in this order: 0..1"));
  // One with the whole model takes the rest.
  TestWorker third(worker("w2"));
  ASSERT_TRUE(has_devices(2));
  const auto both = load(controller_->devices());
  ASSERT_TRUE(both) << both.error().message();
  EXPECT_EQ(run_prompt((*both)->compiled(), kPrompt).logits, expected);
}

TEST_F(Cluster, WorkersTakeTheLayersOfTheirShardsWhateverTheirNames) {
  const auto expected = expected_logits(kPrompt);
  model::SplitOptions split;
  split.source = path_;
  split.folder = folder_ / "shards";
  split.n_shards = 3;
  ASSERT_TRUE(model::split_model(split));
  path_ = split.folder;
  open_controller();
  std::vector<std::unique_ptr<TestWorker>> workers;
  for (std::uint32_t shard = 0; shard < 3; ++shard) {
    TestWorkerOptions options = worker("w" + std::to_string(2 - shard));
    options.model = folder_ / ("own-" + std::to_string(shard));
    std::filesystem::copy(split.folder, options.model);
    for (std::uint32_t other = 0; other < 3; ++other)
      if (other != shard) std::filesystem::remove(options.model / model::shard_file_name(other));
    workers.push_back(std::make_unique<TestWorker>(options));
  }
  ASSERT_TRUE(has_devices(3));
  const auto model = load(controller_->devices());
  ASSERT_TRUE(model) << model.error().message();
  std::vector<std::string> names;
  for (const model::Shard& shard : (*model)->compiled().shards)
    names.push_back(shard.device_name);
  EXPECT_THAT(names, ::testing::ElementsAre("w2/0", "w1/0", "w0/0"));
  EXPECT_EQ(run_prompt((*model)->compiled(), kPrompt).logits, expected);
}

// Its files are damaged meanwhile: whoever reads them says so.
TEST_F(Cluster, LayersThatWerePackedAheadAreTakenOverWithoutTheFiles) {
  const auto expected = expected_logits(kPrompt);
  model::SplitOptions split;
  split.source = path_;
  split.folder = folder_ / "shards";
  split.n_shards = 4;
  const auto written = model::split_model(split);
  ASSERT_TRUE(written) << written.error().message();
  path_ = split.folder;
  open_controller();
  TestWorkerOptions own = worker("w0");
  own.model = folder_ / "own";
  std::filesystem::copy(split.folder, own.model);
  TestWorker first(own);
  auto second = std::make_unique<TestWorker>(worker("w1"));
  ASSERT_TRUE(has_devices(2));
  model::Device* local = gateway_.add_device("whole");
  const auto whole =
      model::Model::load(model_options(), {gateway_.quants, {&local, 1}, std::nullopt});
  ASSERT_TRUE(whole) << whole.error().message();
  const auto both = controller_->devices();  // held, as by whoever places a model on them
  auto model = load(both);
  ASSERT_TRUE(model) << model.error().message();
  const std::uint64_t n_missing =
      (*whole)->memory().shards[0].weights - (*model)->memory().shards[0].weights;
  ASSERT_GT(n_missing, 0U);
  ASSERT_TRUE(comes([&] {
    const auto report = controller_->status().workers.at(0).memory;
    return report && report->spare == n_missing;
  }));
  for (const auto& entry : std::filesystem::directory_iterator(own.model)) {
    if (entry.path().extension() != ".gguf") continue;
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    const char other = static_cast<char>(file.peek() ^ 1);
    file.seekp(-1, std::ios::end);
    file.put(other);
  }
  second->stop();
  ASSERT_TRUE(has_devices(1));
  model->reset();
  {
    const auto alone = load(controller_->devices());
    ASSERT_TRUE(alone) << alone.error().message();
    EXPECT_EQ(run_prompt((*alone)->compiled(), kPrompt).logits, expected);
  }
  first.stop();
  ASSERT_TRUE(has_devices(0));
  TestWorker third(own);
  ASSERT_TRUE(has_devices(1));
  const auto damaged = load(controller_->devices());
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code(), Code::corrupt);
}

TEST_F(Cluster, AWorkerJoinsWhateverIsStartedFirstAndComesBack) {
  open_controller();
  const std::uint16_t port = controller_->port();
  const TestWorker::Options options = worker("w0");
  controller_.reset();
  TestWorker early(options);  // nobody listens yet
  ControllerOptions again;
  again.host = "127.0.0.1";
  again.port = port;
  again.token_file = token_;
  again.heartbeat = std::chrono::milliseconds(50);
  again.timeout = std::chrono::milliseconds(5000);
  again.version = "1";
  for (int life = 0; life < 2; ++life) {
    auto opened = Controller::open(again);
    ASSERT_TRUE(opened) << opened.error().message();
    controller_ = std::move(*opened);
    EXPECT_TRUE(has_devices(1));
    controller_.reset();
  }
}

TEST_F(Cluster, WhoDoesNotFitIsRefusedWithTheReason) {
  open_controller();
  TestWorker right(worker("w0"));
  ASSERT_TRUE(has_devices(1));
  const auto is_refused = [&](const TestWorker::Options& options, const std::string& reason) {
    const std::uint64_t before = controller_->stats().n_refused;
    TestWorker wrong(options);
    EXPECT_TRUE(comes([&] { return controller_->stats().n_refused > before; }));
    EXPECT_THAT(controller_->status().last_refusal, HasSubstr(reason));
    EXPECT_EQ(controller_->devices().size(), 1U);
  };
  TestWorker::Options options = worker("w0");
  is_refused(options, "another worker has the name w0");
  options = worker("w1");
  options.version = "2";
  is_refused(options, "it is luna 2, the controller 1");
  options = worker("w1");
  options.backend = "reference";
  is_refused(options, "compute");
  options = worker("w1");
  options.token_file = folder_ / "other";
  std::ofstream(*options.token_file) << "another secret of many bytes";
  is_refused(options, "the token is another one");
}

TEST_F(Cluster, AnotherModelIsRefusedBeforeAWeightIsLoaded) {
  open_controller();
  TestWorker::Options options = worker("w0");
  options.model = folder_ / "other.gguf";
  write_model(options.model, 3);
  TestWorker first(options);
  ASSERT_TRUE(has_devices(1));
  const auto model = load(controller_->devices());
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), Code::corrupt);
  EXPECT_THAT(
      model.error().message(),
      ::testing::AllOf(HasSubstr("worker w0"), HasSubstr("another model than the controller's")));
}

TEST_F(Cluster, BeyondLoopbackATokenIsNeeded) {
  ControllerOptions options;
  options.host = "0.0.0.0";
  const auto open = Controller::open(options);
  ASSERT_FALSE(open);
  EXPECT_THAT(open.error().message(), HasSubstr("without cluster.token_file only a loopback"));
}

}  // namespace
}  // namespace luna::cluster
