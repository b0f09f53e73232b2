// Whether two models mean the same by a token.
#pragma once

#include "core/text/vocabulary.hpp"

#include <optional>
#include <string>

namespace luna::text {

/// The first difference of two vocabularies in what their ids stand for or in how text becomes
/// ids: "token 7 is \"a\" in the one and \"b\" in the other"; nothing where they are equal. Control
/// tokens' uses (bos, eos) and chat templates may differ. [start-up]
[[nodiscard]] std::optional<std::string> first_difference(const Vocabulary& a, const Vocabulary& b);

}  // namespace luna::text
