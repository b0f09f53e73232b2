// Requests that lie with several workers: each attends for the others, and tokens and logits are
// those of one device; workers that are lost, come late or are told nonsense.
#include "core/engine/engine.hpp"
#include "core/model/slice_links.hpp"
#include "support/engine_fixture.hpp"
#include "support/hashed_request.hpp"
#include "support/slicing_policy.hpp"
#include "support/test_seed.hpp"
#include "support/tiny_model_file.hpp"
#include "unit/cluster/cluster_rig.hpp"

namespace luna::cluster {
namespace {

using pipeline::TokenId;
using ::testing::HasSubstr;

constexpr std::uint32_t kVocabSize = 264;
const test::TinyShape kLongShape = {.n_layers = 2,
                                    .hidden_size = 64,
                                    .ffn_size = 96,
                                    .vocab_size = kVocabSize,
                                    .context_length = 8192,
                                    .is_quantized = true};
constexpr std::uint32_t kPromptTokens = 1960;  // with the answer 63 blocks
constexpr std::uint32_t kAnswerTokens = 40;

using DeviceList = std::vector<std::shared_ptr<model::Device>>;

struct Answered {
  std::vector<TokenId> tokens;
  std::uint64_t logits_hash = 0;
};

class SlicesOfWorkers : public Cluster {
 protected:
  void SetUp() override {
    Cluster::SetUp();
    test::write_file(path_, test::tiny_llama(kLongShape, test::values_by_name));
    open_controller();
  }
  void TearDown() override {
    if (engine_) engine_->stop();
    engine_.reset();
    links_.reset();
    models_.clear();
    workers_.clear();
    Cluster::TearDown();
  }

  void start_workers(std::size_t n, std::uint64_t memory_bytes = std::uint64_t{64} << 20U) {
    for (std::size_t i = 0; i < n; ++i) {
      TestWorker::Options options = worker("w" + std::to_string(workers_.size()));
      options.memory_bytes = memory_bytes;
      if (on_many_hosts_) options.host = options.name;
      workers_.push_back(std::make_unique<TestWorker>(options));
    }
    ASSERT_TRUE(has_devices(workers_.size()));
    held_ = controller_->devices();
  }
  [[nodiscard]] model::ModelOptions long_options(std::uint32_t n_blocks) const {
    model::ModelOptions options = model_options();
    options.kv_dtype = kv_dtype_;
    options.limits = {
        .n_rows_max = 512, .n_seqs_max = 8, .n_out_rows_max = 8, .n_positions_max = 0};
    options.kv_blocks_max = n_blocks;
    return options;
  }
  /// A copy on these devices, with room for messages of n_peers others.
  Result<std::unique_ptr<model::Model>> load_copy(const DeviceList& devices,
                                                  std::uint32_t n_blocks,
                                                  std::uint32_t n_peers) {
    model::ModelOptions options = long_options(n_blocks);
    options.n_slice_peers = n_peers;
    model::Collective row;
    model::Collective slices;
    LUNA_TRY(row.transport, choose_transport("auto", controller_->endpoints_of(devices)));
    LUNA_TRY(slices.transport, choose_transport("auto", controller_->endpoints_of(held_)));
    std::vector<model::Device*> raw;
    for (const auto& device : devices)
      raw.push_back(device.get());
    return model::Model::load(options, {gateway_.quants, raw, row, slices});
  }
  /// Copies of n_devices devices each over all workers, linked, with an engine.
  void serve(std::uint32_t n_blocks, std::size_t n_devices = 1) {
    const auto n_groups = static_cast<std::uint32_t>(held_.size() / n_devices);
    links_ = std::make_unique<model::SliceLinks>(n_groups);
    for (std::uint32_t g = 0; g < n_groups; ++g) {
      const auto first = held_.begin() + static_cast<std::ptrdiff_t>(g * n_devices);
      auto model = load_copy(
          {first, first + static_cast<std::ptrdiff_t>(n_devices)}, n_blocks, n_groups - 1);
      ASSERT_TRUE(model) << model.error().message();
      models_.push_back(std::move(*model));
      const auto linked = links_->add(*models_.back());
      ASSERT_TRUE(linked) << linked.error().message();
    }
    run_engine();
  }
  void run_engine() {
    std::vector<const model::CompiledModel*> copies;
    for (const auto& model : models_)
      copies.push_back(&model->compiled());
    stats_ = std::make_unique<telemetry::EngineStats>();
    engine::EngineOptions options;
    options.n_groups_max = 8;
    auto made = engine::Engine::create(
        {copies, scheduler_, tokenizer_, clock_, *stats_, [](void*) {}, nullptr}, options);
    ASSERT_TRUE(made) << made.error().message();
    engine_ = std::move(made).value();
  }

