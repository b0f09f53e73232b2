// `luna template`: messages to the prompt that a chat template makes of them.
#pragma once

#include "core/app/text_command.hpp"

#include <chrono>
#include <filesystem>

namespace luna::app {

struct TemplateOptions {
  std::filesystem::path model;          // whose own template is used, unless
  std::filesystem::path template_file;  // there is a file with one; then the model is not asked
};

/// Reads a JSON list of messages, or an object with `messages` and other variables, from standard
/// input; a bare list means that add_generation_prompt is true. Prints the prompt, nothing added.
///
/// now      what strftime_now() tells
/// Returns  the exit status
int run_template(const TemplateOptions& options,
                 const VocabularyLoader& loader,
                 std::chrono::system_clock::time_point now,
                 const CommandStreams& streams);

}  // namespace luna::app
