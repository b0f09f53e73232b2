// Bad plugins, each started in a child process: start-up stops with status 1, the reason and the
// candidates, and never with a signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace luna::plugin {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Outcome {
  int wait_status;
  std::string output;  ///< both streams
};

Outcome start(const fs::path& folder, const std::string& limit_ms) {
  const std::string command =
      std::string(LUNA_ZOO_DRIVER) + " '" + folder.string() + "' " + limit_ms + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  Outcome outcome{};
  std::array<char, 4096> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), n);
  outcome.wait_status = ::pclose(pipe);
  return outcome;
}

struct Animal {
  std::string fault;
  std::vector<std::string> reasons;
};

class Zoo : public testing::TestWithParam<Animal> {};

TEST_P(Zoo, StopsStartUpWithReasonAndCandidates) {
  const Animal& animal = GetParam();
  // Only a plugin that hangs meets the limit, so only there is it short.
  const bool hangs = animal.fault.starts_with("hangs");
  const Outcome outcome = start(fs::path(LUNA_ZOO_DIR) / animal.fault, hangs ? "100" : "600000");
  ASSERT_TRUE(WIFEXITED(outcome.wait_status)) << outcome.output;
  EXPECT_EQ(WEXITSTATUS(outcome.wait_status), 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("zoo_" + animal.fault + ".so"));
  EXPECT_THAT(outcome.output, HasSubstr("searched: " + std::string(LUNA_ZOO_DIR)));
  for (const std::string& reason : animal.reasons)
    EXPECT_THAT(outcome.output, HasSubstr(reason));
}

INSTANTIATE_TEST_SUITE_P(
    Plugins,
    Zoo,
    testing::Values(
        Animal{"other_major", {"built for plugin ABI 99.", "this program has"}},
        Animal{"newer_minor", {"needs plugin ABI 1.99 or newer"}},
        Animal{"broken_note", {"the note's owner, type or size is not Luna's"}},
        Animal{"no_note", {"no .note.luna section"}},
        Animal{"no_entry", {"the entry symbol luna_plugin_query is missing"}},
        Animal{"extra_export", {"exports more than luna_plugin_query", "luna_zoo_extra_export"}},
        Animal{"undefined_symbol", {"cannot be loaded", "luna_zoo_missing_symbol"}},
        Animal{"note_differs", {"its id is 'org.luna.test.other'", "'org.luna.test.zoo'"}},
        Animal{"refuses_host", {"refuses this program's plugin ABI"}},
        Animal{"small_table", {"its table of kind luna.scheduler/1 has"}},
        Animal{"no_table", {"offers no table of kind luna.scheduler/1"}},
        Animal{"no_create", {"lacks a function"}},
        Animal{"no_plan", {"lacks a function"}},
        Animal{"throws_in_constructor", {"thrown by a constructor", "phase 'load'"}},
        Animal{"throws_in_query", {"threw: thrown by query"}},
        Animal{"throws_in_init", {"init threw: an exception that is not a std::exception"}},
        Animal{"throws_in_create", {"create threw: thrown by create"}},
        Animal{"hangs_in_constructor", {"no answer within 100 ms", "phase 'load'"}},
        Animal{"hangs_in_init", {"no answer within 100 ms", "phase 'init'"}},
        Animal{"hangs_in_create", {"no answer within 100 ms", "phase 'create'"}},
        Animal{"crashes_in_constructor", {"SIGSEGV", "phase 'load'"}},
        Animal{"crashes_in_create", {"SIGSEGV", "phase 'create'"}},
        Animal{"aborts_in_create", {"SIGABRT", "phase 'create'"}},
        Animal{"exits_in_constructor", {"exit() called", "phase 'load'"}},
        Animal{"fails_in_init", {"init: no licence file"}},
        Animal{"fails_in_create", {"create: no such device here"}}),
    [](const testing::TestParamInfo<Animal>& instance) { return instance.param.fault; });

/// A folder that lives as long as the test.
class ZooFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() / ("luna-zoo-" + std::to_string(::getpid()) + "-" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path good_ = fs::path(LUNA_ZOO_DIR) / "none" / "zoo_none.so";
  fs::path folder_;
};

TEST_F(ZooFolder, PluginWithoutAFaultStarts) {
  fs::copy(good_, folder_ / "good.so");
  const Outcome outcome = start(folder_, "600000");
  EXPECT_EQ(outcome.wait_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("created"));
}

TEST_F(ZooFolder, RemovedPluginIsNotFoundAndTheFoldersAreNamed) {
  const Outcome outcome = start(folder_, "600000");
  ASSERT_TRUE(WIFEXITED(outcome.wait_status));
  EXPECT_EQ(WEXITSTATUS(outcome.wait_status), 1);
  EXPECT_THAT(outcome.output, HasSubstr("plugin 'zoo' of kind luna.scheduler/1 was not found"));
  EXPECT_THAT(outcome.output, HasSubstr("searched: " + folder_.string()));
}

TEST_F(ZooFolder, MissingFolderIsSaidToBeMissing) {
  const Outcome outcome = start(folder_ / "gone", "600000");
  EXPECT_EQ(WEXITSTATUS(outcome.wait_status), 1);
  EXPECT_THAT(outcome.output, HasSubstr("gone (no such folder)"));
}

TEST_F(ZooFolder, TruncatedPluginIsNamedWithTheReason) {
  fs::copy(good_, folder_ / "cut.so");
  fs::resize_file(folder_ / "cut.so", fs::file_size(good_) / 2);
  const Outcome outcome = start(folder_, "600000");
  ASSERT_TRUE(WIFEXITED(outcome.wait_status));
  EXPECT_EQ(WEXITSTATUS(outcome.wait_status), 1);
  EXPECT_THAT(outcome.output, HasSubstr("cut.so: truncated"));
}

TEST_F(ZooFolder, SameIdTwiceNamesBothFiles) {
  fs::copy(good_, folder_ / "first.so");
  fs::copy(good_, folder_ / "second.so");
  const Outcome outcome = start(folder_, "600000");
  ASSERT_TRUE(WIFEXITED(outcome.wait_status));
  EXPECT_EQ(WEXITSTATUS(outcome.wait_status), 1);
  EXPECT_THAT(outcome.output, HasSubstr("is there twice"));
  EXPECT_THAT(outcome.output, HasSubstr((folder_ / "first.so").string()));
  EXPECT_THAT(outcome.output, HasSubstr((folder_ / "second.so").string()));
}

TEST_F(ZooFolder, LinkToTheSameFileIsNotASecondPlugin) {
  fs::copy(good_, folder_ / "first.so");
  fs::create_symlink(folder_ / "first.so", folder_ / "link.so");
  const Outcome outcome = start(folder_, "600000");
  EXPECT_EQ(outcome.wait_status, 0) << outcome.output;
}

TEST_F(ZooFolder, BadNeighbourDoesNotKeepAGoodPluginFromStarting) {
  fs::copy(good_, folder_ / "good.so");
  std::ofstream(folder_ / "text.so") << "hello, I am no library\n";
  fs::create_symlink(folder_ / "nowhere", folder_ / "dangling.so");
  fs::create_directories(folder_ / "folder.so");
  const Outcome outcome = start(folder_, "600000");
  EXPECT_EQ(outcome.wait_status, 0) << outcome.output;
}

}  // namespace
}  // namespace luna::plugin
