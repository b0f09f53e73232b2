#include "core/text/vocabulary_json.hpp"

#include "core/base/mapped_file.hpp"
#include "core/text/byte_alphabet.hpp"
#include "core/text/utf8.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <span>
#include <string>

namespace luna::text {
namespace {

namespace json = boost::json;

constexpr std::string_view kSpaceText = "\xE2\x96\x81";  // U+2581, the mark of a space
// Real files are below 40 MB.
constexpr std::size_t kFileBytesMax = std::size_t{256} << 20U;

Error corrupt(std::string what) {
  return {Code::corrupt, std::move(what)};
}
Error unsupported(std::string what) {
  return {Code::unsupported, std::move(what)};
}

Result<json::value> parse(std::string_view text) {
  boost::system::error_code failure;
  json::value value = json::parse(json::string_view(text.data(), text.size()), failure);
  if (failure) return corrupt("not valid JSON: " + failure.message());
  return value;
}

const json::value* member(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(json::string_view(key.data(), key.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<const json::object*> object_member(const json::object& object, std::string_view key) {
  const json::value* value = member(object, key);
  if (value == nullptr || !value->is_object()) {
    return corrupt(std::string(key) + ": an object is needed");
  }
  return &value->get_object();
}

std::string_view string_or(const json::object& object,
                           std::string_view key,
                           std::string_view otherwise) {
  const json::value* value = member(object, key);
  if (value == nullptr || !value->is_string()) return otherwise;
  return {value->get_string().data(), value->get_string().size()};
}

bool bool_or(const json::object& object, std::string_view key, bool otherwise) {
  const json::value* value = member(object, key);
  return value != nullptr && value->is_bool() ? value->get_bool() : otherwise;
}

std::string text_of(const json::string& text) {
  return {text.data(), text.size()};
}

/// The token ids of `vocab`, with holes (a model may leave ids out) as unused tokens.
class TokenTable {
 public:
  TokenTable(Vocabulary& vocabulary, std::size_t n_entries)
      : vocabulary_(vocabulary), n_ids_max_(4 * n_entries + 65536) {}

  Result<void> put(const json::value* id, std::string token, TokenType type) {
    if (id == nullptr || !id->is_int64() || id->get_int64() < 0 ||
        static_cast<std::uint64_t>(id->get_int64()) >= n_ids_max_) {
      return corrupt("token \"" + token.substr(0, 64) + "\": its id is not a number in 0.." +
                     std::to_string(n_ids_max_ - 1));
    }
    const auto at = static_cast<std::size_t>(id->get_int64());
    if (at >= vocabulary_.tokens.size()) {
      vocabulary_.tokens.resize(at + 1);
      vocabulary_.types.resize(at + 1, TokenType::unused);
    }
    vocabulary_.tokens[at] = std::move(token);
    vocabulary_.types[at] = type;
    return {};
  }

 private:
  Vocabulary& vocabulary_;
  std::size_t n_ids_max_;
};

std::optional<TokenId> id_by_text(const Vocabulary& vocabulary, std::string_view text) {
  const auto found = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), text);
  if (text.empty() || found == vocabulary.tokens.end()) return std::nullopt;
  return static_cast<TokenId>(found - vocabulary.tokens.begin());
}

/// "<0x0A>": the token of a byte that no character's token has.
bool is_byte_token(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return text.size() == 6 && text.starts_with("<0x") && text.back() == '>' &&
         kDigits.find(text[3]) != std::string_view::npos &&
         kDigits.find(text[4]) != std::string_view::npos;
}

Result<void> check_bpe_options(const json::object& model, bool by_characters) {
  if (string_or(model, "type", "BPE") != "BPE") {
    return unsupported("model.type \"" + std::string(string_or(model, "type", "")) +
                       "\" is not known; known are: BPE");
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!string_or(model, key, "").empty()) {
      return unsupported("model." + std::string(key) + " is not known for byte-level BPE");
    }
  }
  if (bool_or(model, "byte_fallback", false) != by_characters) {
    return unsupported(by_characters
                           ? "model.byte_fallback = false with a normalizer that marks spaces"
                           : "model.byte_fallback = true without a normalizer that marks spaces");
  }
  if (member(model, "dropout") != nullptr) return unsupported("model.dropout");
  return {};
}

Result<void> read_merges(const json::object& model, Vocabulary& vocabulary) {
  const json::value* merges = member(model, "merges");
  if (merges == nullptr || !merges->is_array()) return corrupt("model.merges: a list is needed");
  vocabulary.merges.reserve(merges->get_array().size());
  for (const json::value& merge : merges->get_array()) {
    if (merge.is_string()) {
      vocabulary.merges.push_back(text_of(merge.get_string()));
      continue;
    }
    const json::array* pair = merge.if_array();
    if (pair == nullptr || pair->size() != 2 || !pair->at(0).is_string() ||
        !pair->at(1).is_string()) {
      return corrupt("model.merges: merge " + std::to_string(vocabulary.merges.size()) +
                     " is neither a text nor a pair of texts");
    }
    vocabulary.merges.push_back(text_of(pair->at(0).get_string()) + " " +
                                text_of(pair->at(1).get_string()));
  }
  return {};
}

/// The reference gives the unknown token for a byte without token. Where that can happen it is
/// refused, because here such a byte gives none.
Result<void> check_unknown(const json::object& model, const json::object& vocab) {
  if (string_or(model, "unk_token", "").empty()) return {};
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string symbol;
    append_utf8(symbol, alphabet_char(static_cast<std::uint8_t>(byte)));
    if (!vocab.contains(json::string_view(symbol.data(), symbol.size()))) {
      return unsupported("model.unk_token with a vocabulary that lacks byte " +
                         std::to_string(byte));
    }
  }
  return {};
}

Result<void> read_model(const json::object& root, Vocabulary& vocabulary, TokenTable& table) {
  LUNA_TRY(const json::object* model, object_member(root, "model"));
  const bool by_characters = vocabulary.rules->by_characters;
  LUNA_TRY(check_bpe_options(*model, by_characters));
  LUNA_TRY(const json::object* vocab, object_member(*model, "vocab"));
  if (!by_characters) LUNA_TRY(check_unknown(*model, *vocab));
  for (const auto& [token, id] : *vocab) {
    const std::string_view text(token.data(), token.size());
    const bool is_byte = by_characters && is_byte_token(text);
    LUNA_TRY(table.put(&id, std::string(text), is_byte ? TokenType::byte : TokenType::normal));
  }
  LUNA_TRY(read_merges(*model, vocabulary));
  vocabulary.model = by_characters ? "llama" : "gpt2";
  vocabulary.unknown_id = id_by_text(vocabulary, string_or(*model, "unk_token", ""));
  vocabulary.rules->ignores_merges = bool_or(*model, "ignore_merges", false);
  return {};
}

Result<void> read_added(const json::object& root, Vocabulary& vocabulary, TokenTable& table) {
  const json::value* added = member(root, "added_tokens");
  if (added == nullptr) return {};
  if (!added->is_array()) return corrupt("added_tokens: a list is needed");
  for (const json::value& entry : added->get_array()) {
    if (!entry.is_object()) return corrupt("added_tokens: an element is not an object");
    const json::object& token = entry.get_object();
    const TokenType type =
        bool_or(token, "special", false) ? TokenType::control : TokenType::user_defined;
    const json::value* id = member(token, "id");
    LUNA_TRY(table.put(id, std::string(string_or(token, "content", "")), type));
    vocabulary.added.push_back({.id = static_cast<TokenId>(id->get_int64()),
                                .strips_left = bool_or(token, "lstrip", false),
                                .strips_right = bool_or(token, "rstrip", false),
                                .single_word = bool_or(token, "single_word", false),
                                .normalized = bool_or(token, "normalized", false)});
  }
  return {};
}

/// The elements of a Sequence, or the one step that stands without.
Result<std::vector<const json::object*>> steps_of(const json::object& root,
                                                  std::string_view key,
                                                  std::string_view list_key) {
  std::vector<const json::object*> steps;
  const json::value* value = member(root, key);
  if (value == nullptr) return steps;
  if (!value->is_object()) return corrupt(std::string(key) + ": an object is needed");
  const json::object& first = value->get_object();
  if (string_or(first, "type", "") != "Sequence") {
    steps.push_back(&first);
    return steps;
  }
  const json::value* list = member(first, list_key);
  if (list == nullptr || !list->is_array()) {
    return corrupt(std::string(key) + "." + std::string(list_key) + ": a list is needed");
  }
  for (const json::value& step : list->get_array()) {
    if (!step.is_object()) return corrupt(std::string(key) + ": a step is not an object");
    steps.push_back(&step.get_object());
  }
  return steps;
}

Result<void> read_normalizer(const json::object& root, SplitRules& rules) {
  LUNA_TRY(const auto steps, steps_of(root, "normalizer", "normalizers"));
  for (const json::object* step : steps) {
    const std::string_view type = string_or(*step, "type", "");
    if (type == "NFC") {
      rules.nfc = true;
    } else if (type == "Replace") {
      LUNA_TRY(const json::object* pattern, object_member(*step, "pattern"));
      if (string_or(*pattern, "String", "") != " " || string_or(*step, "content", "") != kSpaceText)
        return unsupported("normalizer Replace is known for a space and its mark U+2581 only");
      rules.by_characters = true;
    } else if (type == "Prepend") {
      if (string_or(*step, "prepend", "") != kSpaceText)
        return unsupported("normalizer Prepend is known for the mark of a space, U+2581, only");
      rules.adds_space = true;
    } else {
      return unsupported("normalizer \"" + std::string(type) +
                         "\" is not known; known are: NFC, Prepend, Replace");
    }
  }
  if (rules.adds_space && !rules.by_characters)
    return unsupported("normalizer Prepend without Replace, which marks spaces");
  return {};
}

Result<WordPattern> read_split(const json::object& step) {
  if (string_or(step, "behavior", "") != "Isolated" || bool_or(step, "invert", false)) {
    return unsupported("pre_tokenizer Split is known with behavior Isolated and invert false only");
  }
  LUNA_TRY(const json::object* pattern, object_member(step, "pattern"));
  return word_pattern_by_source(string_or(*pattern, "Regex", ""));
}

/// Over characters nothing is cut; some files cut at spaces, of which the normalizer leaves none.
Result<void> check_no_cuts(std::span<const json::object* const> steps) {
  for (const json::object* step : steps) {
    const json::value* pattern = member(*step, "pattern");
    const bool cuts_spaces = string_or(*step, "type", "") == "Split" && pattern != nullptr &&
                             pattern->is_object() &&
                             string_or(pattern->get_object(), "String", "") == " ";
    if (!cuts_spaces) {
      return unsupported("pre_tokenizer \"" + std::string(string_or(*step, "type", "")) +
                         "\" is not known after a normalizer that marks spaces");
    }
  }
  return {};
}

Result<void> read_pre_tokenizer(const json::object& root, SplitRules& rules) {
  LUNA_TRY(const auto steps, steps_of(root, "pre_tokenizer", "pretokenizers"));
  rules.pattern = WordPattern::whole;
  if (rules.by_characters) return check_no_cuts(steps);
  bool has_bytes = false;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const json::object& step = *steps[i];
    const std::string_view type = string_or(step, "type", "");
    const bool pattern_is_free = rules.pattern == WordPattern::whole && !has_bytes;
    if (type == "Digits" && i == 0) {
      rules.digits =
          bool_or(step, "individual_digits", false) ? DigitRule::single : DigitRule::grouped;
    } else if (type == "Split" && pattern_is_free) {
      LUNA_TRY(rules.pattern, read_split(step));
    } else if (type == "ByteLevel" && !has_bytes) {
      has_bytes = true;
      if (bool_or(step, "add_prefix_space", true)) {
        return unsupported("pre_tokenizer ByteLevel with add_prefix_space = true");
      }
      if (!bool_or(step, "use_regex", true)) continue;
      if (!pattern_is_free && rules.pattern != WordPattern::whole) {
        return unsupported("pre_tokenizer ByteLevel with use_regex = true after Split");
      }
      rules.pattern = WordPattern::gpt2;
    } else {
      return unsupported("pre_tokenizer \"" + std::string(type) +
                         "\" is not known in this place; known are: Digits, then Split, then "
                         "ByteLevel");
    }
  }
  if (!has_bytes) return unsupported("pre_tokenizer: without ByteLevel it is not byte-level BPE");
  return {};
}