  std::shared_ptr<pipeline::TokenStream> begin(std::uint64_t seed) {
    auto asked = test::hashed_request(seed, kPromptTokens, kAnswerTokens, kVocabSize, tokenizer_);
    auto stream = asked->streams.front();
    const Result<void> submitted = engine_->submit(std::move(asked));
    EXPECT_TRUE(submitted) << submitted.error().message();
    return stream;
  }
  /// Runs the engine until something is so.
  void run_until(const std::function<bool()>& is_so) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!is_so() && std::chrono::steady_clock::now() < end)
      if (!engine_->advance()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    EXPECT_TRUE(is_so());
  }
  Answered finish(const pipeline::TokenStream& stream) {
    run_until([&] { return stream.view().end.has_value(); });
    run_until([&] { return stats_->n_kv_blocks_used.load() == 0; });
    EXPECT_EQ(engine_->audit_kv(), "");
    Answered answered;
    if (!stream.view().end) return answered;
    for (const auto& record : stream.view().tokens)
      answered.tokens.push_back(record.token_id);
    EXPECT_EQ(answered.tokens.size(), kAnswerTokens) << static_cast<int>(stream.view().end->reason);
    answered.logits_hash = stream.view().end->trace.logits_hash;
    return answered;
  }
  Answered ask(std::uint64_t seed) { return finish(*begin(seed)); }

  /// Of one device of this process.
  Answered expected(std::uint64_t seed) {
    model::Device* device = gateway_.add_device("local", std::uint64_t{64} << 20U);
    auto model = model::Model::load(long_options(64),
                                    {gateway_.quants, std::span(&device, 1), std::nullopt});
    EXPECT_TRUE(model) << model.error().message();
    models_.push_back(std::move(*model));
    run_engine();
    const Answered answered = ask(seed);
    engine_->stop();
    engine_.reset();
    models_.clear();
    return answered;
  }
  void expect_as_on_one_device(std::size_t n_workers,
                               std::uint32_t n_blocks,
                               std::size_t n_devices = 1) {
    const std::uint64_t seed = test::test_seed();
    const Answered whole = expected(seed);
    start_workers(n_workers);
    serve(n_blocks, n_devices);
    const Answered sliced = ask(seed);
    EXPECT_EQ(sliced.tokens, whole.tokens);
    EXPECT_EQ(sliced.logits_hash, whole.logits_hash);
    EXPECT_GT(stats_->n_kv_moves.load(), 0U);
    EXPECT_EQ(stats_->n_preempted.load(), 0U);
    EXPECT_EQ(stats_->n_plans_rejected.load(), 0U);
    // Attention that fell on the guests has come back with the steps' ends.
    std::uint64_t attention = 0;
    for (const auto& group : stats_->groups)
      attention += group.guest_attention.load();
    EXPECT_GT(attention, 0U);
  }

