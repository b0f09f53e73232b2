// The secret that the processes of a cluster share: how it is read, wherever it is asked for.
#pragma once

#include <luna/result.hpp>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna {

inline constexpr std::size_t kTokenBytesMin = 16;
inline constexpr std::size_t kTokenBytesMax = 4096;

/// The content of a file, without white space at its ends. [start-up]
/// Errors   not_found; invalid_argument: shorter than kTokenBytesMin or longer than kTokenBytesMax
inline Result<std::vector<std::byte>> read_token_file(const std::filesystem::path& path) {
  constexpr std::string_view kBlank = " \t\r\n";
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Code::not_found, "token_file: cannot read " + path.string()};
  std::string text(kTokenBytesMax + 3, '\0');  // a longer file is seen to be longer
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  text.erase(0, text.find_first_not_of(kBlank));  // all of it where nothing else is there
  text.erase(text.find_last_not_of(kBlank) + 1);
  if (text.size() < kTokenBytesMin || text.size() > kTokenBytesMax) {
    return Error{Code::invalid_argument,
                 "token_file: the token in " + path.string() + " has " +
                     std::to_string(text.size()) + " bytes: must be between " +
                     std::to_string(kTokenBytesMin) + " and " + std::to_string(kTokenBytesMax)};
  }
  const auto token = std::as_bytes(std::span(text));
  return std::vector(token.begin(), token.end());
}

}  // namespace luna
