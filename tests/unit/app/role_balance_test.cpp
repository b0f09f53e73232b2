// What models of roles get of devices that they share, by the settings of the policy.
#include "core/app/role_balance.hpp"

#include "core/config/settings_reader.hpp"
#include "support/plugin_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::app {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

plugin::Instance<luna_scheduler_if> policy_of(const test::SettingValues& settings) {
  static const test::FakeHost host;
  const auto* table =
      test::load_table<luna_scheduler_if>("scheduler_flowsplit", LUNA_KIND_SCHEDULER);
  auto self = test::make_instance(*table, host, settings);
  EXPECT_TRUE(self) << (self ? "" : self.error().message());
  return {table, *self, "flowsplit"};
}

/// Two models, which two roles use, on the devices that are named.
config::Settings settings_of(const std::string& first_on, const std::string& second_on) {
  std::string text;
  for (const std::string name : {"a0", "a1", "a2"})
    text += "[[device]]\nname = \"" + name + "\"\nbackend = \"cpu\"\nmemory = \"100 MiB\"\n";
  text += "[[model]]\nname = \"main\"\npath = \"x\"\ndevices = [" + first_on + "]\n";
  text += "[[model]]\nname = \"small\"\npath = \"x\"\ndevices = [" + second_on + "]\n";
  text += "[[stage]]\nrole = \"intent\"\nmodel = \"small\"\n";
  text += "[[stage]]\nrole = \"generate\"\nmodel = \"main\"\n";
  text += "[[stage]]\nrole = \"postprocess\"\n[scheduler]\npolicy = \"flowsplit\"\n";
  auto reading = config::read_settings_text(text, "t.toml", "/conf");
  EXPECT_TRUE(reading.errors.empty()) << config::join_errors(reading.errors).message();
  return std::move(reading.settings);
}

using List = std::vector<std::string>;

std::string refusal(const config::Settings& settings, const test::SettingValues& wished) {
  const auto made = RoleBalance::create(settings, policy_of(wished));
  EXPECT_FALSE(made);
  return made ? "" : made.error().message();
}

/// A device of nothing but a budget.
class Budget {
 public:
  Budget() {
    static const test::FakeHost host;
    const auto* table = test::load_table<luna_backend_if>("backend_cpu", LUNA_KIND_BACKEND);
    auto self = test::make_instance(*table, host, {});
    EXPECT_TRUE(self);
    backend_ = {table, *self, "cpu"};
    model::DeviceOptions options;
    options.name = "a0";
    options.memory_bytes = 100 * kMiB;
    options.n_threads = 1;
    auto opened = model::Device::open(backend_, options);
    EXPECT_TRUE(opened);
    device = std::move(opened).value();
  }

 private:
  plugin::Instance<luna_backend_if> backend_;

 public:
  std::unique_ptr<model::Device> device;
};

TEST(RoleBalance, WithoutAWishThereIsNone) {
  const auto made = RoleBalance::create(settings_of("\"a0\"", "\"a0\""), policy_of({}));
  ASSERT_TRUE(made);
  EXPECT_EQ(*made, nullptr);
}

TEST(RoleBalance, MemoryIsLeftToTheModelsThatComeLater) {
  const auto made =
      RoleBalance::create(settings_of("\"a0\"", "\"a0\""),
                          policy_of({{"role_weights", List{"generate", "0.6", "intent", "0.2"}}}));
  ASSERT_TRUE(made) << made.error().message();
  Budget budget;
  const std::vector<model::Device*> devices = {budget.device.get()};
  (*made)->hold_back("main", devices);
  EXPECT_EQ(budget.device->memory_bytes_left(), 75 * kMiB);
  budget.device->take_memory(40 * kMiB);
  (*made)->note_loaded("main", devices);
  (*made)->hold_back("small", devices);
  EXPECT_EQ(budget.device->memory_bytes_left(), 60 * kMiB) << "what the first did not need too";
  budget.device->take_memory(60 * kMiB);
  budget.device->give_memory_back(100 * kMiB);
}

TEST(RoleBalance, StepsTakeTurnsByTheWeightsAndRolesTellThem) {
  const auto made =
      RoleBalance::create(settings_of("\"a0\", \"a1\"", "\"a1\", \"a0\""),
                          policy_of({{"role_weights", List{"generate", "0.6", "intent", "0.2"}}}));
  ASSERT_TRUE(made) << made.error().message();
  const auto main = (*made)->turn_of("main");
  const auto small = (*made)->turn_of("small");
  ASSERT_TRUE(main && small);
  EXPECT_EQ(main->turns, small->turns);
  EXPECT_NEAR(main->turns->weight(main->member), 0.75, 1e-4);
  EXPECT_NEAR(main->turns->weight(small->member), 0.25, 1e-4);
  EXPECT_FALSE((*made)->turn_of("other"));
  for (const telemetry::RoleSource& source : (*made)->sources())
    EXPECT_NEAR(source.weight(), source.role == "generate" ? 0.75 : 0.25, 1e-4);
  main->turns->set_weight(main->member, 0.5);
  EXPECT_NEAR((*made)->sources().front().weight(), 0.5, 1e-4);
}

TEST(RoleBalance, DynamicRolesBeginEqual) {
  const auto made =
      RoleBalance::create(settings_of("\"a0\"", "\"a0\""), policy_of({{"dynamic_roles", true}}));
  ASSERT_TRUE(made) << made.error().message();
  const auto main = (*made)->turn_of("main");
  EXPECT_NEAR(main->turns->weight(main->member), 0.5, 1e-4);
  (*made)->start();
}

TEST(RoleBalance, WhatWouldChangeNothingIsRefused) {
  const test::SettingValues dynamic = {{"dynamic_roles", true}};
  EXPECT_THAT(refusal(settings_of("\"a0\"", "\"a1\""), dynamic), HasSubstr("nothing to share"));
  EXPECT_THAT(refusal(settings_of("\"a0\", \"a1\"", "\"a1\", \"a2\""), dynamic),
              HasSubstr("must share all or none"));
  const config::Settings shared = settings_of("\"a0\"", "\"a0\"");
  EXPECT_THAT(refusal(shared, {{"role_weights", List{"generat", "0.5"}}}),
              HasSubstr("no [[stage]] has the role 'generat'"));
  EXPECT_THAT(refusal(shared, {{"role_weights", List{"generate", "0.5"}}}),
              HasSubstr("model small shares a0"));
}

TEST(RoleBalance, AWeightThatIsNoneIsRefusedByThePolicy) {
  static const test::FakeHost host;
  const auto* table =
      test::load_table<luna_scheduler_if>("scheduler_flowsplit", LUNA_KIND_SCHEDULER);
  for (const char* weight : {"0", "-1", "1.5", "much", "", "nan", "0.5x"}) {
    const auto made =
        test::make_instance(*table, host, {{"role_weights", List{"generate", weight}}});
    ASSERT_FALSE(made) << weight;
    EXPECT_THAT(made.error().message(), HasSubstr("role_weights.generate"));
  }
}

}  // namespace
}  // namespace luna::app
