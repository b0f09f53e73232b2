#include "support/role_fixture.hpp"

#include <gtest/gtest.h>

namespace luna::test {
namespace {

using Items = std::vector<OwnedItem>;

TEST(RoleGenerate, RunsTheModelOnTheClientsPromptAndForwardsWhatItSays) {
  RoleUnderTest role("role_generate", {});
  EXPECT_EQ(role.run({{1, ItemKind::request, "{}"}, {1, ItemKind::end, "stop"}}),
            (Items{{1, ItemKind::model_request, "{}"}}));
  EXPECT_EQ(role.run({{1, ItemKind::model_text, "ab"},
                      {2, ItemKind::request, "{}"},
                      {1, ItemKind::model_end, "length"}}),
            (Items{{1, ItemKind::text, "ab"},
                   {2, ItemKind::model_request, "{}"},
                   {1, ItemKind::end, "length"}}));
}

TEST(RoleGenerate, ModelRunThatFailsEndsTheRequestWithItsReason) {
  RoleUnderTest role("role_generate", {});
  EXPECT_EQ(role.run({{1, ItemKind::model_end, "failed: no block"}}),
            (Items{{1, ItemKind::error, "no block"}}));
}

TEST(RoleGenerate, EmptyAndHugeItemsPassUnchanged) {
  RoleUnderTest role("role_generate", {});
  EXPECT_TRUE(role.run({}).empty());
  const std::string huge(32U << 20U, 'x');
  EXPECT_EQ(role.run({{1, ItemKind::model_text, ""}, {1, ItemKind::model_text, huge}}),
            (Items{{1, ItemKind::text, ""}, {1, ItemKind::text, huge}}));
  role.drop(1);
  role.drop(99);
}

}  // namespace
}  // namespace luna::test
