// `luna split` and `luna verify`: shards of a model on disk.
#pragma once

#include "core/app/text_command.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace luna::app {

struct SplitCommand {
  std::filesystem::path model;            ///< a GGUF file, or a folder of shards
  std::optional<std::uint32_t> n_shards;  ///< balanced by bytes
  std::string layers;                     ///< "0..9,10..29": a range a shard, instead of a number
  std::filesystem::path out;              ///< empty: MODEL-shards-N in the current folder
  bool force = false;                     ///< replace what is there
  bool json = false;
  std::function<bool()> is_stopped;  ///< asked often; may be empty
};

/// Writes the shards and prints their table. What was begun is removed when it fails or is stopped.
/// Returns  the exit status
int run_split(const SplitCommand& command, const CommandStreams& streams);

struct VerifyCommand {
  std::filesystem::path folder;
  std::optional<std::uint32_t> shard;  ///< none: all of them, and that they are one model
  bool json = false;
  std::function<bool()> is_stopped;
};

/// Reads every byte and prints what is wrong, a line each, or that nothing is.
/// Returns  the exit status: 0 if nothing is
int run_verify(const VerifyCommand& command, const CommandStreams& streams);

}  // namespace luna::app
