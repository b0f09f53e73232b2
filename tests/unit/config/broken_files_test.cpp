// Every file of golden/config/broken holds one mistake; the message that explains it must name the
// place, the key and what is right.
#include "core/config/settings_reader.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace luna::config {
namespace {

const std::filesystem::path kFolder =
    std::filesystem::path(LUNA_SOURCE_DIR) / "tests" / "golden" / "config" / "broken";

struct Expectation {
  std::string file;
  std::string place;  ///< "3:8", or "3:" where the column is the library's choice
  std::string key;
  std::string right_one;
};

std::vector<Expectation> read_expectations() {
  std::vector<Expectation> expectations;
  std::ifstream stream(kFolder / "expectations.tsv");
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with('#')) continue;
    Expectation e;
    std::istringstream fields(line);
    std::getline(fields, e.file, '\t');
    std::getline(fields, e.place, '\t');
    std::getline(fields, e.key, '\t');
    std::getline(fields, e.right_one, '\t');
    expectations.push_back(e);
  }
  return expectations;
}

class BrokenFile : public testing::TestWithParam<Expectation> {};

TEST_P(BrokenFile, IsExplainedWithPlaceKeyAndTheRightOne) {
  const Expectation& e = GetParam();
  const SettingsReading reading = read_settings_file(kFolder / e.file);
  std::string place = "(" + (kFolder / e.file).string() + ":" + e.place;
  if (!place.ends_with(':')) place += ')';
  std::string all;
  for (const Error& error : reading.errors) {
    const std::string& message = error.message();
    EXPECT_EQ(error.code(), Code::invalid_argument) << message;
    if (message.find(place) != std::string::npos && message.find(e.key) != std::string::npos &&
        message.find(e.right_one) != std::string::npos)
      return;
    all += message + "\n";
  }
  ADD_FAILURE() << "no message has " << place << ", " << e.key << " and " << e.right_one << ":\n"
                << all;
}

INSTANTIATE_TEST_SUITE_P(Golden,
                         BrokenFile,
                         testing::ValuesIn(read_expectations()),
                         [](const testing::TestParamInfo<Expectation>& instance) {
                           return instance.param.file.substr(0, instance.param.file.find('.'));
                         });

TEST(BrokenFiles, AreAtLeastForty) {
  EXPECT_GE(read_expectations().size(), 40u);
}

}  // namespace
}  // namespace luna::config
