// An instance of a plugin's kind: the C table, the handle, and who destroys it.
#pragma once

#include <luna/plugin.hpp>

#include <string>
#include <utility>

namespace luna::plugin {

/// Owns one instance behind a kind's table (luna_backend_if, luna_scheduler_if ...). The library
/// stays loaded, so the table outlives every instance. A resource: moved, never copied.
template <typename Table>
class Instance {
 public:
  Instance() = default;
  /// Takes over `self`, made by table->head.create. `name` is the plugin's short name.
  Instance(const Table* table, void* self, std::string name)
      : table_(table), self_(self), name_(std::move(name)) {}
  Instance(Instance&& other) noexcept
      : table_(std::exchange(other.table_, nullptr)),
        self_(std::exchange(other.self_, nullptr)),
        name_(std::move(other.name_)) {}
  Instance& operator=(Instance&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(self_, other.self_);
    std::swap(name_, other.name_);
    return *this;
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance() {
    if (table_ != nullptr) table_->head.destroy(self_);
  }

  [[nodiscard]] const Table* operator->() const { return table_; }
  [[nodiscard]] const Table& table() const { return *table_; }
  [[nodiscard]] void* self() const { return self_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  explicit operator bool() const { return table_ != nullptr; }

 private:
  const Table* table_ = nullptr;
  void* self_ = nullptr;
  std::string name_;
};

}  // namespace luna::plugin
