#include "core/bench/prompt_source.hpp"

#include "core/base/counter_rng.hpp"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace luna::bench {
namespace {

namespace json = boost::json;

// The stream of random numbers that the shared prefix is drawn from.
constexpr std::uint32_t kPrefixStream = 0xFFFF'FFFF;

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

Prompt PromptSource::prompt(std::size_t request_idx) const {
  if (!listed_.empty()) return listed_[request_idx % listed_.size()];
  const SyntheticPrompts& s = synthetic_;
  const auto n_ids = static_cast<double>(s.token_id_max - s.token_id_min);
  TokenIds ids(s.n_tokens);
  for (std::uint32_t i = 0; i < s.n_tokens; ++i) {
    const bool is_shared = i < s.n_shared_prefix_tokens;
    const auto stream = is_shared ? kPrefixStream : static_cast<std::uint32_t>(request_idx);
    const double u = uniform01(s.seed, stream, i).first;
    ids[i] = s.token_id_min + static_cast<std::uint32_t>(u * n_ids);
  }
  return {std::move(ids), n_generated_};
}

std::optional<std::size_t> PromptSource::n_distinct() const {
  if (listed_.empty()) return std::nullopt;
  return listed_.size();
}

}  // namespace luna::bench
