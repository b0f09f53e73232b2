// Which known word a misspelt one probably meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace luna::config {

/// The known word with the least edit distance (insert, delete, replace, swap neighbours); of
/// several, the first. Empty only when `known` is. [any]
/// Cost  O(n_known * length^2), words are cut at 64 bytes
std::string_view nearest_key(std::string_view wrong, std::span<const std::string> known);

/// "; the nearest known one is 'port'", or "" when nothing is known.
std::string nearest_key_hint(std::string_view wrong, std::span<const std::string> known);

}  // namespace luna::config
