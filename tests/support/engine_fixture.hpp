// An engine on a fake model, driven turn by turn in virtual time.
#pragma once

#include "core/engine/engine.hpp"
#include "plugins/scheduler_static/static_policy.hpp"
#include "support/fake_backend.hpp"
#include "support/tiny_vocabulary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace luna::test {

using engine::Engine;
using engine::EngineOptions;
using engine::SequenceRequest;
using pipeline::TokenId;
using pipeline::TokenStream;

inline constexpr TokenId kEndToken = 257;
inline constexpr TokenId kTheToken = 263;  // " the"

inline text::Tokenizer tiny_tokenizer() {
  return text::Tokenizer::create(tiny_vocabulary()).value();
}

/// The shipped policy, built into the test.
inline plugin::Instance<luna_scheduler_if> static_scheduler() {
  static constexpr luna_scheduler_if kTable =
      make_scheduler_table<scheduler_static::StaticPolicy>({});
  void* self = nullptr;
  luna_err err = make_err();
  EXPECT_EQ(kTable.head.create(nullptr, nullptr, 0, &self, &err), LUNA_OK);
  return {&kTable, self, "static"};
}

/// With settings of the test's.
inline plugin::Instance<luna_scheduler_if> static_scheduler(
    const scheduler_static::StaticOptions& options) {
  using scheduler_static::StaticPolicy;
  static constexpr luna_scheduler_if kTable = make_scheduler_table<StaticPolicy>({});
  auto policy = std::make_unique<StaticPolicy>(options);
  return {&kTable, new SchedulerInstance<StaticPolicy>(std::move(policy)), "static"};
}

/// A policy that is a function of the test.
using PlanFunction = std::function<luna_status(const luna_snapshot&, luna_plan&)>;
inline plugin::Instance<luna_scheduler_if> scheduler_of(PlanFunction plan) {
  static constexpr luna_scheduler_if kTable = {
      {sizeof(luna_scheduler_if),
       0,
       0,
       0,
       nullptr,
       nullptr,
       [](void* self) { delete static_cast<PlanFunction*>(self); },
       nullptr},
      [](void* self, const luna_snapshot* snapshot, luna_plan* plan_out, luna_err*) {
        return (*static_cast<PlanFunction*>(self))(*snapshot, *plan_out);
      }};
  return {&kTable, new PlanFunction(std::move(plan)), "test"};
}

/// One submitted request and what came of it.
struct Asked {
  std::uint64_t id = 0;
  std::vector<std::shared_ptr<TokenStream>> streams;

  [[nodiscard]] bool ended() const {
    for (const auto& stream : streams)
      if (!stream->view().end) return false;
    return true;
  }
  [[nodiscard]] std::vector<TokenId> tokens(std::size_t choice = 0) const {
    std::vector<TokenId> ids;
    for (const auto& record : streams[choice]->view().tokens)
      ids.push_back(record.token_id);
    return ids;
  }
  [[nodiscard]] std::string text(std::size_t choice = 0) const {
    return std::string(streams[choice]->view().text);
  }
  [[nodiscard]] pipeline::StreamEnd end(std::size_t choice = 0) const {
    const auto end = streams[choice]->view().end;
    EXPECT_TRUE(end.has_value());
    return end.value_or(pipeline::StreamEnd{});
  }
};

class EngineRig {
 public:
  explicit EngineRig(const FakeModelOptions& model_options = {},
                     std::optional<plugin::Instance<luna_scheduler_if>> with = std::nullopt,
                     const EngineOptions& options = {},
                     const std::vector<FakeModelOptions>& other_groups = {},
                     bool watches_groups = false,
                     std::vector<plugin::Instance<luna_scheduler_if>> with_fallbacks = {})
      : fake(model_options),
        tokenizer(tiny_tokenizer()),
        scheduler(with ? std::move(*with) : static_scheduler()),
        fallbacks(std::move(with_fallbacks)) {
    std::vector<const model::CompiledModel*> models = {&fake.compiled};
    std::vector<FakeModel*> fakes = {&fake};
    for (const FakeModelOptions& group : other_groups) {
      fakes.push_back(others.emplace_back(std::make_unique<FakeModel>(group)).get());
      models.push_back(&fakes.back()->compiled);
    }
    if (fakes.size() > 1) FakeModel::let_slice(fakes);
    engine::EngineParts parts{std::move(models),
                              scheduler,
                              tokenizer,
                              clock,
                              stats,
                              [](void* self) { ++static_cast<EngineRig*>(self)->n_notified; },
                              this,
                              watches_groups ? note_gone : nullptr,
                              this};
    parts.fallbacks = fallbacks;
    auto made = Engine::create(parts, options);
    EXPECT_TRUE(made.has_value());
    engine = std::move(made).value();
  }

