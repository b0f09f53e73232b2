// The numbered rules of the plugin contract, as docs/plugin-rules.md states them.
#pragma once

#include <span>
#include <string_view>

namespace luna::check {

/// One rule. Static texts. A test holds the numbers and titles against the page.
struct Rule {
  std::string_view number;  ///< "S1"
  std::string_view title;   ///< what holds of every plugin
  std::string_view advice;  ///< what to do about a breach
};

/// In the order of the page.
std::span<const Rule> rules();

/// The rule of a number; nullptr: there is none.
const Rule* find_rule(std::string_view number);

}  // namespace luna::check
