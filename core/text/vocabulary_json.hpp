// Reads the vocabulary of a Hugging Face model folder.
#pragma once

#include "core/text/vocabulary.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <string_view>

namespace luna::text {

/// Reads `tokenizer.json` of a folder, and where they are there `tokenizer_config.json` (bos, eos,
/// chat template) and `chat_template.jinja`. [start-up]
///
/// Errors  not_found; corrupt (not JSON, a field of the wrong type: named); unsupported (a part of
///         the pipeline that would give other ids: named)
Result<Vocabulary> read_vocabulary_folder(const std::filesystem::path& folder);

/// The text of a `tokenizer.json`. Errors as above.
Result<Vocabulary> parse_tokenizer_json(std::string_view json);

/// Adds what a `tokenizer_config.json` says to a vocabulary. Errors as above.
Result<void> apply_tokenizer_config(std::string_view json, Vocabulary& vocabulary);

}  // namespace luna::text
