// A shared library read as data: sections and dynamic symbols of a 64-bit little-endian ELF file.
// Every offset and count of the file is checked before use; no code of the library runs.
#pragma once

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <elf.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::plugin {

/// How a library was linked: what it asks of the process that loads it.
struct LinkTraits {
  std::vector<std::string> unique_symbols;  ///< STB_GNU_UNIQUE: one object in the whole process
  std::vector<std::string> run_paths;       ///< where its libraries are looked for, a folder each
  bool has_static_tls = false;              ///< takes of a small room that is given at start-up
  bool has_text_relocations = false;
  bool has_executable_stack = false;
};

/// A view of a file's bytes, which must outlive it. A value.
class ElfFile {
 public:
  /// Checks header and section table. [start-up]
  /// Errors  corrupt (not ELF, truncated, a field out of bounds); unsupported (other architecture,
  ///         class or byte order, not a shared library)
  static Result<ElfFile> parse(std::span<const std::byte> bytes);

  /// Bytes of the first section of that name; nullopt: there is none.
  [[nodiscard]] std::optional<std::span<const std::byte>> section(std::string_view name) const;

  /// Names of the symbols that the library offers to others.
  [[nodiscard]] Result<std::vector<std::string>> exported_symbols() const;

  /// Names of the symbols that the library needs and that no library it was linked with offered.
  /// Names that begin with two underscores belong to a compiler's runtime and are left out.
  /// A guess from symbol versions: it serves to explain a refusal, never to decide one.
  [[nodiscard]] Result<std::vector<std::string>> unresolved_symbols() const;

  /// Errors  corrupt: a table that lies out of bounds
  [[nodiscard]] Result<LinkTraits> link_traits() const;

 private:
  struct Section {
    std::string_view name;
    Elf64_Shdr head;
    std::span<const std::byte> bytes;
  };
  struct Symbol {
    std::string_view name;
    Elf64_Sym entry;
    std::optional<std::uint16_t> version;  ///< index into the version tables
  };

  ElfFile(std::vector<Section> sections, bool has_executable_stack)
      : sections_(std::move(sections)), has_executable_stack_(has_executable_stack) {}
  [[nodiscard]] Result<std::vector<Symbol>> dynamic_symbols() const;

  std::vector<Section> sections_;
  bool has_executable_stack_ = false;
};

}  // namespace luna::plugin
