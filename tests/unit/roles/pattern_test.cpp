#include "plugins/role_pattern/pattern.hpp"

#include <gtest/gtest.h>

#include <string>

namespace luna::pattern {
namespace {

Result<bool> search(const std::string& pattern, const std::string& text) {
  auto compiled = Pattern::compile(pattern, Pattern::Extent::anywhere);
  if (!compiled) return compiled.error();
  return compiled->matches(text);
}

TEST(Pattern, FindsAndMisses) {
  EXPECT_TRUE(search("b+c", "aabbbc").value());
  EXPECT_FALSE(search("b+d", "aabbbc").value());
}

// Steps are counted, not seconds: a search that would be quadratic or worse is ended, on any
// machine.
TEST(Pattern, EndsSearchesThatGrowFasterThanTheText) {
  const std::string letters(100'000, 'a');
  for (const char* pattern : {"\\w+\\d", "[a-z]+\\d", "(a+)+\\d", "\\w+\\w+\\d", "(?:a|aa)+\\d"}) {
    const auto found = search(pattern, letters);
    ASSERT_FALSE(found) << pattern;
    EXPECT_EQ(found.error().code(), Code::exhausted) << pattern;
  }
}

TEST(Pattern, SearchesALongTextThatNeedsFewStepsAByte) {
  const std::string letters(1'000'000, 'a');
  EXPECT_FALSE(search("b\\d", letters).value());
  EXPECT_FALSE(search("[b-z]\\d", letters).value());
  EXPECT_TRUE(search("a1$", letters + "1").value());
}

}  // namespace
}  // namespace luna::pattern
