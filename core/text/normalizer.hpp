// Unicode normalisation of input text.
#pragma once

#include <luna/result.hpp>

#include <string>
#include <string_view>

namespace luna::text {

/// True when canonical composition cannot change the text (a quick check: false may be wrong).
bool is_surely_nfc(std::string_view text);

/// Canonical composition (NFC). Bytes that are not part of a character stay where they are.
/// Errors  exhausted (memory)
Result<std::string> to_nfc(std::string_view text);

}  // namespace luna::text
