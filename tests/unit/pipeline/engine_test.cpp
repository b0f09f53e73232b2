// The pipeline over the real engine: both threads, a fake device.
#include "core/pipeline/engine_runner.hpp"
#include "support/engine_fixture.hpp"
#include "support/pipeline_fixture.hpp"
#include "support/waiting_sink.hpp"

#include <gtest/gtest.h>

namespace luna::test {
namespace {

class PipelineOnEngine : public ::testing::Test {
 protected:
  PipelineOnEngine() {
    FakeModelOptions options;
    options.completion = Completion::threaded;
    options.n_kv_blocks = 256;
    fake = std::make_unique<FakeModel>(options);
    auto made = engine::Engine::create({{&fake->compiled},
                                        scheduler,
                                        rig.tokenizer,
                                        rig.clock,
                                        stats,
                                        [](void* wake) { static_cast<WakeSignal*>(wake)->set(); },
                                        &rig.wake},
                                       {});
    EXPECT_TRUE(made);
    engine = *std::move(made);
    runner = std::make_unique<pipeline::EngineRunner>(*engine);
    rig.context_tokens = options.n_positions_max;
    rig.on(*runner)
        .stage(load_role("intent", {{"labels", std::vector<std::string>{"code", "talk"}}}), true)
        .generate()
        .stage(load_role("postprocess"))
        .make();
    engine->start();
    rig.pipeline->launch();
  }
  ~PipelineOnEngine() override {
    rig.pipeline->drain(std::chrono::nanoseconds(0));
    engine->stop();
    EXPECT_EQ(stats.n_kv_blocks_used.load(), 0U);
    EXPECT_EQ(stats.n_kv_audit_failures.load(), 0U);
  }

  std::unique_ptr<FakeModel> fake;
  plugin::Instance<luna_scheduler_if> scheduler = static_scheduler();
  telemetry::EngineStats stats;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<pipeline::EngineRunner> runner;
  PipelineRig rig;
};

TEST_F(PipelineOnEngine, ManyRequestsPassAllStagesAndAreCountedOnce) {
  struct Running {
    std::shared_ptr<WaitingSink> sink = std::make_shared<WaitingSink>();
    std::unique_ptr<pipeline::RunningRequest> request;
  };
  std::vector<Running> all(24);
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto request = PipelineRig::chat_request("talk " + std::to_string(i));
    request.n_generated_max = 12;
    request.n_choices = 1 + i % 3;
    request.stop.ignore_eos = true;
    auto started = rig.pipeline->start(std::move(request), all[i].sink);
    ASSERT_TRUE(started) << started.error().message();
    all[i].request = *std::move(started);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const RecordingSink& heard = all[i].sink->wait_for_end();
    ASSERT_FALSE(heard.end->error) << heard.end->error->message();
    EXPECT_EQ(heard.finishes.size(), 1 + i % 3);
    EXPECT_EQ(heard.end->usage.n_generated, 12 * (1 + i % 3));
  }
  EXPECT_EQ(rig.stats.intents()["code"] + rig.stats.intents()["talk"], all.size());
}

TEST_F(PipelineOnEngine, ClientsThatLeaveAtAnyTimeLeaveNothingBehind) {
  for (int i = 0; i < 60; ++i) {
    auto sink = std::make_shared<WaitingSink>();
    auto request = PipelineRig::chat_request("talk");
    request.n_generated_max = 100;
    request.stop.ignore_eos = true;
    auto started = rig.pipeline->start(std::move(request), sink);
    ASSERT_TRUE(started) << started.error().message();
    if (i % 3 == 1) sink->wait_for_text();
    if (i % 3 == 2) sink->wait_for_end();
    started->reset();
    sink->wait_for_end();
  }
}

}  // namespace
}  // namespace luna::test
