#include "core/model/vocabulary_loader.hpp"

#include "core/model/hf_folder.hpp"
#include "core/model/shard_manifest.hpp"
#include "core/text/vocabulary_json.hpp"

#include <luna/abi/quant.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace luna::model {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
constexpr std::string_view kScores = "tokenizer.ggml.scores";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";
constexpr std::string_view kTemplate = "tokenizer.chat_template";

/// Pre-tokenizers whose files leave `add_bos_token` out although their models expect a bos, as do
/// all vocabularies over characters. Source  llama-vocab.cpp of ggml-org/llama.cpp
constexpr std::string_view kAddBosByDefault[] = {"llama3", "llama-v3", "llama-bpe"};

Result<std::vector<std::string>> read_strings(const WeightFile& file, std::string_view key) {
  LUNA_TRY(const auto array, find_array(file, key));
  if (!array) return std::vector<std::string>{};
  LUNA_TRY(const auto views, strings_of(*array, key));
  return std::vector<std::string>(views.begin(), views.end());
}

Result<std::vector<text::TokenType>> read_types(const WeightFile& file, std::size_t n_tokens) {
  LUNA_TRY(const auto array, find_array(file, kTypes));
  if (!array) return std::vector<text::TokenType>(n_tokens, text::TokenType::normal);
  if (array->element != ValueType::i32 && array->element != ValueType::u32) {
    return Error{Code::corrupt,
                 std::string(kTypes) + ": elements of type " +
                     std::string(value_type_name(array->element)) + ", expected i32"};
  }
  if (array->n_elements != n_tokens) {
    return Error{Code::corrupt,
                 std::string(kTypes) + ": " + std::to_string(array->n_elements) + " types for " +
                     std::to_string(n_tokens) + " tokens"};
  }
  LUNA_TRY(const auto numbers, integers_of(*array, kTypes));
  std::vector<text::TokenType> types;
  types.reserve(n_tokens);
  for (const std::int64_t number : numbers) {
    if (number < 1 || number > 6) {
      return Error{Code::corrupt,
                   std::string(kTypes) + "[" + std::to_string(types.size()) +
                       "] = " + std::to_string(number) + ": must be in 1..6"};
    }
    types.push_back(static_cast<text::TokenType>(number));
  }
  return types;
}

/// What ranks merges where there is no list of them.
Result<std::vector<float>> read_scores(const WeightFile& file) {
  LUNA_TRY(const auto array, find_array(file, kScores));
  if (!array) return std::vector<float>{};
  if (array->element != ValueType::f32) {
    return Error{Code::corrupt,
                 std::string(kScores) + ": elements of type " +
                     std::string(value_type_name(array->element)) + ", expected f32"};
  }
  std::vector<float> scores(array->n_elements);
  std::memcpy(scores.data(), array->bytes.data(), scores.size() * sizeof(float));
  return scores;
}

Result<std::optional<text::TokenId>> read_id(const WeightFile& file,
                                             std::string_view key,
                                             std::size_t n_tokens) {
  LUNA_TRY(const auto id, find_unsigned(file, key));
  if (!id) return std::optional<text::TokenId>{};
  if (*id >= n_tokens) {
    return Error{Code::corrupt,
                 std::string(key) + " = " + std::to_string(*id) + ": there are " +
                     std::to_string(n_tokens) + " tokens"};
  }
  return std::optional<text::TokenId>{static_cast<text::TokenId>(*id)};
}

Result<void> read_special_ids(const WeightFile& file, text::Vocabulary& vocabulary) {
  const std::size_t n_tokens = vocabulary.tokens.size();
  LUNA_TRY(vocabulary.bos_id, read_id(file, "tokenizer.ggml.bos_token_id", n_tokens));
  LUNA_TRY(vocabulary.eos_id, read_id(file, "tokenizer.ggml.eos_token_id", n_tokens));
  LUNA_TRY(vocabulary.eot_id, read_id(file, "tokenizer.ggml.eot_token_id", n_tokens));
  LUNA_TRY(vocabulary.pad_id, read_id(file, "tokenizer.ggml.padding_token_id", n_tokens));
  LUNA_TRY(vocabulary.unknown_id, read_id(file, "tokenizer.ggml.unknown_token_id", n_tokens));
  return {};
}

}  // namespace

