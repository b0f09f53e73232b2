// `luna quantize`: a smaller model of a model.
#pragma once

#include "core/app/text_command.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace luna::app {

struct QuantizeCommand {
  std::vector<std::filesystem::path> plugin_folders;
  std::filesystem::path model;  ///< a GGUF file, a folder of shards or of Hugging Face
  std::string type;             ///< q4_0, q4_1, q8_0, q4_k; awq, gptq, int8
  std::uint32_t group = 128;    ///< awq, gptq, int8: columns that share a scale; 0: the whole row
  std::filesystem::path calibration;  ///< a text; empty: round to nearest
  std::filesystem::path out;
  bool force = false;
  bool json = false;
  std::function<bool()> is_stopped;  ///< asked often; may be empty
};

/// Writes the model and prints what became of it. What was begun is removed when it fails or is
/// stopped.
/// Returns  the exit status
int run_quantize(const QuantizeCommand& command, const CommandStreams& streams);

}  // namespace luna::app
