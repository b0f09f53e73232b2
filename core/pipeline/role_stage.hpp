// One stage: a role and the items that wait for it.
#pragma once

#include "core/plugin/instance.hpp"

#include <luna/abi/role.h>
#include <luna/result.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace luna::pipeline {

/// An item that owns its text.
struct StageItem {
  std::uint64_t request = 0;  ///< identity of the choice
  std::uint32_t kind = 0;     ///< LUNA_ITEM_*
  std::uint32_t flags = 0;
  std::string text;
};

/// [pipeline] after creation. The role outlives it.
class RoleStage {
 public:
  explicit RoleStage(const plugin::Instance<luna_role_if>& role) : role_(role) {}

  [[nodiscard]] const std::string& name() const { return role_.name(); }
  /// The texts that the role will have a model choose among. [start-up]
  [[nodiscard]] std::vector<std::string> choices() const;

  void push(StageItem item) { waiting_.push_back(std::move(item)); }
  [[nodiscard]] bool has_waiting() const { return !waiting_.empty(); }

  /// What a call of the role took and gave.
  struct Batch {
    std::vector<StageItem> in;
    std::vector<StageItem> out;
    Result<void> verdict;
  };
  /// One call with everything that waits.
  Batch run();
  /// These ended: their items are thrown away, and the role forgets them.
  void drop(std::span<const std::uint64_t> requests);

 private:
  const plugin::Instance<luna_role_if>& role_;
  std::vector<StageItem> waiting_;
};

}  // namespace luna::pipeline
