// A small program with the text commands alone, for tests that do not need the whole of luna:
//   text_driver tokenize --model FOLDER [--no-special] [--jsonl] [--decode]
//   text_driver template (--model FOLDER | --template FILE)
#include "core/app/command_template.hpp"
#include "core/app/command_tokenize.hpp"

#include <iostream>
#include <string_view>

namespace {

luna::Result<luna::text::Vocabulary> refuse_file(const std::filesystem::path&) {
  return luna::Error{luna::Code::unsupported,
                     "this program reads folders with tokenizer.json only"};
}

}  // namespace

int main(int argc, char** argv) {
  const luna::app::CommandStreams streams{std::cin, std::cout, std::cerr};
  luna::app::TokenizeOptions tokenize;
  luna::app::TemplateOptions with_template;
  const std::string_view verb = argc > 1 ? argv[1] : "";
  for (int i = 2; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--model" && i + 1 < argc) {
      tokenize.model = with_template.model = argv[++i];
    } else if (arg == "--template" && i + 1 < argc) {
      with_template.template_file = argv[++i];
    } else if (arg == "--no-special") {
      tokenize.no_special = true;
    } else if (arg == "--jsonl") {
      tokenize.jsonl = true;
    } else if (arg == "--decode") {
      tokenize.decode = true;
    } else {
      std::cerr << "text_driver: " << arg << " is not known\n";
      return 2;
    }
  }
  if (verb == "tokenize") return luna::app::run_tokenize(tokenize, refuse_file, streams);
  if (verb == "template") {
    const auto now = std::chrono::system_clock::now();
    return luna::app::run_template(with_template, refuse_file, now, streams);
  }
  std::cerr << "text_driver: tokenize or template is needed\n";
  return 2;
}