/// Whether the reference would put a token before a text, by its template for one text.
Result<void> read_post_processor(const json::object& root, Vocabulary& vocabulary) {
  LUNA_TRY(const auto steps, steps_of(root, "post_processor", "processors"));
  for (const json::object* step : steps) {
    const json::value* single = member(*step, "single");
    if (string_or(*step, "type", "") != "TemplateProcessing" || single == nullptr) continue;
    const json::array* parts = single->if_array();
    if (parts == nullptr || parts->empty() || !parts->front().is_object()) continue;
    const json::value* special = member(parts->front().get_object(), "SpecialToken");
    if (special == nullptr || !special->is_object()) continue;
    vocabulary.bos_id = id_by_text(vocabulary, string_or(special->get_object(), "id", ""));
    vocabulary.adds_bos = vocabulary.bos_id.has_value();
  }
  return {};
}

/// A token's text, which a configuration writes as a string or as an object with `content`.
std::string_view token_text(const json::object& config, std::string_view key) {
  const json::value* value = member(config, key);
  if (value != nullptr && value->is_object()) return string_or(value->get_object(), "content", "");
  return string_or(config, key, "");
}

/// A text, or a list of named ones of which `default` counts.
std::string_view template_text(const json::object& config) {
  const json::value* value = member(config, "chat_template");
  if (value == nullptr || !value->is_array()) return string_or(config, "chat_template", "");
  for (const json::value& entry : value->get_array()) {
    if (entry.is_object() && string_or(entry.get_object(), "name", "") == "default") {
      return string_or(entry.get_object(), "template", "");
    }
  }
  return "";
}