  bool on_many_hosts_ = false;
  std::uint32_t kv_dtype_ = LUNA_DTYPE_BF16;
  RealClock clock_;
  std::unique_ptr<telemetry::EngineStats> stats_;  // of the engine
  text::Tokenizer tokenizer_ = test::tiny_tokenizer();
  plugin::Instance<luna_scheduler_if> scheduler_ = test::slicing_scheduler();
  DeviceList held_;
  std::vector<std::unique_ptr<TestWorker>> workers_;
  std::vector<std::unique_ptr<model::Model>> models_;  // one a group
  std::unique_ptr<model::SliceLinks> links_;
  std::unique_ptr<engine::Engine> engine_;
};

TEST_F(SlicesOfWorkers, RequestsLargerThanAWorkerChangeNoBit) {
  expect_as_on_one_device(2, 48);
}

TEST_F(SlicesOfWorkers, Int8CachesOfThreeWorkersChangeNoBit) {
  kv_dtype_ = LUNA_DTYPE_I8;
  expect_as_on_one_device(3, 38);
}

TEST_F(SlicesOfWorkers, WorkersOfSeveralHostsChangeNoBit) {
  on_many_hosts_ = true;
  expect_as_on_one_device(2, 48);
}

TEST_F(SlicesOfWorkers, GroupsOfTwoWorkersChangeNoBit) {
  expect_as_on_one_device(4, 48, 2);
}

TEST_F(SlicesOfWorkers, AGuestThatIsLostCostsNoRequest) {
  const std::uint64_t seed = test::test_seed();
  const Answered whole = expected(seed);
  start_workers(3);
  serve(48);
  const auto stream = begin(seed);
  run_until([&] { return stream->view().tokens.size() > 5; });
  const auto is_home = [&](std::size_t g) { return stats_->groups[g].n_running.load() > 0; };
  const auto is_guest = [&](std::size_t g) {
    return !is_home(g) && stats_->groups[g].n_kv_blocks_used.load() > 0;
  };
  std::size_t home = 0;
  while (home < 2 && !is_home(home))
    ++home;
  std::size_t guest = 0;
  while (guest < 2 && !is_guest(guest))
    ++guest;
  ASSERT_TRUE(is_home(home) && is_guest(guest));
  workers_[guest]->stop();
  const Answered sliced = finish(*stream);
  EXPECT_EQ(sliced.tokens, whole.tokens);
  EXPECT_EQ(sliced.logits_hash, whole.logits_hash);
  EXPECT_GT(stats_->n_preempted.load(), 0U);
  // The one that waited for it is not held to be broken.
  run_until([&] { return stats_->groups[guest].n_devices.load() == 0; });
  EXPECT_EQ(stats_->groups[home].n_devices.load(), 1U);
}

TEST_F(SlicesOfWorkers, ACopyTakesThePlaceOfOneThatHasGone) {
  const std::uint64_t seed = test::test_seed();
  const Answered whole = expected(seed);
  start_workers(2);
  serve(48);
  EXPECT_EQ(ask(seed).logits_hash, whole.logits_hash);
  const DeviceList second = {held_[1]};
  auto full = load_copy(second, 48, 1);
  ASSERT_TRUE(full) << full.error().message();
  const auto third = links_->add(**full);
  ASSERT_FALSE(third);
  EXPECT_THAT(third.error().message(), HasSubstr("2 copies"));
  EXPECT_EQ((*full)->compiled().slice_set, nullptr);

  engine_->stop();
  engine_.reset();
  links_->remove(*models_[1]);
  models_[1] = std::move(*full);
  const auto linked = links_->add(*models_[1]);
  ASSERT_TRUE(linked) << linked.error().message();
  EXPECT_EQ(models_[1]->compiled().slice_place, 1U);
  run_engine();
  EXPECT_EQ(ask(seed).logits_hash, whole.logits_hash);
}

TEST_F(SlicesOfWorkers, RoomForMessagesIsTakenOfTheWorkersBudget) {
  start_workers(1);
  const auto alone = load_copy(held_, 8, 0);
  ASSERT_TRUE(alone) << alone.error().message();
  const auto sliced = load_copy(held_, 8, 2);
  ASSERT_TRUE(sliced) << sliced.error().message();
  const std::uint64_t before = (*alone)->memory().shards[0].messages;
  const std::uint64_t bytes = (*sliced)->memory().shards[0].messages - before;
  EXPECT_GT(bytes, 2U * (*sliced)->shards()[0]->slice_message_bytes());
  // As many as nobody could have.
  const auto too_many = load_copy(held_, 8, 60);
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().code(), Code::exhausted) << too_many.error().message();
}

