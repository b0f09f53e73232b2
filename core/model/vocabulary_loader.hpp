// Reads the vocabulary that a model has beside its weights: in its GGUF file, or in its folder.
#pragma once

#include "core/model/weight_file.hpp"
#include "core/text/vocabulary.hpp"

#include <luna/result.hpp>

#include <filesystem>

namespace luna::model {

/// The vocabulary of a model file. Copies all texts; the file is closed again. [start-up]
///
/// path     a GGUF file, a folder of shards, or a Hugging Face folder: tokenizer.json, and the ids
///          that end generation from generation_config.json, where it is there, and config.json
/// Returns  tokens, types, merges and special ids, each id within the tokens
/// Errors   not_found (no file, no vocabulary in it); corrupt (key and why); unsupported
Result<text::Vocabulary> load_vocabulary(const std::filesystem::path& path);

/// The same from a GGUF file that is open.
Result<text::Vocabulary> read_vocabulary(const WeightFile& file);

}  // namespace luna::model
