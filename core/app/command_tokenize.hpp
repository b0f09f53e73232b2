// `luna tokenize`: text to token ids and back.
#pragma once

#include "core/app/text_command.hpp"

#include <filesystem>

namespace luna::app {

struct TokenizeOptions {
  std::filesystem::path model;  // a model file, or a folder with tokenizer.json
  bool no_special = false;      // the text of control tokens stays text
  bool jsonl = false;           // a JSON value a line in, a JSON value a line out
  bool decode = false;          // JSON lists of ids in, text out
};

/// Reads standard input, all bytes of it, and prints the ids as a JSON list; nothing is put before
/// or after. With `decode` the bytes of the tokens; as lines they are JSON strings, with U+FFFD for
/// what is not UTF-8.
/// Returns  the exit status
int run_tokenize(const TokenizeOptions& options,
                 const VocabularyLoader& loader,
                 const CommandStreams& streams);

}  // namespace luna::app
