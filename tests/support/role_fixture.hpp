// A role plugin driven by hand: batches of items in, items out.
#pragma once

#include "support/plugin_fixture.hpp"

#include <luna/role.hpp>

#include <string>
#include <utility>
#include <vector>

namespace luna::test {

/// An item that owns its text.
struct OwnedItem {
  std::uint64_t request = 0;
  ItemKind kind = ItemKind::request;
  std::string text;

  friend bool operator==(const OwnedItem&, const OwnedItem&) = default;
};

inline void PrintTo(const OwnedItem& item, std::ostream* os) {
  *os << item.request << " kind " << static_cast<std::uint32_t>(item.kind) << " '" << item.text
      << "'";
}

/// One instance of a role plugin.
class RoleUnderTest {
 public:
  RoleUnderTest(const std::string& file, const SettingValues& settings)
      : table_(load_table<luna_role_if>(file, LUNA_KIND_ROLE)) {
    auto made = make_instance(*table_, host_, settings);
    EXPECT_TRUE(made) << made.error().message();
    if (made) self_ = *made;
  }
  ~RoleUnderTest() {
    if (self_ != nullptr) table_->head.destroy(self_);
  }
  RoleUnderTest(const RoleUnderTest&) = delete;
  RoleUnderTest& operator=(const RoleUnderTest&) = delete;

  /// The error of an instance that must not start.
  static std::string refusal(const std::string& file, const SettingValues& settings) {
    const FakeHost host;
    const auto* table = load_table<luna_role_if>(file, LUNA_KIND_ROLE);
    auto made = make_instance(*table, host, settings);
    EXPECT_FALSE(made) << "started";
    return made ? "" : made.error().message();
  }

  std::vector<OwnedItem> run(const std::vector<OwnedItem>& items) {
    std::vector<luna_item> rows;
    for (const OwnedItem& item : items) {
      rows.push_back({item.request,
                      static_cast<std::uint32_t>(item.kind),
                      0,
                      to_abi(item.text),
                      nullptr,
                      0,
                      0});
    }
    std::vector<OwnedItem> out;
    const luna_item_sink sink{sizeof(luna_item_sink), 0, &out, collect};
    luna_err err = make_err();
    EXPECT_EQ(table_->run(self_, rows.data(), static_cast<std::uint32_t>(rows.size()), &sink, &err),
              LUNA_OK)
        << err.text;
    return out;
  }
  void drop(std::uint64_t request) { table_->drop(self_, &request, 1); }

  std::string choices() {
    const auto* extension =
        static_cast<const luna_role_choices_if*>(table_->head.ext(self_, LUNA_EXT_ROLE_CHOICES));
    return extension == nullptr ? "" : std::string(view(extension->choices(self_)));
  }

 private:
  static luna_status collect(void* context, const luna_item* item) {
    static_cast<std::vector<OwnedItem>*>(context)->push_back(
        {item->request, static_cast<ItemKind>(item->kind), std::string(view(item->text))});
    return LUNA_OK;
  }

  FakeHost host_;
  const luna_role_if* table_;
  void* self_ = nullptr;
};

}  // namespace luna::test
