// The model run of a later stage changes groups of devices while it runs: its request's text is the
// one of a single group.
#include "core/pipeline/engine_runner.hpp"
#include "support/engine_fixture.hpp"
#include "support/moving_policy.hpp"
#include "support/pipeline_fixture.hpp"
#include "support/waiting_sink.hpp"

#include <gtest/gtest.h>

namespace luna::test {
namespace {

constexpr std::uint32_t kLastStage = 1;

/// Has the model write something about each answer of the stage before, in its place.
plugin::Instance<luna_role_if> rewriting_role() {
  auto texts = std::make_shared<RequestStates<std::string>>();
  return function_role([texts](const Item& item, ItemSink& out) {
    switch (item.kind) {
      case ItemKind::text:
        texts->at(item.request) += item.text;
        break;
      case ItemKind::end: {
        boost::json::object message;
        message["role"] = "user";
        message["content"] = texts->at(item.request);
        boost::json::object wish;
        wish["messages"] = boost::json::array{message};
        wish["max_tokens"] = 60;
        out.emit(item.request, ItemKind::model_request, boost::json::serialize(wish));
        break;
      }
      case ItemKind::model_text:
        out.emit(item.request, ItemKind::text, item.text);
        break;
      case ItemKind::model_end:
        out.emit(item.request, ItemKind::end, "stop");
        break;
      default:
        break;
    }
  });
}

struct Outcome {
  std::vector<std::string> texts;
  std::uint64_t n_moves = 0;
};

/// What the two stages make of some requests, over so many groups of devices. Rows of the last
/// stage move whenever they can.
Outcome answers_over(std::size_t n_groups) {
  const FakeModelOptions group{.n_positions_max = 512, .completion = Completion::threaded};
  std::vector<std::unique_ptr<FakeModel>> groups;
  std::vector<const model::CompiledModel*> compiled;
  while (groups.size() < n_groups)
    compiled.push_back(&groups.emplace_back(std::make_unique<FakeModel>(group))->compiled);
  const auto scheduler = mover([](Row row) { return row->stage == kLastStage; });
  telemetry::EngineStats stats;
  PipelineRig rig;
  auto made = engine::Engine::create({std::move(compiled),
                                      scheduler,
                                      rig.tokenizer,
                                      rig.clock,
                                      stats,
                                      [](void* wake) { static_cast<WakeSignal*>(wake)->set(); },
                                      &rig.wake},
                                     {});
  EXPECT_TRUE(made);
  const auto engine = *std::move(made);
  pipeline::EngineRunner runner(*engine);
  rig.context_tokens = group.n_positions_max;
  rig.on(runner).generate().stage(rewriting_role(), true).make();
  engine->start();
  rig.pipeline->launch();
  Outcome outcome;
  for (int i = 0; i < 12; ++i) {
    auto sink = std::make_shared<WaitingSink>();
    auto request = PipelineRig::chat_request("text " + std::to_string(i));
    request.n_generated_max = 20;
    request.sampling.temperature = 0.0F;
    auto started = rig.pipeline->start(std::move(request), sink);
    EXPECT_TRUE(started);
    outcome.texts.push_back(sink->wait_for_end().text());
  }
  rig.pipeline->drain(std::chrono::nanoseconds(0));
  rig.pipeline.reset();
  engine->stop();
  EXPECT_EQ(stats.n_plans_rejected.load(), 0U);
  EXPECT_EQ(stats.n_kv_audit_failures.load(), 0U);
  outcome.n_moves = stats.n_moves.load() + stats.n_moves_recomputed.load();
  return outcome;
}

TEST(MovedStage, TheLastStageOfARunningRequestMovesAndItsTextStaysTheSame) {
  const Outcome alone = answers_over(1);
  const Outcome moved = answers_over(2);
  EXPECT_EQ(moved.texts, alone.texts);
  EXPECT_EQ(alone.n_moves, 0U);
  // How many there are depends on how fast a thread copies.
  EXPECT_GT(moved.n_moves, 0U);
  std::size_t n_bytes = 0;
  for (const std::string& text : alone.texts)
    n_bytes += text.size();
  EXPECT_GT(n_bytes, 200U);
}

}  // namespace
}  // namespace luna::test
