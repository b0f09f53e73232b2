// Every plugin that ships: its note can be read and it exports exactly one symbol.
#include "core/base/mapped_file.hpp"
#include "core/plugin/elf_file.hpp"
#include "core/plugin/elf_note.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace luna::plugin {
namespace {

TEST(ShippedPlugins, ExportOneSymbolAndCarryANote) {
  std::size_t n_plugins = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LUNA_PLUGIN_DIR)) {
    if (entry.path().extension() != ".so") continue;
    SCOPED_TRACE(entry.path());
    ++n_plugins;
    const auto mapped = MappedFile::open(entry.path());
    ASSERT_TRUE(mapped);
    const auto elf = ElfFile::parse(mapped->bytes());
    ASSERT_TRUE(elf);
    const auto exported = elf->exported_symbols();
    ASSERT_TRUE(exported);
    EXPECT_EQ(*exported, std::vector<std::string>{"luna_plugin_query"});
    const NoteReading reading = read_note(mapped->bytes());
    EXPECT_FALSE(reading.refusal) << reading.refusal->message();
  }
  EXPECT_GT(n_plugins, 0u);
}

}  // namespace
}  // namespace luna::plugin
