// Requests that lie on several devices: real kernels on a tiny model, groups of one device each
// with less room than a request needs. Tokens and every logit are those of one device that holds it
// all.
#include "core/model/model_loader.hpp"
#include "core/model/slice_links.hpp"
#include "core/model/vocabulary_loader.hpp"
#include "support/flowsplit_scheduler.hpp"
#include "support/hashed_request.hpp"
#include "support/shipped_plugins.hpp"
#include "support/slicing_policy.hpp"
#include "support/test_seed.hpp"
#include "support/tiny_model_file.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace luna::app {
namespace {

using pipeline::TokenId;

constexpr std::uint32_t kVocabSize = 264;

/// With a long context.
const test::TinyShape kLongShape = {.n_layers = 2,
                                    .hidden_size = 64,
                                    .ffn_size = 96,
                                    .vocab_size = kVocabSize,
                                    .context_length = 8192,
                                    .is_quantized = true};

struct ServerShape {
  std::uint32_t n_groups = 1;
  std::uint32_t n_devices = 1;  // of a group, in a row
  std::uint32_t n_kv_blocks = 256;
  std::uint32_t kv_dtype = LUNA_DTYPE_BF16;
  const char* transport = "transport_inproc";
  bool has_vocabulary = false;  // the file, else the model is the tiny one
  bool has_flowsplit = false;   // else a policy of the tests slices
  std::uint32_t checked_percent = 0;
};

plugin::Instance<luna_scheduler_if> policy_of(const ServerShape& shape) {
  if (shape.n_groups == 1) return test::static_scheduler();
  return shape.has_flowsplit ? test::flowsplit_scheduler() : test::slicing_scheduler();
}

struct Ended {
  std::vector<TokenId> tokens;
  std::uint64_t logits_hash = 0;
};

/// Copies of the model, linked, with an engine that runs while the test waits.
class SlicedServer {
 public:
  SlicedServer(const std::filesystem::path& file, const ServerShape& shape)
      : tokenizer_(shape.has_vocabulary ? tokenizer_of(file) : test::tiny_tokenizer()),
        transport_(test::shipped_transport(shape.transport)),
        scheduler_(policy_of(shape)),
        links_(shape.n_groups) {
    for (std::uint32_t g = 0; g < shape.n_groups; ++g)
      models_.push_back(load(file, shape));
    std::vector<const model::CompiledModel*> copies;
    for (const auto& model : models_) {
      copies.push_back(&model->compiled());
      if (shape.n_groups < 2) continue;
      const auto linked = links_.add(*model);
      EXPECT_TRUE(linked) << linked.error().message();
    }
    engine::EngineOptions options;
    options.output_check.percent = shape.checked_percent;
    auto made = engine::Engine::create({{copies.begin(), copies.end()},
                                        scheduler_,
                                        tokenizer_,
                                        clock_,
                                        stats,
                                        [](void*) {},
                                        nullptr},
                                       options);
    EXPECT_TRUE(made) << made.error().message();
    engine_ = std::move(made).value();
  }
  ~SlicedServer() { engine_->stop(); }

  Ended ask(std::uint32_t n_prompt, std::uint32_t n_generated, std::uint64_t seed) {
    auto asked = test::hashed_request(seed, n_prompt, n_generated, n_vocabulary_, tokenizer_);
    auto stream = asked->streams.front();
    const Result<void> submitted = engine_->submit(std::move(asked));
    EXPECT_TRUE(submitted) << submitted.error().message();
    while (!stream->view().end)
      if (!engine_->advance()) engine_->wait();
    // What is on its way comes back when its copy has ended.
    while (stats.n_kv_blocks_used.load() > 0)
      if (!engine_->advance()) std::this_thread::yield();
    EXPECT_EQ(engine_->audit_kv(), "");
    Ended ended;
    for (const auto& record : stream->view().tokens)
      ended.tokens.push_back(record.token_id);
    EXPECT_EQ(ended.tokens.size(), n_generated) << static_cast<int>(stream->view().end->reason);
    ended.logits_hash = stream->view().end->trace.logits_hash;
    return ended;
  }
  /// Computes all answers that are to be checked once more.
  void check_answers() {
    do {
      engine_->check_outputs();
      while (engine_->advance() || stats.n_running.load() > 0)
        if (stats.n_steps_in_flight.load() > 0) engine_->wait();
    } while (stats.output_check.n_waiting.load() > 0);
    EXPECT_EQ(engine_->audit_kv(), "");
  }
  [[nodiscard]] const engine::Engine& engine() const { return *engine_; }