Result<std::string> read_file(const std::filesystem::path& path) {
  LUNA_TRY(const MappedFile file, MappedFile::open(path));
  if (file.bytes().size() > kFileBytesMax) {
    return corrupt(path.string() + ": " + std::to_string(file.bytes().size()) + " bytes; at most " +
                   std::to_string(kFileBytesMax) + " are read");
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace

Result<Vocabulary> parse_tokenizer_json(std::string_view text) {
  LUNA_TRY(const json::value root_value, parse(text));
  if (!root_value.is_object()) return corrupt("an object is needed");
  const json::object& root = root_value.get_object();
  Vocabulary vocabulary;
  vocabulary.rules.emplace();
  LUNA_TRY(read_normalizer(root, *vocabulary.rules));
  LUNA_TRY(read_pre_tokenizer(root, *vocabulary.rules));
  // A token takes at least eight bytes of the file: ids far above are a mistake or an attack.
  TokenTable table(vocabulary, text.size() / 8);
  LUNA_TRY(read_model(root, vocabulary, table));
  LUNA_TRY(read_added(root, vocabulary, table));
  LUNA_TRY(read_post_processor(root, vocabulary));
  return vocabulary;
}

Result<void> apply_tokenizer_config(std::string_view text, Vocabulary& vocabulary) {
  LUNA_TRY(const json::value root, parse(text));
  if (!root.is_object()) return corrupt("an object is needed");
  const json::object& config = root.get_object();
  if (const auto id = id_by_text(vocabulary, token_text(config, "bos_token")))
    vocabulary.bos_id = id;
  if (const auto id = id_by_text(vocabulary, token_text(config, "eos_token")))
    vocabulary.eos_id = id;
  if (const auto id = id_by_text(vocabulary, token_text(config, "pad_token")))
    vocabulary.pad_id = id;
  vocabulary.adds_bos =
      bool_or(config, "add_bos_token", vocabulary.adds_bos) && vocabulary.bos_id.has_value();
  vocabulary.adds_eos =
      bool_or(config, "add_eos_token", vocabulary.adds_eos) && vocabulary.eos_id.has_value();
  vocabulary.chat_template = template_text(config);
  return {};
}

Result<Vocabulary> read_vocabulary_folder(const std::filesystem::path& folder) {
  const std::filesystem::path main_path = folder / "tokenizer.json";
  LUNA_TRY(const std::string main_text, read_file(main_path));
  Result<Vocabulary> vocabulary = parse_tokenizer_json(main_text);
  if (!vocabulary) return vocabulary.error().in(main_path.string());
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  std::error_code ignored;  // a file that cannot be asked for is one that is not there
  if (std::filesystem::exists(config_path, ignored)) {
    LUNA_TRY(const std::string config_text, read_file(config_path));
    if (auto done = apply_tokenizer_config(config_text, *vocabulary); !done) {
      return done.error().in(config_path.string());
    }
  }
  const std::filesystem::path template_path = folder / "chat_template.jinja";
  if (std::filesystem::exists(template_path, ignored)) {
    LUNA_TRY(vocabulary->chat_template, read_file(template_path));
  }
  return vocabulary;
}

}  // namespace luna::text
