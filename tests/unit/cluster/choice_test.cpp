// Which transport joins devices of several processes, and whose arithmetic fits whose.
#include "core/cluster/data_transports.hpp"
#include "core/cluster/process_identity.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::cluster {
namespace {

using ::testing::HasSubstr;

DataEndpoint endpoint(const std::string& name, const std::string& host, std::uint64_t process) {
  return {name,
          host,
          process,
          {{"inproc", LUNA_REACH_PROCESS}, {"shm", LUNA_REACH_HOST}, {"tcp", LUNA_REACH_NETWORK}}};
}

TEST(ClusterChoice, TheNearestTransportThatReachesIsTaken) {
  EXPECT_EQ(*choose_transport("auto", {endpoint("w0", "a", 1)}), "inproc");
  EXPECT_EQ(*choose_transport("auto", {endpoint("w0", "a", 1), endpoint("w1", "a", 2)}), "shm");
  EXPECT_EQ(*choose_transport("auto", {endpoint("w0", "a", 1), endpoint("w1", "b", 1)}), "tcp");
  EXPECT_EQ(*choose_transport("tcp", {endpoint("w0", "a", 1), endpoint("w1", "a", 2)}), "tcp");
}

TEST(ClusterChoice, WhatDoesNotReachOrIsNotThereIsSaid) {
  const auto near = choose_transport("shm", {endpoint("w0", "a", 1), endpoint("w1", "b", 2)});
  ASSERT_FALSE(near);
  EXPECT_THAT(near.error().message(), HasSubstr("on several hosts"));
  EXPECT_THAT(near.error().message(), HasSubstr("shm: it reaches within one host"));
  DataEndpoint bare = endpoint("worker w1", "b", 2);
  bare.transports.resize(2);
  const auto none = choose_transport("auto", {endpoint("w0", "a", 1), bare});
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr("tcp: worker w1 does not have it"));
}

DeviceOffer device(const std::string& name, std::vector<Fingerprint> fingerprints) {
  DeviceOffer offer;
  offer.name = name;
  offer.backend = "cpu";
  offer.fingerprints = std::move(fingerprints);
  return offer;
}

TEST(ClusterChoice, DevicesFitWhereTheyComputeTheSame) {
  const DeviceOffer known = device(
      "w0/0", {{LUNA_NUMERICS_I12, LUNA_DTYPE_BF16, 1}, {LUNA_NUMERICS_I8, LUNA_DTYPE_BF16, 2}});
  EXPECT_TRUE(check_same_arithmetic(known, known));
  // It has one way less: as far as both compute, they agree.
  EXPECT_TRUE(
      check_same_arithmetic(known, device("w1/0", {{LUNA_NUMERICS_I12, LUNA_DTYPE_BF16, 1}})));
  const auto other =
      check_same_arithmetic(known, device("w1/0", {{LUNA_NUMERICS_I12, LUNA_DTYPE_BF16, 3}}));
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message(),
              HasSubstr("different numbers in i12 with a KV cache of bf16"));
  EXPECT_FALSE(
      check_same_arithmetic(known, device("w1/0", {{LUNA_NUMERICS_F32, LUNA_DTYPE_BF16, 1}})));
}

TEST(ClusterChoice, PluginsThatBothHaveMustBeTheSame) {
  const std::vector<PluginIdentity> ours = {{"a", "1", 0}, {"b", "1", 0}};
  EXPECT_TRUE(check_same_plugins(ours, {{"a", "1", 0}, {"z", "7", 0}}));
  const auto other = check_same_plugins(ours, {{"b", "2", 0}});
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message(), HasSubstr("b is 2"));
}

TEST(ClusterChoice, OneHostIsOneHost) {
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_GT(host_identity().size(), 30U);
}

}  // namespace
}  // namespace luna::cluster