  telemetry::EngineStats stats;

 private:
  [[nodiscard]] model::Collective collective() const {
    return test::collective_of(transport_, "transport");
  }
  static text::Tokenizer tokenizer_of(const std::filesystem::path& file) {
    return text::Tokenizer::create(model::load_vocabulary(file).value()).value();
  }
  std::unique_ptr<model::Model> load(const std::filesystem::path& file, const ServerShape& shape) {
    std::vector<model::Device*> devices;
    for (std::uint32_t d = 0; d < shape.n_devices; ++d) {
      model::DeviceOptions own;
      own.name = "a" + std::to_string(devices_.size());
      own.memory_bytes = std::uint64_t{1} << 30U;
      own.n_threads = 1;
      own.first_cpu = static_cast<std::uint32_t>(devices_.size());
      auto device = model::Device::open(backend_, own);
      EXPECT_TRUE(device) << device.error().message();
      devices.push_back(devices_.emplace_back(std::move(device).value()).get());
    }
    model::ModelOptions options;
    options.name = "tiny";
    options.path = file;
    options.kv_dtype = shape.kv_dtype;
    options.limits = {
        .n_rows_max = 512, .n_seqs_max = 8, .n_out_rows_max = 8, .n_positions_max = 0};
    options.kv_blocks_max = shape.n_kv_blocks;
    options.n_slice_peers = shape.n_groups - 1;
    auto model = model::Model::load(options, {quants_, devices, collective()});
    EXPECT_TRUE(model) << model.error().message();
    n_vocabulary_ = (*model)->compiled().config.vocab_size;
    return std::move(model).value();
  }

