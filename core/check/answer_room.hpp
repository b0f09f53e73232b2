// Room for a record that a plugin fills: it may write what the record's struct_size says, no more.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace luna::check {

/// A record of ABI type T, as large as this host knows it, and poison behind it. A plugin of a
/// newer minor version knows more fields, which it has to leave out.
template <typename T>
class AnswerRoom {
  static_assert(sizeof(T) % alignof(std::uint64_t) == 0, "the poison begins where the record ends");

 public:
  AnswerRoom() {
    room_.record.struct_size = sizeof(T);
    room_.behind.fill(kPoison);
  }

  [[nodiscard]] T* record() { return &room_.record; }
  /// Whether nothing was written behind it, and nothing is told that is not there.
  [[nodiscard]] bool is_kept() const {
    return room_.record.struct_size <= sizeof(T) &&
           std::ranges::all_of(room_.behind, [](std::uint64_t word) { return word == kPoison; });
  }

 private:
  static constexpr std::uint64_t kPoison = 0xA5A5A5A5A5A5A5A5U;
  struct Room {
    T record{};
    std::array<std::uint64_t, 16> behind{};
  };
  Room room_;
};

}  // namespace luna::check