  /// A greedy request of n_generated tokens at most.
  static std::unique_ptr<SequenceRequest> request(std::vector<TokenId> prompt,
                                                  std::uint32_t n_generated_max) {
    auto made = std::make_unique<SequenceRequest>();
    made->prompt = std::move(prompt);
    made->sampling.temperature = 0.0F;
    made->stop.n_generated_max = n_generated_max;
    return made;
  }

  /// Gives the request an id and streams, and hands it over.
  Asked submit(std::unique_ptr<SequenceRequest> asked, std::size_t n_choices = 1) {
    asked->id = ++last_id;
    asked->arrival = clock.now();
    add_streams(*asked, n_choices);
    Asked handle{.id = asked->id, .streams = asked->streams};
    const Result<void> result = engine->submit(std::move(asked));
    EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message());
    return handle;
  }
  void add_streams(SequenceRequest& asked, std::size_t n_choices) const {
    const std::uint32_t n = asked.stop.n_generated_max;
    const std::size_t n_bytes = TokenStream::text_bytes_for(n, tokenizer.token_bytes_max());
    for (std::size_t c = 0; c < n_choices; ++c)
      asked.streams.push_back(std::make_shared<TokenStream>(n, n_bytes, asked.logprobs.n_top));
  }

  /// Turns the loop until nothing is left to do. Returns the number of turns.
  std::size_t run(std::size_t n_turns_max = 100'000) {
    std::size_t n_turns = 0;
    while (n_turns < n_turns_max) {
      const bool worked = engine->advance();
      clock.advance(std::chrono::milliseconds(1));
      ++n_turns;
      if (!worked && !complete()) return n_turns;
    }
    ADD_FAILURE() << "the engine does not come to rest";
    return n_turns;
  }

  /// The oldest step of each device of each group.
  bool complete() {
    bool any = fake.complete();
    for (const auto& other : others)
      any |= other->complete();
    return any;
  }
  /// Adds a group while the engine runs.
  engine::GroupId add_group(const FakeModelOptions& options) {
    const auto added =
        engine->add_group(others.emplace_back(std::make_unique<FakeModel>(options))->compiled);
    EXPECT_TRUE(added) << (added ? "" : added.error().message());
    return added ? *added : engine::GroupId{};
  }

  void expect_clean() {
    EXPECT_EQ(engine->audit_kv(), "");
    EXPECT_EQ(stats.n_kv_audit_failures.load(), 0U);
    EXPECT_THAT(fake.faults(), ::testing::IsEmpty());
    for (const auto& other : others)
      EXPECT_THAT(other->faults(), ::testing::IsEmpty());
  }
  /// Nothing runs and every block is free.
  void expect_empty() {
    expect_clean();
    EXPECT_EQ(stats.n_kv_blocks_used.load(), 0U);
    EXPECT_EQ(stats.n_running.load() + stats.n_waiting.load(), 0U);
  }

  FakeModel fake;
  std::vector<std::unique_ptr<FakeModel>> others;  // further groups
  text::Tokenizer tokenizer;
  plugin::Instance<luna_scheduler_if> scheduler;
  std::vector<plugin::Instance<luna_scheduler_if>> fallbacks;
  VirtualClock clock;
  telemetry::EngineStats stats;
  std::uint64_t n_notified = 0;
  std::uint64_t last_id = 0;
  std::vector<engine::GroupEnd> gone;  // groups that have left
  std::unique_ptr<Engine> engine;      // last: goes first

 private:
  static void note_gone(void* self, const engine::GroupEnd& end) {
    static_cast<EngineRig*>(self)->gone.push_back(end);
  }
};

/// n tokens of text, different for each seed.
inline std::vector<TokenId> some_prompt(std::uint32_t n, std::uint32_t seed) {
  std::vector<TokenId> prompt(n);
  for (std::uint32_t i = 0; i < n; ++i)
    prompt[i] = 'a' + (i * 7 + seed * 13 + i * i * seed) % 26;
  return prompt;
}

}  // namespace luna::test
