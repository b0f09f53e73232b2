#include "core/http/key_ring.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace luna::http {
namespace {

std::filesystem::path write(const std::string& text) {
  const auto path = std::filesystem::path(testing::TempDir()) / "keys";
  std::ofstream(path) << text;
  return path;
}

TEST(KeyRing, TellsTenantsApartAndRefusesEverythingElse) {
  const std::string first = "luna_abcdefgh_0001", second = "luna_abcdefgh_0002";
  const auto ring = KeyRing::open(write("# team\n" + first + "\n\n  " + second + " \r\n"));
  ASSERT_TRUE(ring);
  EXPECT_EQ(ring->tenant_of("Bearer " + first, ""), 1U);
  EXPECT_EQ(ring->tenant_of("Bearer " + second, ""), 2U);
  EXPECT_EQ(ring->tenant_of("", second), 2U);
  for (const std::string& wrong : std::vector<std::string>{"",
                                                           "Bearer",
                                                           "Bearer ",
                                                           first,
                                                           "Basic " + first,
                                                           "Bearer " + first + "x",
                                                           "Bearer " + first.substr(1),
                                                           "Bearer # team"})
    EXPECT_FALSE(ring->tenant_of(wrong, "")) << wrong;
}

TEST(KeyRing, RefusesFilesWithoutKeysAndShortKeysWithTheirLine) {
  EXPECT_EQ(KeyRing::open("/nonexistent/keys").error().code(), Code::not_found);
  EXPECT_FALSE(KeyRing::open(write("# nothing\n")));
  const auto ring = KeyRing::open(write("luna_abcdefgh_0001\nshort\n"));
  ASSERT_FALSE(ring);
  EXPECT_NE(ring.error().message().find(":2:"), std::string::npos);
  EXPECT_EQ(ring.error().message().find("short\n"), std::string::npos);
}

}  // namespace
}  // namespace luna::http
