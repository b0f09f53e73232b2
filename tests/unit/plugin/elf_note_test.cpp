#include "core/plugin/elf_note.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

namespace luna::plugin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> read_zoo(const std::string& fault) {
  std::ifstream stream(std::string(LUNA_ZOO_DIR) + "/" + fault + "/zoo_" + fault + ".so",
                       std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

TEST(ElfNote, TellsIdNameKindsAndVersions) {
  const NoteReading reading = read_note(read_zoo("none"));
  ASSERT_TRUE(reading.note);
  EXPECT_FALSE(reading.refusal);
  EXPECT_STREQ(reading.note->id, "org.luna.test.zoo");
  EXPECT_STREQ(reading.note->name, "zoo");
  EXPECT_EQ(reading.note->abi_major, LUNA_ABI_MAJOR);
  EXPECT_THAT(kinds_of(*reading.note), ElementsAre(LUNA_KIND_SCHEDULER));
}

TEST(ElfNote, KindsAreSeparatedByBlanks) {
  luna_note note{};
  std::strcpy(note.kinds, " a/0  b/1 ");
  EXPECT_THAT(kinds_of(note), ElementsAre("a/0", "b/1"));
}

TEST(ElfNote, EveryTruncationIsRefused) {
  const std::vector<std::byte> whole = read_zoo("none");
  ASSERT_GT(whole.size(), 1000u);
  for (std::size_t n = 0; n < whole.size(); n += n < 256 ? 1 : 97) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<long>(n));
    const NoteReading reading = read_note(cut);
    ASSERT_TRUE(reading.refusal) << n << " bytes";
    EXPECT_EQ(reading.refusal->code(), Code::corrupt) << n << " bytes";
  }
}

TEST(ElfNote, DamagedBytesNeverCrash) {
  const std::vector<std::byte> whole = read_zoo("none");
  const std::uint32_t seed = 20240611;
  SCOPED_TRACE("LUNA_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::byte> damaged = whole;
    for (int i = 0; i < 8; ++i) {
      // Half of the damage goes to the headers, where it matters most.
      const std::size_t room = i % 2 == 0 ? damaged.size() : sizeof(std::uint64_t) * 16;
      damaged[random() % room] = static_cast<std::byte>(random());
      const std::size_t table = damaged.size() - random() % std::min<std::size_t>(2048, room);
      damaged[table - 1] = static_cast<std::byte>(random());
    }
    const NoteReading reading = read_note(damaged);
    EXPECT_TRUE(reading.note || reading.refusal);
  }
}

TEST(ElfNote, RefusalsNameTheReason) {
  const auto reason = [](std::vector<std::byte> bytes, std::size_t at, unsigned char value) {
    bytes[at] = static_cast<std::byte>(value);
    const NoteReading reading = read_note(bytes);
    return reading.refusal ? reading.refusal->message() : "";
  };
  const std::vector<std::byte> whole = read_zoo("none");
  EXPECT_THAT(reason(whole, 0, 'x'), HasSubstr("no ELF header"));
  EXPECT_THAT(reason(whole, 4, 1), HasSubstr("64-bit"));
  EXPECT_THAT(reason(whole, 18, 243), HasSubstr("other architecture: ELF machine 243"));
  EXPECT_THAT(reason(whole, 16, 2), HasSubstr("not a shared library: ELF type 2"));
}

TEST(ElfNote, MissingFileIsSaidToBeMissing) {
  const NoteReading reading = read_note(std::filesystem::path("/nowhere/gone.so"));
  ASSERT_TRUE(reading.refusal);
  EXPECT_EQ(reading.refusal->message(), "No such file or directory");
}

TEST(ElfNote, UnresolvedSymbolOfALibraryWithoutNoteIsNamed) {
  const auto reason = [](const std::string& fault) {
    const NoteReading reading = read_note(read_zoo(fault));
    return reading.refusal ? reading.refusal->message() : "";
  };
  EXPECT_EQ(reason("no_note"), "not a Luna plugin: no .note.luna section");
  EXPECT_EQ(reason("no_note_and_undefined"),
            "not a Luna plugin: no .note.luna section; no library it was linked with offers "
            "luna_zoo_missing_symbol");
}

}  // namespace
}  // namespace luna::plugin
