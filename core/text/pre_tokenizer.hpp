// Cuts a text into words, as the reference's regular expressions do, in linear time.
#pragma once

#include "core/text/split_rules.hpp"

#include <string_view>
#include <vector>

namespace luna::text {

/// Appends the words of `text` to `words`, in order and without a gap; they point into `text`.
///
/// A byte that is not part of a valid character counts as a character that is neither letter,
/// number nor space.
///
/// Thread  [any]
/// Cost    O(bytes): no pattern looks back, and each looks ahead by at most one run of white space
/// Source  the patterns of split_rules.hpp, with Oniguruma's reading of \s and (?i:)
void split_words(std::string_view text,
                 const SplitRules& rules,
                 std::vector<std::string_view>& words);

}  // namespace luna::text