  RealClock clock_;
  std::uint32_t n_vocabulary_ = 0;
  text::Tokenizer tokenizer_;
  plugin::Instance<luna_backend_if> backend_ =
      test::shipped_backend("backend_cpu", {{"share_weights", true}});
  std::vector<plugin::Instance<luna_quant_if>> quants_ = test::shipped_quants();
  plugin::Instance<luna_transport_if> transport_;
  plugin::Instance<luna_scheduler_if> scheduler_;
  std::vector<std::unique_ptr<model::Device>> devices_;
  std::vector<std::unique_ptr<model::Model>> models_;  // one a group
  model::SliceLinks links_;
  std::unique_ptr<engine::Engine> engine_;
};

class SlicedRequests : public ::testing::Test {
 protected:
  void expect_as_on_one_device(const ServerShape& sliced, std::uint32_t n_prompt) {
    ServerShape whole = sliced;
    whole.n_groups = 1;
    whole.n_devices = 1;
    whole.n_kv_blocks = 256;
    SlicedServer one(file_.path(), whole);
    SlicedServer many(file_.path(), sliced);
    const std::uint64_t seed = test::test_seed();
    const Ended expected = one.ask(n_prompt, 40, seed);
    const Ended ended = many.ask(n_prompt, 40, seed);
    EXPECT_EQ(ended.tokens, expected.tokens);
    EXPECT_EQ(ended.logits_hash, expected.logits_hash);
    EXPECT_GT(many.stats.n_kv_moves.load(), 0U);
    EXPECT_EQ(many.stats.n_plans_rejected.load(), 0U);
    EXPECT_EQ(many.stats.n_preempted.load(), 0U);
    EXPECT_EQ(many.stats.n_kv_blocks_used.load(), 0U);
  }
  const test::TinyModelFile file_{"sliced_requests", kLongShape};
};

TEST_F(SlicedRequests, TwoFourAndSevenWaysChangeNoBit) {
  for (const std::uint32_t kv_dtype : {LUNA_DTYPE_BF16, LUNA_DTYPE_I8})
    for (const std::uint32_t n_groups : {2U, 4U, 7U}) {
      SCOPED_TRACE(std::to_string(n_groups) + " groups");
      // 2,000 tokens: 63 blocks.
      expect_as_on_one_device(
          {.n_groups = n_groups, .n_kv_blocks = 63 / n_groups + 17, .kv_dtype = kv_dtype}, 1960);
    }
}

TEST_F(SlicedRequests, ByTheDecisionsOfFlowSplitTheyChangeNoBit) {
  for (const std::uint32_t n_groups : {2U, 4U, 7U}) {
    SCOPED_TRACE(std::to_string(n_groups) + " groups");
    expect_as_on_one_device(
        {.n_groups = n_groups, .n_kv_blocks = 63 / n_groups + 17, .has_flowsplit = true}, 1960);
  }
  expect_as_on_one_device({.n_groups = 3, .n_devices = 2, .n_kv_blocks = 40, .has_flowsplit = true},
                          1960);
}

TEST_F(SlicedRequests, GroupsOfTwoDevicesAndOtherTransportsChangeNoBit) {
  expect_as_on_one_device({.n_groups = 3, .n_devices = 2, .n_kv_blocks = 40}, 1960);
  expect_as_on_one_device({.n_groups = 3, .n_kv_blocks = 40, .transport = "transport_shm"}, 1960);
  expect_as_on_one_device({.n_groups = 3, .n_kv_blocks = 40, .transport = "transport_tcp"}, 1960);
}

TEST_F(SlicedRequests, AreComputedOnceMoreInOneGroupAndFoundRight) {
  // 63 blocks and no more than the policy leaves free.
  SlicedServer server(file_.path(), {.n_groups = 2, .n_kv_blocks = 64, .checked_percent = 100});
  server.ask(1960, 40, test::test_seed());
  EXPECT_GT(server.stats.n_kv_moves.load(), 0U);
  server.check_answers();
  EXPECT_EQ(server.stats.output_check.n_checked.load(), 1U);
  EXPECT_EQ(server.stats.output_check.n_mismatches.load(), 0U);
}

// Each device has room for less than 1,100 tokens: 34 blocks of 32. flowsplit decides.
TEST_F(SlicedRequests, TwentyOfEightThousandTokensInARowLeaveNothingBehind) {
  SlicedServer server(file_.path(), {.n_groups = 8, .n_kv_blocks = 34, .has_flowsplit = true});
  EXPECT_TRUE(server.engine().can_fit(8172, 20, 1));
  for (std::uint64_t i = 0; i < 20; ++i)
    server.ask(i % 2 == 0 ? 7900 : 8172, 20, test::test_seed() + i);
  EXPECT_EQ(server.stats.n_plans_rejected.load(), 0U);
  EXPECT_EQ(server.stats.n_preempted.load(), 0U);
  EXPECT_EQ(server.stats.n_kv_audit_failures.load(), 0U);
  EXPECT_EQ(server.stats.n_kv_blocks_used.load(), 0U);
}

// LUNA_SLICED_MODEL names a file with a context of 8,192 tokens: it takes half a minute a request.
TEST_F(SlicedRequests, ARealModelsEightThousandTokensOverEightDevicesChangeNoBit) {
  const char* const path = std::getenv("LUNA_SLICED_MODEL");
  if (path == nullptr) GTEST_SKIP() << "LUNA_SLICED_MODEL is not set";
  const std::uint64_t seed = test::test_seed();
  std::vector<Ended> ended;
  for (const std::uint32_t n_groups : {1U, 8U}) {
    SlicedServer server(path,
                        {.n_groups = n_groups,
                         .n_kv_blocks = n_groups == 1 ? 256U : 34U,
                         .has_vocabulary = true,
                         .has_flowsplit = true});
    const auto start = std::chrono::steady_clock::now();
    ended.push_back(server.ask(7900, 32, seed));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%u devices: %.2f s\n", n_groups, took.count());
    EXPECT_EQ(server.stats.n_kv_blocks_used.load(), 0U);
  }
  EXPECT_EQ(ended[0].tokens, ended[1].tokens);
  EXPECT_EQ(ended[0].logits_hash, ended[1].logits_hash);
}

}  // namespace
}  // namespace luna::app