Result<text::Vocabulary> read_vocabulary(const WeightFile& file) {
  text::Vocabulary vocabulary;
  LUNA_TRY(const auto model, find_text(file, "tokenizer.ggml.model"));
  LUNA_TRY(const auto pre, find_text(file, "tokenizer.ggml.pre"));
  if (!model && file.container() == LUNA_CONTAINER_SAFETENSORS) {
    return Error{Code::not_found,
                 "safetensors without their config.json and tokenizer.json; the path of such a "
                 "model is its folder"};
  }
  if (!model) {
    return Error{Code::not_found, "tokenizer.ggml.model: the file carries no vocabulary"};
  }
  vocabulary.model = *model;
  vocabulary.pre = pre.value_or("");

  LUNA_TRY(vocabulary.tokens, read_strings(file, kTokens));
  if (vocabulary.tokens.empty()) return Error{Code::corrupt, std::string(kTokens) + ": no tokens"};
  if (vocabulary.tokens.size() > std::numeric_limits<text::TokenId>::max()) {
    return Error{Code::corrupt, std::string(kTokens) + ": more tokens than ids of 32 bits"};
  }
  LUNA_TRY(vocabulary.types, read_types(file, vocabulary.tokens.size()));
  LUNA_TRY(vocabulary.merges, read_strings(file, kMerges));
  const bool by_characters = vocabulary.model == "llama";
  if (by_characters) {
    LUNA_TRY(vocabulary.scores, read_scores(file));
    LUNA_TRY(const auto adds_space, find_flag(file, "tokenizer.ggml.add_space_prefix"));
    vocabulary.adds_space = adds_space.value_or(true);
  }
  LUNA_TRY(read_special_ids(file, vocabulary));

  LUNA_TRY(const auto adds_bos, find_flag(file, "tokenizer.ggml.add_bos_token"));
  LUNA_TRY(const auto adds_eos, find_flag(file, "tokenizer.ggml.add_eos_token"));
  vocabulary.adds_bos = adds_bos.value_or(
      by_characters || std::ranges::find(kAddBosByDefault, std::string_view(vocabulary.pre)) !=
                           std::end(kAddBosByDefault));
  vocabulary.adds_eos = adds_eos.value_or(false);
  LUNA_TRY(const auto chat_template, find_text(file, kTemplate));
  vocabulary.chat_template = chat_template.value_or("");
  return vocabulary;
}

namespace {

/// The ids of config.json hold where generation_config.json says nothing.
Result<text::Vocabulary> read_folder(const std::filesystem::path& folder) {
  LUNA_TRY(text::Vocabulary vocabulary, text::read_vocabulary_folder(folder));
  const auto text_of = [](const MappedFile& file) {
    return std::string_view(reinterpret_cast<const char*>(file.bytes().data()),
                            file.bytes().size());
  };
  const std::filesystem::path generation_path = folder / kHfGenerationName;
  std::error_code ignored;  // a file that cannot be asked for is one that is not there
  if (std::filesystem::exists(generation_path, ignored)) {
    LUNA_TRY(const MappedFile file, MappedFile::open(generation_path));
    auto ids = parse_generation_end_ids(text_of(file));
    if (!ids) return ids.error().in(generation_path.string());
    vocabulary.end_ids = std::move(*ids);
  }
  if (!vocabulary.end_ids.empty()) return vocabulary;
  const std::filesystem::path config_path = folder / kHfConfigName;
  LUNA_TRY(const MappedFile file, MappedFile::open(config_path));
  auto config = parse_hf_config(text_of(file));
  if (!config) return config.error().in(config_path.string());
  vocabulary.end_ids = std::move(config->end_ids);
  return vocabulary;
}

}  // namespace

Result<text::Vocabulary> load_vocabulary(const std::filesystem::path& path) {
  std::error_code ignored;  // what cannot be asked for is opened, and says why
  if (!std::filesystem::exists(path / kManifestName, ignored) && is_hf_folder(path))
    return read_folder(path);
  LUNA_TRY(const auto file, open_weight_file(path));
  auto vocabulary = read_vocabulary(*file);
  if (!vocabulary) return vocabulary.error().in(path.string());
  return vocabulary;
}

}  // namespace luna::model
