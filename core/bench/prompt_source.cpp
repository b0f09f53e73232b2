#include "core/bench/prompt_source.hpp"

#include "core/base/counter_rng.hpp"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

namespace luna::bench {
namespace {

namespace json = boost::json;

// Streams of random numbers: of the first shared prefix (the others' lie below it), and of what is
// drawn of a request beside its ids, three numbers each.
constexpr std::uint32_t kPrefixStream = 0xFFFF'FFFF;
constexpr std::uint32_t kDrawStream = 0xD8A3'0517;
constexpr std::uint32_t kPrefixesMax = 1 << 20;
enum class Drawn : std::uint8_t { prompt_length, output_length, prefix };

double draw(const SyntheticPrompts& prompts, std::size_t request_idx, Drawn what) {
  return uniform01(prompts.draw_seed.value_or(prompts.seed),
                   kDrawStream,
                   3 * std::uint64_t{request_idx} + static_cast<std::uint64_t>(what))
      .first;
}

/// A length within the spread of its mean, at least 1.
///
/// u  in [0, 1)
std::uint32_t spread(std::uint32_t n_mean, std::uint32_t percent, double u) {
  const double factor = 1.0 + percent / 100.0 * (2.0 * u - 1.0);
  return std::max(1U, static_cast<std::uint32_t>(std::lround(n_mean * factor)));
}

Result<TokenIds> read_ids(const json::array& list) {
  TokenIds ids;
  ids.reserve(list.size());
  for (const json::value& value : list) {
    boost::system::error_code failed;
    ids.push_back(value.to_number<std::uint32_t>(failed));
    if (failed) return Error{Code::corrupt, "\"prompt\" is a list, but not of token ids"};
  }
  if (ids.empty()) return Error{Code::corrupt, "\"prompt\" is an empty list"};
  return ids;
}

Result<Prompt> read_object(const json::object& object, std::uint32_t n_generated) {
  Prompt read{std::string(), n_generated};
  if (const json::value* n = object.if_contains("max_tokens")) {
    boost::system::error_code failed;
    read.n_generated_max = n->to_number<std::uint32_t>(failed);
    if (failed || read.n_generated_max == 0)
      return Error{Code::corrupt, "\"max_tokens\" must be a whole number above 0"};
  }
  const json::value* messages = object.if_contains("messages");
  const json::value* prompt = object.if_contains("prompt");
  if (messages != nullptr && messages->is_array()) {
    read.input = messages->get_array();
  } else if (prompt != nullptr && prompt->is_string()) {
    read.input = std::string(prompt->get_string());
  } else if (prompt != nullptr && prompt->is_array()) {
    LUNA_TRY(read.input, read_ids(prompt->get_array()));
  } else {
    return Error{Code::corrupt,
                 "needs \"messages\" (a list) or \"prompt\" (a string or a list of token ids)"};
  }
  return read;
}

Result<Prompt> read_json_line(const std::string& line, std::uint32_t n_generated) {
  boost::system::error_code failed;
  const json::value value = json::parse(line, failed);
  if (failed) return Error{Code::corrupt, "no JSON: " + failed.message()};
  if (value.is_string()) return Prompt{std::string(value.get_string()), n_generated};
  if (value.is_object()) return read_object(value.get_object(), n_generated);
  return Error{Code::corrupt, "must be a string or an object"};
}

}  // namespace

Result<PromptSource> PromptSource::synthetic(const SyntheticPrompts& prompts,
                                             std::uint32_t n_generated) {
  if (prompts.n_tokens == 0) return Error{Code::invalid_argument, "prompts need a token at least"};
  if (prompts.n_shared_prefix_tokens >= prompts.n_tokens)
    return Error{Code::invalid_argument,
                 "a shared prefix of " + std::to_string(prompts.n_shared_prefix_tokens) +
                     " tokens leaves nothing of a prompt of " + std::to_string(prompts.n_tokens)};
  if (prompts.n_prefixes == 0 || prompts.n_prefixes > kPrefixesMax)
    return Error{Code::invalid_argument,
                 std::to_string(prompts.n_prefixes) + " shared prefixes: must be 1 to " +
                     std::to_string(kPrefixesMax)};
  if (prompts.spread_percent >= 100)
    return Error{Code::invalid_argument,
                 "a spread of " + std::to_string(prompts.spread_percent) +
                     " % of a length: must be below 100"};
  if (prompts.n_sequence_tokens_max &&
      *prompts.n_sequence_tokens_max < prompts.n_shared_prefix_tokens + 2)
    return Error{Code::invalid_argument,
                 "sequences of at most " + std::to_string(*prompts.n_sequence_tokens_max) +
                     " tokens have no room for a shared prefix of " +
                     std::to_string(prompts.n_shared_prefix_tokens)};
  if (prompts.token_id_min >= prompts.token_id_max)
    return Error{Code::invalid_argument,
                 "token ids from " + std::to_string(prompts.token_id_min) + " to below " +
                     std::to_string(prompts.token_id_max) + ": there are none"};
  PromptSource source;
  source.synthetic_ = prompts;
  source.n_generated_ = n_generated;
  return source;
}

Result<PromptSource> PromptSource::from_file(const std::filesystem::path& path,
                                             std::uint32_t n_generated) {
  std::ifstream file(path);
  if (!file) {
    const Code code = errno == ENOENT ? Code::not_found : Code::io;
    return Error{code, path.string() + ": " + std::strerror(errno)};
  }
  PromptSource source;
  source.n_generated_ = n_generated;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    if (path.extension() != ".jsonl") {
      source.listed_.push_back({line, n_generated});
      continue;
    }
    auto read = read_json_line(line, n_generated);
    if (!read) return read.error().in(path.string() + ":" + std::to_string(number));
    source.listed_.push_back(std::move(*read));
  }
  if (file.bad()) return Error{Code::io, path.string() + ": " + std::strerror(errno)};
  if (source.listed_.empty()) return Error{Code::corrupt, path.string() + ": holds no prompt"};
  return source;
}

