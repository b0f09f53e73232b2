// Engines that share devices take turns by weight.
#include "core/engine/device_turns.hpp"

#include "support/engine_fixture.hpp"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <thread>

namespace luna::test {
namespace {

using engine::DeviceTurns;

/// Two engines and the device that both submit to: it runs steps in the order in which they came.
class SharedDevice {
 public:
  /// step_ns  what a step of each takes
  SharedDevice(DeviceTurns& turns,
               std::array<std::uint64_t, 2> step_ns,
               std::uint32_t n_lanes = 1) {
    for (std::uint32_t m = 0; m < 2; ++m) {
      FakeModelOptions options;
      options.n_lanes = n_lanes;
      options.n_kv_blocks = 256;
      options.n_positions_max = 4096;
      options.busy_ns_fixed = step_ns[m];
      options.completion = Completion::deferred;
      models_[m] = std::make_unique<FakeModel>(options);
      engine::EngineParts parts{{&models_[m]->compiled},
                                scheduler_[m],
                                tokenizer_,
                                clock,
                                stats[m],
                                [](void*) {},
                                nullptr};
      parts.turns = &turns;
      parts.turns_member = m;
      auto made = Engine::create(parts, {});
      EXPECT_TRUE(made);
      engines_[m] = std::move(made).value();
    }
  }
  ~SharedDevice() {
    for (const auto& model : models_)
      while (model->complete()) {}
  }
  SharedDevice(const SharedDevice&) = delete;
  SharedDevice& operator=(const SharedDevice&) = delete;

  std::shared_ptr<TokenStream> submit(std::uint32_t m, std::uint32_t n_generated) {
    auto asked = EngineRig::request(some_prompt(10, m), n_generated);
    asked->id = ++last_id_;
    asked->stop.ignore_eos = true;
    const std::size_t n_bytes =
        TokenStream::text_bytes_for(n_generated, tokenizer_.token_bytes_max());
    auto stream = std::make_shared<TokenStream>(n_generated, n_bytes, 0);
    asked->streams.push_back(stream);
    EXPECT_TRUE(engines_[m]->submit(std::move(asked)));
    return stream;
  }
  /// All that engines can do, then one step of the device. False: nothing is left.
  bool run() {
    for (bool worked = true; worked;) {
      worked = false;
      for (std::uint32_t m = 0; m < 2; ++m) {
        const std::uint64_t before = models_[m]->devices[0].n_submits;
        worked |= engines_[m]->advance();
        for (std::uint64_t i = before; i < models_[m]->devices[0].n_submits; ++i)
          steps_.push_back(m);
      }
    }
    if (steps_.empty()) return false;
    FakeDevice& device = models_[steps_.front()]->devices[0];
    n_waiting_max = std::max(n_waiting_max, steps_.size());
    const std::uint64_t took = device.busy_ns(*device.pending());
    busy_ns[steps_.front()] += took;
    clock.advance(std::chrono::nanoseconds(took));
    device.complete();
    steps_.pop_front();
    return true;
  }

  VirtualClock clock;
  std::array<telemetry::EngineStats, 2> stats;
  std::array<std::uint64_t, 2> busy_ns{};
  std::size_t n_waiting_max = 0;

