// What the commands about text share: where a vocabulary comes from, and the streams.
#pragma once

#include "core/text/vocabulary.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string>

namespace luna::app {

/// Reads the vocabulary of a model file (GGUF); its errors name the file.
using VocabularyLoader = std::function<Result<text::Vocabulary>(const std::filesystem::path&)>;

/// Standard input, output and error, or a test's own. They outlive the command.
struct CommandStreams {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
};

/// Exit statuses of a command.
constexpr int kExitFine = 0;
constexpr int kExitFailed = 1;

/// The vocabulary of a folder with `tokenizer.json`, or of a model, a file or a folder of shards,
/// by `loader`.
/// Errors  those of the reader
Result<text::Vocabulary> load_vocabulary(const std::filesystem::path& path,
                                         const VocabularyLoader& loader);

/// All bytes up to the end of the stream.
std::string read_all(std::istream& in);

/// Prints an error the way commands do, and returns the status for a failure.
int fail(const CommandStreams& streams, const Error& error);

}  // namespace luna::app
