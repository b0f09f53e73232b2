#include "core/app/command_template.hpp"

#include "core/text/chat_template.hpp"
#include "core/text/json_text.hpp"

#include <boost/json.hpp>

#include <fstream>
#include <ostream>

namespace luna::app {
namespace {

namespace json = boost::json;

std::string token_text(const text::Vocabulary& vocabulary, std::optional<text::TokenId> id) {
  return id && *id < vocabulary.tokens.size() ? vocabulary.tokens[*id] : std::string();
}

Result<text::ChatTemplate> template_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Code::not_found, path.string() + ": cannot be read"};
  auto parsed = text::ChatTemplate::create(read_all(file), "", "");
  if (!parsed) return parsed.error().in(path.string());
  return parsed;
}

Result<text::ChatTemplate> template_of_model(const std::filesystem::path& path,
                                             const VocabularyLoader& loader) {
  LUNA_TRY(const text::Vocabulary vocabulary, load_vocabulary(path, loader));
  if (vocabulary.chat_template.empty()) {
    return Error{Code::not_found, path.string() + ": the model has no chat template"};
  }
  auto parsed = text::ChatTemplate::create(vocabulary.chat_template,
                                           token_text(vocabulary, vocabulary.bos_id),
                                           token_text(vocabulary, vocabulary.eos_id));
  if (!parsed) return parsed.error().in(path.string());
  return parsed;
}

Result<json::object> read_variables(std::istream& in) {
  json::value value;
  LUNA_TRY(text::parse_json(read_all(in), value));
  if (value.is_object()) return std::move(value.get_object());
  if (!value.is_array()) {
    return Error{Code::invalid_argument,
                 "a JSON list of messages or an object with them is needed"};
  }
  json::object variables;
  variables["messages"] = std::move(value);
  variables["add_generation_prompt"] = true;
  return variables;
}

}  // namespace

int run_template(const TemplateOptions& options,
                 const VocabularyLoader& loader,
                 std::chrono::system_clock::time_point now,
                 const CommandStreams& streams) {
  const auto parsed = options.template_file.empty() ? template_of_model(options.model, loader)
                                                    : template_of_file(options.template_file);
  if (!parsed) return fail(streams, parsed.error());
  const Result<json::object> variables = read_variables(streams.in);
  if (!variables) return fail(streams, variables.error());
  const auto runs = parsed->render(*variables, now);
  if (!runs) return fail(streams, runs.error());
  for (const text::TextRun& run : *runs)
    streams.out << run.text;
  streams.out << std::flush;
  if (!streams.out) return fail(streams, {Code::io, "the output could not be written"});
  return kExitFine;
}

}  // namespace luna::app
