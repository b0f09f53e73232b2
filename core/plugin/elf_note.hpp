// What a plugin says of itself before any of its code runs: the ELF note of luna/plugin.h.
#pragma once

#include <luna/plugin.h>
#include <luna/result.hpp>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace luna::plugin {

/// A note, and what speaks against loading the library it came from.
struct NoteReading {
  std::optional<luna_note> note;  ///< its texts are zero-terminated and not empty
  std::optional<Error> refusal;   ///< none: the library may be loaded
};

/// Reads the note from a shared library's bytes and checks that the library can be loaded here:
/// version, exactly one exported symbol. Runs no code of the library. [start-up]
///
/// Refusals  corrupt (not ELF, truncated, a broken note); not_found (no file, no note, the missing
///           entry symbol by name); unsupported (other architecture, other ABI, needs a newer host,
///           further exported symbols). They do not name the file; their reason is the number of
///           the rule in docs/plugin-rules.md
/// Source    luna/plugin.h, luna_note
NoteReading read_note(std::span<const std::byte> file);
NoteReading read_note(const std::filesystem::path& file);

/// Kinds of a note, one element each. They point into the note.
std::vector<std::string_view> kinds_of(const luna_note& note);

}  // namespace luna::plugin
