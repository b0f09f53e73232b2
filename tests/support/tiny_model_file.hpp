// A tiny model on disk.
#pragma once

#include "unit/model/gguf_writer.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

namespace luna::test {

/// Values of a trained model's size. They depend on the tensor's name alone, so that every file has
/// the same.
inline std::vector<float> values_by_name(const std::string& name, std::size_t n) {
  std::uint32_t seed = 1;
  for (const char c : name)
    seed = seed * 31 + static_cast<unsigned char>(c);
  std::mt19937 random(seed);
  const bool is_norm = name.find("norm") != std::string::npos;
  std::vector<float> values(n);
  for (float& value : values) {
    const float unit = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
    value = is_norm ? 1.0F + 0.1F * unit : 0.3F * unit;
  }
  return values;
}

inline void write_file(const std::filesystem::path& path, const GgufParts& parts) {
  const auto bytes = parts.write();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

/// A file of this process; gone at the end.
class TinyModelFile {
 public:
  TinyModelFile(const std::string& name, const TinyShape& shape)
      : path_(std::filesystem::path(::testing::TempDir()) /
              (name + "_" + std::to_string(::getpid()) + ".gguf")) {
    write_file(path_, tiny_llama(shape, values_by_name));
  }
  ~TinyModelFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TinyModelFile(const TinyModelFile&) = delete;
  TinyModelFile& operator=(const TinyModelFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace luna::test
