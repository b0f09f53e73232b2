// The table of rules and its page say the same.
#include "core/check/rules.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

namespace luna::check {
namespace {

/// "| B1 | title | ... |" by number.
std::map<std::string, std::string> rows_of_page() {
  std::ifstream page(std::string(LUNA_SOURCE_DIR) + "/docs/plugin-rules.md");
  std::map<std::string, std::string> rows;
  for (std::string line; std::getline(page, line);) {
    if (line.size() < 8 || !line.starts_with("| ") || line[2] < 'A' || line[2] > 'Z') continue;
    const std::size_t number_end = line.find(" |", 2);
    const std::size_t title_end = line.find(" |", number_end + 3);
    if (number_end == std::string::npos || title_end == std::string::npos) continue;
    EXPECT_TRUE(rows.emplace(line.substr(2, number_end - 2),
                             line.substr(number_end + 3, title_end - number_end - 3))
                    .second)
        << line;
  }
  return rows;
}

TEST(Rules, ThePageHasEachNumberWithItsTitle) {
  const auto page = rows_of_page();
  EXPECT_EQ(page.size(), rules().size());
  for (const Rule& rule : rules()) {
    const auto found = page.find(std::string(rule.number));
    ASSERT_NE(found, page.end()) << rule.number;
    EXPECT_EQ(found->second, rule.title) << rule.number;
    EXPECT_FALSE(rule.advice.empty()) << rule.number;
  }
}

TEST(Rules, AreFoundByTheirNumber) {
  ASSERT_NE(find_rule("S4"), nullptr);
  EXPECT_EQ(find_rule("S4")->title, "Every request gets its turn.");
  EXPECT_EQ(find_rule("S99"), nullptr);
}

}  // namespace
}  // namespace luna::check