TEST_F(SlicesOfWorkers, NonsenseIsRefusedWithTheReason) {
  start_workers(1);
  const auto copy = load_copy(held_, 8, 2);
  ASSERT_TRUE(copy) << copy.error().message();
  model::DeviceShard& shard = *(*copy)->shards()[0];
  model::SliceTerms terms;
  terms.place = 1;
  terms.group = "slices/test";
  terms.message_bytes = shard.slice_message_bytes();
  const auto refused = [&](const model::SliceTerms& wrong, const std::string& reason) {
    const auto opened = shard.open_slices(wrong);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message(), HasSubstr(reason));
  };
  model::SliceTerms wrong = terms;
  wrong.place = 3;
  refused(wrong, "place 3 of 3");
  wrong = terms;
  wrong.message_bytes -= 64;
  refused(wrong, "messages of");
  const auto opened = shard.open_slices(terms);
  ASSERT_TRUE(opened) << opened.error().message();
  refused(terms, "place 1 of 3");
  shard.close_slices(1);
  EXPECT_TRUE(shard.open_slices(terms));
  const auto whole = load_copy(held_, 8, 0);
  ASSERT_TRUE(whole) << whole.error().message();
  const auto of_whole = (*whole)->shards()[0]->open_slices(terms);
  ASSERT_FALSE(of_whole);
  EXPECT_THAT(of_whole.error().message(), HasSubstr("not planned for them"));
}

/// A step of one row behind 256 positions whose first partition lies elsewhere.
struct SlicedStep {
  std::vector<std::uint32_t> token_ids = {1, 1};
  std::vector<std::uint32_t> positions = {256, 257};
  std::vector<std::uint32_t> seq_first_row = {0, 2};
  std::vector<std::uint32_t> blocks = std::vector<std::uint32_t>(9, 3);
  luna_slice slice{0, 1, 0, 1, nullptr};
  std::uint64_t mass = 0;
};

TEST_F(SlicesOfWorkers, AStepWithSlicesThatNobodyHasIsTheEndOfTheConnection) {
  const std::vector<std::function<void(SlicedStep&)>> wrongs = {
      [](SlicedStep& step) { step.slice.peer = 3; },
      [](SlicedStep& step) { step.slice.n_partitions = 2; },
      [](SlicedStep& step) { step.slice.n_partitions = 0; },
      [](SlicedStep& step) { step.slice.seq = 1; },
      [](SlicedStep& step) { step.positions = {255, 256}; },
      [](SlicedStep& step) { step.positions = {257, 256}; },
      [](SlicedStep& step) { step.positions = {256, 256}; },
      [](SlicedStep& step) { step.blocks[8] = 77; },
  };
  start_workers(1);
  for (const auto& spoil : wrongs) {
    ASSERT_TRUE(has_devices(1));
    held_ = controller_->devices();
    const auto copy = load_copy(held_, 8, 2);
    ASSERT_TRUE(copy) << copy.error().message();
    const model::Shard& shard = (*copy)->compiled().shards[0];
    SlicedStep some;
    spoil(some);
    some.slice.blocks = some.blocks.data() + std::size_t{some.slice.seq} * some.blocks.size();
    std::latch ended(1);
    luna_step step{};
    step.struct_size = sizeof(step);
    step.n_rows = 2;
    step.n_seqs = 1;
    step.token_ids = some.token_ids.data();
    step.positions = some.positions.data();
    step.seq_first_row = some.seq_first_row.data();
    step.block_tables = some.blocks.data();
    step.block_table_stride = static_cast<std::uint32_t>(some.blocks.size());
    step.slices = &some.slice;
    step.n_slices = 1;
    step.slice_masses = &some.mass;
    step.binds = shard.binds[0].data();
    step.n_binds = static_cast<std::uint32_t>(shard.binds[0].size());
    step.done_context = &ended;
    step.done = [](void* context, const luna_step_result* result) {
      EXPECT_EQ(result->status, LUNA_UNAVAILABLE);
      static_cast<std::latch*>(context)->count_down();
    };
    luna_err err = make_err();
    ASSERT_EQ(shard.backend->submit(shard.executable, &step, &err), LUNA_OK);
    ended.wait();
    EXPECT_TRUE((*copy)->is_lost());
    // It comes back by itself.
    ASSERT_TRUE(comes([&] {
      const auto devices = controller_->devices();
      return devices.size() == 1 && devices[0] != held_[0];
    }));
  }
}

}  // namespace
}  // namespace luna::cluster
