// The engine on its own thread, with devices that answer from theirs and clients that come and go.
#include "support/engine_fixture.hpp"
#include "support/test_seed.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

namespace luna::test {
namespace {

struct ThreadedRig {
  explicit ThreadedRig(std::uint32_t n_shards)
      : fake({.n_shards = n_shards,
              .n_lanes = n_shards,
              .n_kv_blocks = 40,
              .completion = Completion::threaded}),
        tokenizer(tiny_tokenizer()),
        scheduler(static_scheduler()) {
    engine = Engine::create({{&fake.compiled},
                             scheduler,
                             tokenizer,
                             clock,
                             stats,
                             [](void* self) { ++static_cast<ThreadedRig*>(self)->n_notified; },
                             this},
                            {.n_waiting_max = 64})
                 .value();
    engine->start();
  }

  FakeModel fake;
  text::Tokenizer tokenizer;
  plugin::Instance<luna_scheduler_if> scheduler;
  RealClock clock;
  telemetry::EngineStats stats;
  std::atomic<std::uint64_t> n_notified{0};
  std::unique_ptr<Engine> engine;
};

void add_stream(SequenceRequest& request, const text::Tokenizer& tokenizer) {
  const std::uint32_t n = request.stop.n_generated_max;
  request.streams.push_back(std::make_shared<TokenStream>(
      n, TokenStream::text_bytes_for(n, tokenizer.token_bytes_max()), 0));
}

TEST(EngineThread, ServesManyClientsAndEndsClean) {
  ThreadedRig rig(3);
  const std::uint32_t seed = test_seed();
  std::vector<std::thread> clients;
  for (std::uint32_t t = 0; t < 4; ++t) {
    clients.emplace_back([&rig, seed, t] {
      std::mt19937 random(seed + t);
      for (std::uint32_t i = 0; i < 12; ++i) {
        auto request = EngineRig::request(some_prompt(1 + random() % 60, random() % 99), 20);
        request->id = t * 1000 + i + 1;
        request->arrival = rig.clock.now();
        add_stream(*request, rig.tokenizer);
        const auto stream = request->streams[0];
        const std::uint64_t id = request->id;
        ASSERT_TRUE(rig.engine->submit(std::move(request)));
        if (random() % 3 == 0) rig.engine->cancel(id);
        while (!stream->view().end)
          std::this_thread::yield();
        rig.engine->reclaim();
      }
    });
  }
  for (std::thread& client : clients)
    client.join();
  rig.engine->stop();
  EXPECT_EQ(rig.engine->audit_kv(), "");
  EXPECT_EQ(rig.stats.n_kv_blocks_used.load(), 0U);
  EXPECT_TRUE(rig.fake.faults().empty());
  EXPECT_GT(rig.n_notified.load(), 0U);
}

TEST(EngineThread, StopInTheMiddleEndsEveryStream) {
  ThreadedRig rig(2);
  std::vector<std::shared_ptr<TokenStream>> streams;
  std::atomic<bool> is_stopping{false};
  std::thread client([&] {
    for (std::uint64_t id = 1; !is_stopping; ++id) {
      auto request = EngineRig::request(some_prompt(30, 1), 50);
      request->id = id;
      add_stream(*request, rig.tokenizer);
      const auto stream = request->streams[0];
      const auto result = rig.engine->submit(std::move(request));
      if (result) streams.push_back(stream);
      if (!result && result.error().code() == Code::unavailable) return;
    }
  });
  while (rig.stats.n_steps.load() < 20)
    std::this_thread::yield();
  rig.engine->stop();
  is_stopping = true;
  client.join();
  for (const auto& stream : streams)
    EXPECT_TRUE(stream->view().end);
  EXPECT_EQ(rig.stats.n_kv_blocks_used.load(), 0U);
}

}  // namespace
}  // namespace luna::test
