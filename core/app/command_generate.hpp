// `luna generate` and `luna chat`: a model in the terminal.
#pragma once

#include "core/app/text_command.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace luna::app {

/// What both commands share.
struct PromptOptions {
  std::filesystem::path config;  ///< empty: the model alone
  std::string model;             ///< a path or a known name; empty: the default model
  std::vector<std::filesystem::path> plugin_folders;
  std::string system;  ///< system message; empty: none
  std::optional<std::uint32_t> n_tokens_max;
  float temperature = 0.0F;
  float top_p = 1.0F;
  std::uint32_t top_k = 0;
  float min_p = 0.0F;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
};

struct GenerateOptions {
  PromptOptions common;
  std::string prompt;           ///< "-" or empty: standard input
  bool raw = false;             ///< the prompt as it is, without the chat template
  bool json = false;            ///< one JSON object with text, finish reason and counts
  std::filesystem::path trace;  ///< where the steps' times go, a line of JSON each; empty: nowhere
  bool verify_reproducible = false;  ///< compute the answer in several ways and compare
};

/// Prints the answer to one prompt as it comes; or, when it is to be verified, a table of the ways
/// it was computed, and fails where one differs. Returns  the exit status
int run_generate(const GenerateOptions& options, const CommandStreams& streams);

/// Reads a line, streams the answer, and so on until the end of input. Ctrl-C stops an answer.
/// Returns  the exit status
int run_chat(const PromptOptions& options, const CommandStreams& streams);

}  // namespace luna::app
