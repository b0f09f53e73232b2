// A tiny model in a folder of its own, and what tests do to its shards.
#pragma once

#include "core/model/gguf_file.hpp"
#include "core/model/shard_writer.hpp"
#include "unit/model/gguf_writer.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace luna::test {

/// Values that tell tensors apart; the same for a tensor's name and seed everywhere.
inline TinyValues seeded_values(std::uint32_t seed) {
  return [seed](const std::string& name, std::size_t n) {
    std::seed_seq sequence(name.begin(), name.end());
    std::mt19937 random(sequence);
    std::vector<float> values(n);
    for (float& value : values)
      value = static_cast<float>(random() % 2001 + seed) / 1000.0F - 1.0F;
    return values;
  };
}

class ShardFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = std::filesystem::path(::testing::TempDir()) /
            (std::string(test->test_suite_name()) + "." + test->name());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    source_ = root_ / "tiny.gguf";
    folder_ = root_ / "shards";
    write_model({.n_layers = 4, .vocab_size = 100});
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write_model(const TinyShape& shape, std::uint32_t seed = 0) {
    write_file(source_, tiny_llama(shape, seeded_values(seed)).write());
  }
  static void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  static std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write_text(const std::filesystem::path& path, const std::string& text) {
    write_file(path, std::as_bytes(std::span(text.data(), text.size())));
  }
  /// Splits tiny.gguf, replacing what is there.
  model::ShardManifest split(std::uint32_t n_shards) const {
    model::SplitOptions options;
    options.source = source_;
    options.folder = folder_;
    options.n_shards = n_shards;
    options.force = true;
    auto manifest = model::split_model(options);
    EXPECT_TRUE(manifest) << manifest.error().message();
    return manifest ? std::move(*manifest) : model::ShardManifest{};
  }
  /// Turns one bit of a file round.
  static void flip_bit(const std::filesystem::path& path, std::size_t offset) {
    std::string bytes = read_file(path);
    bytes.at(offset) = static_cast<char>(bytes.at(offset) ^ 1);
    write_text(path, bytes);
  }
  /// Where a tensor's bytes begin in a file.
  static std::size_t offset_of(const std::filesystem::path& path, const std::string& tensor) {
    const auto file = model::GgufFile::open(path);
    EXPECT_TRUE(file) << file.error().message();
    return file->find_tensor(tensor)->offset;
  }
  /// The names in a folder, sorted.
  static std::vector<std::string> names_in(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  std::filesystem::path root_;
  std::filesystem::path source_;
  std::filesystem::path folder_;  // made by the first split
};

}  // namespace luna::test
