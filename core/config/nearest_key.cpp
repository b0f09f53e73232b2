#include "core/config/nearest_key.hpp"

#include <algorithm>
#include <array>

namespace luna::config {
namespace {

constexpr std::size_t kLengthMax = 64;  // longer than any key; bounds the work on hostile input

/// Optimal string alignment distance, three rows of the table at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::array<std::array<std::size_t, kLengthMax + 1>, 3> rows{};
  for (std::size_t j = 0; j <= b.size(); ++j)
    rows[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto& row = rows[i % 3];
    const auto& above = rows[(i + 2) % 3];
    const auto& two_above = rows[(i + 1) % 3];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
  }
  return rows[a.size() % 3][b.size()];
}

}  // namespace

std::string_view nearest_key(std::string_view wrong, std::span<const std::string> known) {
  std::string_view best;
  std::size_t best_distance = 2 * kLengthMax;
  for (const std::string& word : known) {
    const std::size_t distance =
        edit_distance(wrong.substr(0, kLengthMax), std::string_view(word).substr(0, kLengthMax));
    if (distance < best_distance) {
      best_distance = distance;
      best = word;
    }
  }
  return best;
}

std::string nearest_key_hint(std::string_view wrong, std::span<const std::string> known) {
  const std::string_view nearest = nearest_key(wrong, known);
  if (nearest.empty()) return "";
  return "; the nearest known one is '" + std::string(nearest) + "'";
}

}  // namespace luna::config
