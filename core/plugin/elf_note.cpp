#include "core/plugin/elf_note.hpp"

#include "core/base/mapped_file.hpp"
#include "core/plugin/elf_file.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace luna::plugin {
namespace {

constexpr std::string_view kEntrySymbol = "luna_plugin_query";
constexpr const char* kNoteSection = ".note.luna";
// "Luna" and its zero, padded to a multiple of four.
constexpr std::size_t kOwnerBytes = 8;
// Of the first minor version: that of a later one is longer.
constexpr std::size_t kNoteBytesMin = LUNA_SIZE_THROUGH(luna_note, kinds);
constexpr std::size_t kNamesInMessageMax = 8;
// Numbers of docs/plugin-rules.md: the reasons of refusals.
constexpr std::string_view kRuleNote = "V1";
constexpr std::string_view kRuleVersion = "V2";
constexpr std::string_view kRuleExports = "B2";

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kNamesInMessageMax; ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kNamesInMessageMax)
    text += " and " + std::to_string(names.size() - kNamesInMessageMax) + " more";
  return text;
}

template <std::size_t N>
bool is_text(const char (&field)[N]) {
  return field[0] != '\0' && std::memchr(field, '\0', N) != nullptr;
}

/// Why a library that carries no note is not one of ours, as far as its symbols tell.
Error explain_missing_note(const ElfFile& elf) {
  std::string message = std::string("not a Luna plugin: no ") + kNoteSection + " section";
  if (const auto exported = elf.exported_symbols();
      exported && std::ranges::find(*exported, kEntrySymbol) == exported->end())
    message += "; the entry symbol " + std::string(kEntrySymbol) + " is missing";
  if (const auto unresolved = elf.unresolved_symbols(); unresolved && !unresolved->empty())
    message += "; no library it was linked with offers " + joined(*unresolved);
  return Error{Code::not_found, std::move(message), kRuleNote};
}

Result<luna_note> parse_record(std::span<const std::byte> section) {
  Elf64_Nhdr head{};
  constexpr std::size_t kSize = sizeof(head) + kOwnerBytes + kNoteBytesMin;
  if (section.size() < kSize)
    return Error{Code::corrupt,
                 "the note has " + std::to_string(section.size()) + " bytes, at least " +
                     std::to_string(kSize) + " are needed",
                 kRuleNote};
  std::memcpy(&head, section.data(), sizeof(head));
  if (head.n_namesz != sizeof(LUNA_NOTE_OWNER) || head.n_type != LUNA_NOTE_TYPE ||
      head.n_descsz < kNoteBytesMin ||
      head.n_descsz > section.size() - sizeof(head) - kOwnerBytes ||
      std::memcmp(section.data() + sizeof(head), LUNA_NOTE_OWNER, sizeof(LUNA_NOTE_OWNER)) != 0)
    return Error{Code::corrupt, "the note's owner, type or size is not Luna's", kRuleNote};
  luna_note note{};
  std::memcpy(&note,
              section.data() + sizeof(head) + kOwnerBytes,
              std::min<std::size_t>(head.n_descsz, sizeof(note)));
  if (note.struct_size < kNoteBytesMin)
    return Error{Code::corrupt,
                 "the note's struct_size is " + std::to_string(note.struct_size) + ", at least " +
                     std::to_string(kNoteBytesMin) + " is needed",
                 kRuleNote};
  if (!is_text(note.id) || !is_text(note.name) || !is_text(note.kinds))
    return Error{
        Code::corrupt, "the note's id, name or kinds is empty or not terminated", kRuleNote};
  return note;
}

Result<void> check_version(const luna_note& note) {
  const auto version = [](std::uint32_t major, std::uint32_t minor) {
    return std::to_string(major) + "." + std::to_string(minor);
  };
  const std::string ours = version(LUNA_ABI_MAJOR, LUNA_ABI_MINOR);
  if (note.abi_major != LUNA_ABI_MAJOR)
    return Error{Code::unsupported,
                 "built for plugin ABI " + version(note.abi_major, note.abi_minor_built) +
                     ", this program has " + ours,
                 kRuleVersion};
  if (note.abi_minor_needed > LUNA_ABI_MINOR)
    return Error{Code::unsupported,
                 "needs plugin ABI " + version(note.abi_major, note.abi_minor_needed) +
                     " or newer, this program has " + ours,
                 kRuleVersion};
  return {};
}

Result<void> check_exports(const ElfFile& elf) {
  LUNA_TRY(std::vector<std::string> exported, elf.exported_symbols());
  if (std::erase(exported, kEntrySymbol) == 0)
    return Error{Code::not_found,
                 "the entry symbol " + std::string(kEntrySymbol) + " is missing",
                 kRuleExports};
  if (!exported.empty())
    return Error{Code::unsupported,
                 "exports more than " + std::string(kEntrySymbol) + ": " + joined(exported),
                 kRuleExports};
  return {};
}

Result<luna_note> parse_note(const ElfFile& elf) {
  const auto section = elf.section(kNoteSection);
  if (!section) return explain_missing_note(elf);
  return parse_record(*section);
}

}  // namespace

NoteReading read_note(std::span<const std::byte> file) {
  const auto elf = ElfFile::parse(file);
  if (!elf) return {std::nullopt, elf.error()};
  const auto note = parse_note(*elf);
  if (!note) return {std::nullopt, note.error()};
  if (const auto version = check_version(*note); !version) return {*note, version.error()};
  if (const auto exports = check_exports(*elf); !exports) return {*note, exports.error()};
  return {*note, std::nullopt};
}

NoteReading read_note(const std::filesystem::path& file) {
  const auto mapped = MappedFile::open(file);
  if (mapped) return read_note(mapped->bytes());
  // The caller names the file; MappedFile has put its path before the reason.
  const std::string prefix = file.string() + ": ";
  std::string message = mapped.error().message();
  if (message.starts_with(prefix)) message.erase(0, prefix.size());
  return {std::nullopt, Error{mapped.error().code(), std::move(message)}};
}

std::vector<std::string_view> kinds_of(const luna_note& note) {
  std::vector<std::string_view> kinds;
  std::string_view rest = note.kinds;
  while (!rest.empty()) {
    const std::size_t end = rest.find(' ');
    if (end != 0) kinds.push_back(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return kinds;
}

}  // namespace luna::plugin
