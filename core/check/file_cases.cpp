// Group A: the file as data. No code of the plugin runs.
#include "core/base/mapped_file.hpp"
#include "core/check/cases.hpp"
#include "core/plugin/elf_file.hpp"
#include "core/plugin/elf_note.hpp"

#include <array>
#include <string>

namespace luna::check {
namespace {

// What the host itself refuses, before it loads anything.
void check_note(CaseRun& run) {
  const plugin::NoteReading reading = plugin::read_note(run.input().file);
  if (!reading.refusal) return;
  const std::string_view rule = reading.refusal->reason();
  run.fail(rule.empty() ? "B1" : rule, reading.refusal->message());
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

void check_linking(CaseRun& run) {
  const auto mapped = MappedFile::open(run.input().file);
  if (!mapped) return run.skip(mapped.error().message());
  const auto elf = plugin::ElfFile::parse(mapped->bytes());
  if (!elf) return run.skip(elf.error().message());
  const auto traits = elf->link_traits();
  if (!traits) return run.fail("B1", traits.error().message());
  if (!traits->unique_symbols.empty())
    run.fail("B3", "unique symbols: " + joined(traits->unique_symbols));
  if (traits->has_static_tls) run.fail("B4", "it takes static thread-local storage");
  if (traits->has_executable_stack) run.fail("B5", "it asks for an executable stack");
  if (traits->has_text_relocations) run.fail("B6", "its code is changed when it is loaded");
  for (const std::string& folder : traits->run_paths)
    if (!folder.starts_with("$ORIGIN") && !folder.starts_with("${ORIGIN}"))
      run.fail("B7", "libraries are looked for in '" + folder + "'");
}

constexpr auto kCases = std::to_array<Case>({
    {"A.note", "", "U3", check_note},
    {"A.linking", "", "U3", check_linking},
});

}  // namespace

std::span<const Case> file_cases() {
  return kCases;
}

}  // namespace luna::check