 private:
  text::Tokenizer tokenizer_ = tiny_tokenizer();
  std::array<plugin::Instance<luna_scheduler_if>, 2> scheduler_ = {static_scheduler(),
                                                                   static_scheduler()};
  std::array<std::unique_ptr<FakeModel>, 2> models_;
  std::array<std::unique_ptr<Engine>, 2> engines_;
  std::deque<std::uint32_t> steps_;
  std::uint64_t last_id_ = 0;
};

double first_share(const std::array<std::uint64_t, 2>& busy_ns) {
  return static_cast<double>(busy_ns[0]) / static_cast<double>(busy_ns[0] + busy_ns[1]);
}

TEST(DeviceTurns, TimeIsSharedByWeightHoweverLongStepsAre) {
  for (const std::uint32_t n_lanes : {1U, 2U})
    for (const double weight : {0.2, 0.5, 0.8})
      for (const std::array<std::uint64_t, 2> busy :
           {std::array<std::uint64_t, 2>{5'000, 5'000}, {20'000, 1'000}, {1'000, 20'000}}) {
        const std::array<double, 2> weights = {weight, 1.0 - weight};
        DeviceTurns turns(weights);
        SharedDevice device(turns, busy, n_lanes);
        for (std::uint32_t m = 0; m < 2; ++m)
          for (int i = 0; i < 2; ++i)
            device.submit(m, 2000);
        while (device.busy_ns[0] + device.busy_ns[1] < 700'000)
          ASSERT_TRUE(device.run());
        ASSERT_GT(device.stats[0].n_running.load() * device.stats[1].n_running.load(), 0U)
            << "both had work all the time";
        // Steps are as long as they are.
        EXPECT_NEAR(first_share(device.busy_ns), weight, n_lanes * 0.06)
            << weight << " of steps of " << busy[0] << ", " << busy[1];
      }
}

TEST(DeviceTurns, WhatNobodyElseWantsAnybodyMayHave) {
  const std::array<double, 2> weights = {0.02, 0.98};
  DeviceTurns turns(weights);
  SharedDevice device(turns, {10'000, 10'000});
  const auto stream = device.submit(0, 100);
  int n_steps = 0;
  while (device.run())
    ++n_steps;
  EXPECT_TRUE(stream->view().end);
  EXPECT_EQ(n_steps, 100) << "a step a token, none waited for";
}

TEST(DeviceTurns, APauseIsNotPaidFor) {
  const std::array<double, 2> weights = {0.5, 0.5};
  DeviceTurns turns(weights);
  SharedDevice device(turns, {10'000, 10'000});
  for (int i = 0; i < 4; ++i)
    device.submit(0, 240);
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(device.run());
  // The second comes: from now on it gets a half, and not all that it missed.
  for (int i = 0; i < 4; ++i)
    device.submit(1, 240);
  device.busy_ns = {};
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(device.run());
  EXPECT_NEAR(first_share(device.busy_ns), 0.5, 0.11);
}

TEST(DeviceTurns, AWeightThatChangesActsAtOnce) {
  const std::array<double, 2> weights = {0.9, 0.1};
  DeviceTurns turns(weights);
  SharedDevice device(turns, {1'000, 1'000});
  for (std::uint32_t m = 0; m < 2; ++m)
    for (int i = 0; i < 8; ++i)
      device.submit(m, 230);
  for (int i = 0; i < 60; ++i)
    ASSERT_TRUE(device.run());
  EXPECT_GT(first_share(device.busy_ns), 0.8);
  turns.set_weight(0, 0.1);
  turns.set_weight(1, 0.9);
  for (int i = 0; i < 20; ++i)  // what was used before counts as it was
    ASSERT_TRUE(device.run());
  device.busy_ns = {};
  for (int i = 0; i < 60; ++i)
    ASSERT_TRUE(device.run());
  EXPECT_LT(first_share(device.busy_ns), 0.2);
}

TEST(DeviceTurns, TheDeviceNeverWaitsWhereBothHaveWork) {
  const std::array<double, 2> weights = {0.3, 0.7};
  DeviceTurns turns(weights);
  SharedDevice device(turns, {10'000, 10'000});
  for (std::uint32_t m = 0; m < 2; ++m)
    for (int i = 0; i < 4; ++i)
      device.submit(m, 100);
  while (device.run()) {}
  for (std::uint32_t m = 0; m < 2; ++m)
    EXPECT_EQ(device.stats[m].n_running.load() + device.stats[m].n_waiting.load(), 0U);
  EXPECT_GE(device.n_waiting_max, 2U);
  EXPECT_LT(turns.time_with_work(0), device.clock.now() + std::chrono::nanoseconds(1));
  EXPECT_GT(turns.time_with_work(0).count(), 0);
}

TEST(DeviceTurns, TimeWithoutWorkIsNoLoad) {
  const std::array<double, 2> weights = {0.5, 0.5};
  DeviceTurns turns(weights);
  SharedDevice device(turns, {1'000'000, 1'000'000});
  for (int i = 0; i < 10; ++i) {
    device.submit(0, 5);
    while (device.run()) {
    }
    device.clock.advance(std::chrono::seconds(1));
  }
  EXPECT_GE(turns.time_with_work(0), std::chrono::milliseconds(50));
  EXPECT_LT(turns.time_with_work(0), std::chrono::milliseconds(60));
  EXPECT_EQ(turns.time_with_work(1).count(), 0);
}

TEST(DeviceTurns, NobodyIsForgottenWhereThreadsRaceEachOther) {
  const std::array<double, 3> weights = {0.2, 0.3, 0.5};
  DeviceTurns turns(weights);
  RealClock clock;
  std::array<WakeSignal, 3> wakes;
  for (std::uint32_t m = 0; m < 3; ++m)
    turns.enter(m, wakes[m]);
  const auto run = [&](std::uint32_t m) {
    for (int step = 0; step < 3'000;) {
      const bool may = turns.may_begin(m);
      turns.settle(m, may, !may, clock.now());
      if (!may) {
        clock.wait(wakes[m], std::nullopt);  // for ever, if it is forgotten
        continue;
      }
      turns.note_step(m, 1'000 + step % 7);
      ++step;
      turns.settle(m, step % 50 != 0, false, clock.now());
    }
    turns.leave(m);
  };
  std::array<std::thread, 3> threads;
  for (std::uint32_t m = 0; m < 3; ++m)
    threads[m] = std::thread(run, m);
  for (std::thread& thread : threads)
    thread.join();
}

}  // namespace
}  // namespace luna::test
