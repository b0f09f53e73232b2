// The probe on every shipped backend: the same bits however a device is opened, others elsewhere.
#include "core/model/arithmetic_probe.hpp"

#include "support/plugin_fixture.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace luna::model {
namespace {

class ArithmeticProbe : public ::testing::Test {
 protected:
  std::unique_ptr<Device> open(const char* file, std::uint32_t n_threads) {
    const auto* table = test::load_table<luna_backend_if>(file, LUNA_KIND_BACKEND);
    const auto self = test::make_instance(*table, host_, {});
    EXPECT_TRUE(self);
    backends_.push_back(plugin::Instance<luna_backend_if>(table, *self, file));
    auto device = Device::open(backends_.back(),
                               {.name = file, .memory_bytes = 16 << 20, .n_threads = n_threads});
    EXPECT_TRUE(device) << device.error().message();
    return std::move(*device);
  }

  test::FakeHost host_;
  std::vector<plugin::Instance<luna_backend_if>> backends_;
};

TEST_F(ArithmeticProbe, IsEqualForEqualArithmeticWhateverTheThreads) {
  const auto one = open("backend_cpu", 1);
  const auto two = open("backend_cpu", 2);
  for (const std::uint32_t numerics : {LUNA_NUMERICS_I12, LUNA_NUMERICS_I8}) {
    for (const std::uint32_t kv_dtype : {LUNA_DTYPE_BF16, LUNA_DTYPE_I8}) {
      const auto first = probe_arithmetic(*one, numerics, kv_dtype);
      const auto second = probe_arithmetic(*two, numerics, kv_dtype);
      const auto again = probe_arithmetic(*one, numerics, kv_dtype);
      ASSERT_TRUE(first && second && again) << first.error().message();
      EXPECT_EQ(*first, *second);
      EXPECT_EQ(*first, *again);
    }
  }
}

TEST_F(ArithmeticProbe, TellsOtherArithmeticApart) {
  const auto cpu = open("backend_cpu", 1);
  const auto reference = open("backend_reference", 1);
  std::map<std::uint64_t, std::string> names;
  const auto add = [&](Device& device, std::uint32_t numerics, std::uint32_t kv_dtype) {
    const auto hash = probe_arithmetic(device, numerics, kv_dtype);
    ASSERT_TRUE(hash) << hash.error().message();
    const std::string name =
        device.name() + " " + numerics_name(numerics) + " " + dtype_name(kv_dtype);
    const auto [place, is_new] = names.emplace(*hash, name);
    EXPECT_TRUE(is_new) << name << " computes as " << place->second;
  };
  for (const std::uint32_t kv_dtype : {LUNA_DTYPE_BF16, LUNA_DTYPE_I8})
    for (const std::uint32_t numerics : {LUNA_NUMERICS_I12, LUNA_NUMERICS_I8})
      add(*cpu, numerics, kv_dtype);
  add(*reference, LUNA_NUMERICS_F32, LUNA_DTYPE_BF16);
}

}  // namespace
}  // namespace luna::model
