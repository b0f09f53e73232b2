// What ships: every plugin carries a note and exports exactly one symbol; every configuration names
// plugins that are there and settings that they take.
#include "core/base/mapped_file.hpp"
#include "core/config/settings_reader.hpp"
#include "core/plugin/catalog.hpp"
#include "core/plugin/elf_file.hpp"
#include "core/plugin/elf_note.hpp"
#include "core/plugin/settings_check.hpp"

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

TEST(ShippedConfigurations, NamePluginsAndSettingsThatExist) {
  const auto catalog = Catalog::scan({{LUNA_PLUGIN_DIR}, nullptr});
  const auto folder = std::filesystem::path(LUNA_SOURCE_DIR) / "configs";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".toml") continue;
    const auto settings = config::read_settings(entry.path());
    ASSERT_TRUE(settings) << settings.error().message();
    const auto errors = check_settings(*settings, *catalog);
    EXPECT_TRUE(errors.empty()) << config::join_errors(errors).message();
  }
}

}  // namespace
}  // namespace luna::plugin
