#include "core/plugin/elf_file.hpp"

#include <cstring>

namespace luna::plugin {
namespace {

// A library has a few dozen sections and some ten thousand dynamic symbols; a file that claims
// more is refused before anything is allocated for it.
constexpr std::size_t kSectionsMax = 4096;
constexpr std::size_t kSymbolsMax = 1u << 20;

#if defined(__x86_64__)
constexpr std::uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t kMachine = EM_AARCH64;
#else
#error "the ELF machine number of this architecture is not known"
#endif

// docs/plugin-rules.md
constexpr std::string_view kRule = "B1";

Error corrupt(std::string what) {
  return Error{Code::corrupt, std::move(what), kRule};
}

/// A T at `offset`, if the file has that many bytes.
template <typename T>
std::optional<T> read_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::optional<std::span<const std::byte>> range(std::span<const std::byte> bytes,
                                                std::uint64_t offset,
                                                std::uint64_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) return std::nullopt;
  return bytes.subspan(offset, size);
}

/// The zero-terminated text at `offset` of a string table.
std::optional<std::string_view> text_at(std::span<const std::byte> table, std::uint64_t offset) {
  if (offset >= table.size()) return std::nullopt;
  const auto* start = reinterpret_cast<const char*>(table.data() + offset);
  const std::size_t room = table.size() - offset;
  const std::size_t length = strnlen(start, room);
  if (length == room) return std::nullopt;
  return std::string_view(start, length);
}

Result<Elf64_Ehdr> read_header(std::span<const std::byte> bytes) {
  if (bytes.size() < SELFMAG || std::memcmp(bytes.data(), ELFMAG, SELFMAG) != 0)
    return corrupt("not a shared library: no ELF header");
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  if (!header)
    return corrupt("truncated: " + std::to_string(bytes.size()) + " bytes end inside the header");
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB)
    return Error{
        Code::unsupported, "other architecture: not a 64-bit little-endian ELF file", kRule};
  if (header->e_machine != kMachine)
    return Error{Code::unsupported,
                 "other architecture: ELF machine " + std::to_string(header->e_machine) +
                     ", this program is built for " + std::to_string(kMachine),
                 kRule};
  if (header->e_type != ET_DYN)
    return Error{Code::unsupported,
                 "not a shared library: ELF type " + std::to_string(header->e_type),
                 kRule};
  return *header;
}

/// What the linker asked for; a file that says nothing gets an executable stack.
bool has_executable_stack(std::span<const std::byte> bytes, const Elf64_Ehdr& header) {
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return true;
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = read_at<Elf64_Phdr>(bytes, header.e_phoff + i * sizeof(Elf64_Phdr));
    if (segment && segment->p_type == PT_GNU_STACK) return (segment->p_flags & PF_X) != 0;
  }
  return true;
}

void split_folders(std::string_view list, std::vector<std::string>& folders) {
  while (!list.empty()) {
    const std::size_t end = list.find(':');
    folders.emplace_back(list.substr(0, end));
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
  }
}

/// The entries of a dynamic section that say what the library asks of its process.
Result<void> read_dynamic(std::span<const std::byte> entries,
                          std::span<const std::byte> texts,
                          LinkTraits& traits) {
  for (std::size_t at = 0; at + sizeof(Elf64_Dyn) <= entries.size(); at += sizeof(Elf64_Dyn)) {
    const Elf64_Dyn entry = *read_at<Elf64_Dyn>(entries, at);
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_TEXTREL) traits.has_text_relocations = true;
    if (entry.d_tag == DT_FLAGS) {
      traits.has_static_tls |= (entry.d_un.d_val & DF_STATIC_TLS) != 0;
      traits.has_text_relocations |= (entry.d_un.d_val & DF_TEXTREL) != 0;
    }
    if (entry.d_tag != DT_RUNPATH && entry.d_tag != DT_RPATH) continue;
    const auto text = text_at(texts, entry.d_un.d_val);
    if (!text) return corrupt("a text of the dynamic section is out of bounds");
    split_folders(*text, traits.run_paths);
  }
  return {};
}

}  // namespace