PromptSource::Lengths PromptSource::draw_lengths(std::size_t request_idx) const {
  const SyntheticPrompts& s = synthetic_;
  Lengths lengths{.n_fresh = spread(s.n_tokens - s.n_shared_prefix_tokens,
                                    s.spread_percent,
                                    draw(s, request_idx, Drawn::prompt_length)),
                  .n_generated = spread(
                      n_generated_, s.spread_percent, draw(s, request_idx, Drawn::output_length))};
  if (!s.n_sequence_tokens_max) return lengths;
  const std::uint32_t room = *s.n_sequence_tokens_max - s.n_shared_prefix_tokens;
  const std::uint64_t n = std::uint64_t{lengths.n_fresh} + lengths.n_generated;
  if (n <= room) return lengths;
  const auto n_fresh = static_cast<std::uint32_t>(std::uint64_t{lengths.n_fresh} * room / n);
  lengths.n_fresh = std::clamp(n_fresh, 1U, room - 1);
  lengths.n_generated = room - lengths.n_fresh;
  return lengths;
}

Prompt PromptSource::prompt(std::size_t request_idx) const {
  if (!listed_.empty()) return listed_[request_idx % listed_.size()];
  const SyntheticPrompts& s = synthetic_;
  const auto n_ids = static_cast<double>(s.token_id_max - s.token_id_min);
  const Lengths lengths = draw_lengths(request_idx);
  const std::uint32_t prefix_stream = kPrefixStream - prefix_of(request_idx);
  TokenIds ids(s.n_shared_prefix_tokens + lengths.n_fresh);
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    const bool is_shared = i < s.n_shared_prefix_tokens;
    const std::uint64_t seed = is_shared ? s.prefix_seed.value_or(s.seed) : s.seed;
    const auto stream = is_shared ? prefix_stream : static_cast<std::uint32_t>(request_idx);
    const double u = uniform01(seed, stream, i).first;
    ids[i] = s.token_id_min + static_cast<std::uint32_t>(u * n_ids);
  }
  return {std::move(ids), lengths.n_generated};
}

std::uint32_t PromptSource::prefix_of(std::size_t request_idx) const {
  if (!listed_.empty() || synthetic_.n_prefixes == 1) return 0;
  return static_cast<std::uint32_t>(draw(synthetic_, request_idx, Drawn::prefix) *
                                    synthetic_.n_prefixes);
}

std::optional<std::size_t> PromptSource::n_distinct() const {
  if (listed_.empty()) return std::nullopt;
  return listed_.size();
}

}  // namespace luna::bench
