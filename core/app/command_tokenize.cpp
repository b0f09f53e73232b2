#include "core/app/command_tokenize.hpp"

#include "core/text/detokenizer.hpp"
#include "core/text/tokenizer.hpp"

#include <boost/json.hpp>

#include <istream>
#include <ostream>

namespace luna::app {
namespace {

namespace json = boost::json;
using text::TokenId;
using text::Tokenizer;

std::string ids_as_json(const std::vector<TokenId>& ids) {
  std::string out = "[";
  for (const TokenId id : ids)
    out += (out.size() == 1 ? "" : ", ") + std::to_string(id);
  return out + "]";
}

Result<std::vector<TokenId>> ids_from_json(const std::string& line, const Tokenizer& tokenizer) {
  boost::system::error_code failure;
  const json::value value = json::parse(line, failure);
  if (failure || !value.is_array()) {
    return Error{Code::invalid_argument, "a JSON list of token ids is needed"};
  }
  std::vector<TokenId> ids;
  for (const json::value& item : value.get_array()) {
    const bool known = item.is_int64() && item.get_int64() >= 0 &&
                       static_cast<std::uint64_t>(item.get_int64()) < tokenizer.vocab_size();
    if (!known) {
      return Error{Code::invalid_argument,
                   json::serialize(item) + " is not a token id in 0.." +
                       std::to_string(tokenizer.vocab_size() - 1)};
    }
    ids.push_back(static_cast<TokenId>(item.get_int64()));
  }
  return ids;
}

std::string as_json_string(const std::string& bytes) {
  text::Utf8Stream stream(bytes.size());
  std::string valid(stream.push(bytes));
  valid += stream.flush();
  return json::serialize(json::string(valid));
}

class TokenizeCommand {
 public:
  TokenizeCommand(const TokenizeOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer) {}

  Result<std::string> encode(std::string_view text) const {
    const auto mode =
        options_.no_special ? text::SpecialTokens::plain : text::SpecialTokens::recognise;
    LUNA_TRY(const std::vector<TokenId> ids, tokenizer_.encode(text, mode));
    return ids_as_json(ids);
  }

  /// The answer to one line of JSON.
  Result<std::string> answer(const std::string& line) const {
    if (options_.decode) {
      LUNA_TRY(const std::vector<TokenId> ids, ids_from_json(line, tokenizer_));
      return as_json_string(tokenizer_.decode(ids));
    }
    boost::system::error_code failure;
    const json::value value = json::parse(line, failure);
    if (failure || !value.is_string()) {
      return Error{Code::invalid_argument, "a JSON string is needed"};
    }
    return encode({value.get_string().data(), value.get_string().size()});
  }

  Result<void> answer_lines(const CommandStreams& streams) const {
    std::string line;
    for (std::size_t number = 1; std::getline(streams.in, line); ++number) {
      const Result<std::string> out = answer(line);
      if (!out) return out.error().in("line " + std::to_string(number));
      streams.out << *out << '\n' << std::flush;
    }
    return {};
  }

  Result<void> answer_whole(const CommandStreams& streams) const {
    const std::string input = read_all(streams.in);
    if (options_.decode) {
      LUNA_TRY(const std::vector<TokenId> ids, ids_from_json(input, tokenizer_));
      streams.out << tokenizer_.decode(ids) << std::flush;
      return {};
    }
    LUNA_TRY(const std::string ids, encode(input));
    streams.out << ids << '\n' << std::flush;
    return {};
  }

 private:
  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
};

}  // namespace

int run_tokenize(const TokenizeOptions& options,
                 const VocabularyLoader& loader,
                 const CommandStreams& streams) {
  Result<text::Vocabulary> vocabulary = load_vocabulary(options.model, loader);
  if (!vocabulary) return fail(streams, vocabulary.error());
  const Result<Tokenizer> tokenizer = Tokenizer::create(*std::move(vocabulary));
  if (!tokenizer) return fail(streams, tokenizer.error().in(options.model.string()));
  const TokenizeCommand command(options, *tokenizer);
  const Result<void> done =
      options.jsonl ? command.answer_lines(streams) : command.answer_whole(streams);
  if (!done) return fail(streams, done.error());
  if (!streams.out) return fail(streams, {Code::io, "the output could not be written"});
  return kExitFine;
}

}  // namespace luna::app
