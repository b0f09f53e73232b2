// Source of a template to its tree.
#pragma once

#include "core/text/template_ast.hpp"

#include <luna/result.hpp>

#include <string>
#include <string_view>

namespace luna::text::jinja {

/// A parsed template. A value that only moves; its nodes stay where they are.
struct Template {
  std::string source;  // normalised: offsets of nodes point into it
  Body body;
};

/// Expressions and statements inside each other at most this deep.
constexpr std::uint32_t kTreeDepthMax = 150;

/// Sources above this are refused.
constexpr std::size_t kSourceBytesMax = std::size_t{4} << 20U;

/// Parses a template. [start-up]
///
/// Errors  corrupt (syntax; line and column); unsupported (a tag that chat templates do not use:
///         extends, include, import, block; recursive loops)
/// Source  jinja2.parser, with the tags of `loopcontrols` and `generation`
Result<Template> parse_template(std::string_view source);

}  // namespace luna::text::jinja
