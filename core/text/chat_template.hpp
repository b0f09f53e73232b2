// Messages to a prompt, by the model's own template.
#pragma once

#include "core/text/text_run.hpp"

#include <luna/result.hpp>

#include <boost/json/fwd.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace luna::text {

/// A parsed chat template (Jinja). A value that only moves; render() is const and thread-safe.
///
/// What comes out is text that remembers who wrote it: the template's own words, and bos_token and
/// eos_token, are trusted; everything from the variables is not. One exception: the `role` of a
/// message that is one of the words every chat API knows (system, user, assistant, ...) is trusted,
/// because templates build control tokens from it (<|user|>) and a client can choose only among
/// those words.
///
/// Source  jinja2 3.1, set up as `transformers` does for chat templates
class ChatTemplate {
 public:
  /// Parses a template. [start-up]
  ///
  /// bos, eos  the texts that the variables bos_token and eos_token have; may be empty
  /// Errors    corrupt (syntax; line and column), unsupported (tags), exhausted (size)
  static Result<ChatTemplate> create(std::string_view source, std::string bos, std::string eos);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// Renders a prompt. [any]
  ///
  /// variables  an object: messages, tools, add_generation_prompt, ...; its bos_token and eos_token
  ///            count only where create() got none
  /// now        what strftime_now() tells, in the local time zone
  /// Returns    runs of text, neighbours of different origin
  /// Errors     invalid_argument (the template raised, or failed on these variables: line and
  ///            column); exhausted (it does more work than is allowed)
  /// Cost       bounded: see jinja::RenderLimits
  [[nodiscard]] Result<std::vector<TextRun>> render(
      const boost::json::object& variables, std::chrono::system_clock::time_point now) const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace luna::text
