// Files that claim to be plugins: a note or a reason, never a crash.
#include "core/plugin/elf_file.hpp"
#include "core/plugin/elf_note.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto reading = luna::plugin::read_note(file);
  if (!reading.note && !reading.refusal) std::abort();
  if (const auto elf = luna::plugin::ElfFile::parse(file)) {
    (void)elf->exported_symbols();
    (void)elf->unresolved_symbols();
  }
  return 0;
}