Result<ElfFile> ElfFile::parse(std::span<const std::byte> bytes) {
  LUNA_TRY(const Elf64_Ehdr header, read_header(bytes));
  if (header.e_shnum == 0 || header.e_shnum > kSectionsMax ||
      header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum)
    return corrupt("no usable section table");
  const std::uint64_t table_bytes = std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
  const auto table = range(bytes, header.e_shoff, table_bytes);
  if (!table)
    return corrupt("truncated: the section table at byte " + std::to_string(header.e_shoff) +
                   " lies beyond the end at byte " + std::to_string(bytes.size()));

  std::vector<Section> sections;
  sections.reserve(header.e_shnum);
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    Section section{{}, *read_at<Elf64_Shdr>(*table, i * sizeof(Elf64_Shdr)), {}};
    if (section.head.sh_type != SHT_NULL && section.head.sh_type != SHT_NOBITS) {
      const auto content = range(bytes, section.head.sh_offset, section.head.sh_size);
      if (!content)
        return corrupt("truncated: section " + std::to_string(i) + " lies beyond the end");
      section.bytes = *content;
    }
    sections.push_back(section);
  }
  const std::span<const std::byte> names = sections[header.e_shstrndx].bytes;
  for (Section& section : sections) {
    const auto name = text_at(names, section.head.sh_name);
    if (!name) return corrupt("a section's name lies outside the table of names");
    section.name = *name;
  }
  return ElfFile(std::move(sections), has_executable_stack(bytes, header));
}

std::optional<std::span<const std::byte>> ElfFile::section(std::string_view name) const {
  for (const Section& section : sections_)
    if (section.name == name) return section.bytes;
  return std::nullopt;
}

Result<std::vector<ElfFile::Symbol>> ElfFile::dynamic_symbols() const {
  const Section* table = nullptr;
  const Section* versions = nullptr;
  for (const Section& section : sections_) {
    if (section.head.sh_type == SHT_DYNSYM) table = &section;
    if (section.head.sh_type == SHT_GNU_versym) versions = &section;
  }
  if (table == nullptr) return corrupt("no dynamic symbol table");
  const std::size_t n_symbols = table->bytes.size() / sizeof(Elf64_Sym);
  if (n_symbols > kSymbolsMax || table->head.sh_link >= sections_.size())
    return corrupt("the dynamic symbol table is out of bounds");

  std::vector<Symbol> symbols;
  for (std::size_t i = 0; i < n_symbols; ++i) {
    Symbol symbol{{}, *read_at<Elf64_Sym>(table->bytes, i * sizeof(Elf64_Sym)), std::nullopt};
    const auto name = text_at(sections_[table->head.sh_link].bytes, symbol.entry.st_name);
    if (!name)
      return corrupt("the name of dynamic symbol " + std::to_string(i) + " is out of bounds");
    symbol.name = *name;
    if (versions != nullptr)
      symbol.version = read_at<std::uint16_t>(versions->bytes, i * sizeof(std::uint16_t));
    if (!name->empty()) symbols.push_back(symbol);
  }
  return symbols;
}

Result<std::vector<std::string>> ElfFile::exported_symbols() const {
  LUNA_TRY(const std::vector<Symbol> symbols, dynamic_symbols());
  std::vector<std::string> names;
  for (const Symbol& symbol : symbols) {
    const bool is_global = ELF64_ST_BIND(symbol.entry.st_info) != STB_LOCAL;
    const auto visibility = ELF64_ST_VISIBILITY(symbol.entry.st_other);
    if (symbol.entry.st_shndx != SHN_UNDEF && is_global && visibility != STV_HIDDEN &&
        visibility != STV_INTERNAL)
      names.emplace_back(symbol.name);
  }
  return names;
}

Result<std::vector<std::string>> ElfFile::unresolved_symbols() const {
  LUNA_TRY(const std::vector<Symbol> symbols, dynamic_symbols());
  std::vector<std::string> names;
  for (const Symbol& symbol : symbols) {
    const bool has_version = symbol.version && (*symbol.version & 0x7FFF) > VER_NDX_GLOBAL;
    const bool is_compilers = symbol.name.starts_with("__");
    if (symbol.entry.st_shndx == SHN_UNDEF && !has_version && !is_compilers &&
        ELF64_ST_BIND(symbol.entry.st_info) == STB_GLOBAL)
      names.emplace_back(symbol.name);
  }
  return names;
}

Result<LinkTraits> ElfFile::link_traits() const {
  LinkTraits traits;
  traits.has_executable_stack = has_executable_stack_;
  LUNA_TRY(const std::vector<Symbol> symbols, dynamic_symbols());
  for (const Symbol& symbol : symbols)
    if (ELF64_ST_BIND(symbol.entry.st_info) == STB_GNU_UNIQUE && symbol.entry.st_shndx != SHN_UNDEF)
      traits.unique_symbols.emplace_back(symbol.name);
  for (const Section& section : sections_) {
    if (section.head.sh_type != SHT_DYNAMIC) continue;
    if (section.head.sh_link >= sections_.size())
      return corrupt("the dynamic section names no table of texts");
    LUNA_TRY(read_dynamic(section.bytes, sections_[section.head.sh_link].bytes, traits));
  }
  return traits;
}

}  // namespace luna::plugin
