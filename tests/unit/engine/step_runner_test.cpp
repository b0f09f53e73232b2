// Steps of models that share devices.
#include "core/engine/step_runner.hpp"

#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <thread>
#include <vector>

namespace luna::engine {
namespace {

/// Notes whose steps come, and ends them at once.
struct NotingDevice {
  std::mutex mutex;
  std::vector<std::uint32_t> models;

  static luna_status submit(void* self, const luna_step* step, luna_err* /*err*/) {
    auto& device = *static_cast<NotingDevice*>(self);
    {
      const std::lock_guard lock(device.mutex);
      device.models.push_back(step->token_ids[0]);
    }
    std::this_thread::yield();  // the other model's thread may come between two devices
    luna_step_result result{};
    result.struct_size = sizeof(result);
    result.message = "";
    step->done(step->done_context, &result);
    return LUNA_OK;
  }
};

TEST(StepRunner, TwoModelsReachTheirDevicesInOneOrder) {
  constexpr std::uint32_t kSteps = 4000;
  std::array<NotingDevice, 3> devices;
  luna_backend_if table{};
  table.submit = &NotingDevice::submit;
  const auto run = [&](std::uint32_t name, bool reversed) {
    model::CompiledModel model;
    model.outputs.resize(1);
    for (std::size_t d = 0; d < devices.size(); ++d) {
      model::Shard shard;
      shard.backend = &table;
      shard.executable = &devices[reversed ? devices.size() - 1 - d : d];
      shard.binds.resize(1);
      model.shards.push_back(shard);
    }
    WakeSignal wake;
    StepRunner runner(model, wake);
    luna_step step{};
    step.struct_size = sizeof(step);
    step.token_ids = &name;
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      runner.submit(step);
      ASSERT_TRUE(runner.is_done());
      ASSERT_TRUE(runner.collect().ok);
    }
  };
  std::thread other([&] { run(1, true); });
  run(2, false);
  other.join();
  ASSERT_EQ(devices[0].models.size(), 2U * kSteps);
  EXPECT_EQ(devices[1].models, devices[0].models);
  EXPECT_EQ(devices[2].models, devices[0].models);
}

}  // namespace
}  // namespace luna::engine
