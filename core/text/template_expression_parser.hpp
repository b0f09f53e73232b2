// The half of the template parser that reads expressions.
#pragma once

#include "core/text/template_token_stream.hpp"

#include <span>

namespace luna::text::jinja {

/// Recursive descent; each function reads one level of precedence, loosest first.
///
/// Source  jinja2.parser, whose rules the functions follow one by one
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  /// One expression. `a if b else c` only where `with_conditional`.
  Result<ExprPtr> expression(bool with_conditional = true);
  /// One expression, or several with commas between: a tuple.
  Result<ExprPtr> tuple(bool with_conditional = true);
  /// `| filter | filter` after a subject that was read already.
  Result<ExprPtr> filters(ExprPtr subject);
  /// A filter without `|` before it, then more with: of filter blocks.
  Result<ExprPtr> named_filters(ExprPtr subject);
  /// A literal, a name, or something in brackets.
  Result<ExprPtr> primary();

  /// Macros whose bodies are being read: told which of the special names they use.
  std::vector<MacroCode*> open_macros;

 private:
  class DepthGuard;

  Result<ExprPtr> conditional();
  Result<ExprPtr> logical_or();
  Result<ExprPtr> logical_and();
  Result<ExprPtr> logical_not();
  Result<ExprPtr> comparison();
  Result<ExprPtr> sum();
  Result<ExprPtr> concat();
  Result<ExprPtr> product();
  Result<ExprPtr> power();
  Result<ExprPtr> unary(bool with_filters);
  Result<ExprPtr> postfix(ExprPtr subject);
  Result<ExprPtr> filter_or_test(ExprPtr subject);
  Result<ExprPtr> one_filter(ExprPtr subject);
  Result<ExprPtr> test(ExprPtr subject);
  Result<ExprPtr> member(ExprPtr subject);
  Result<ExprPtr> subscript(ExprPtr subject);
  Result<ExprPtr> list();
  Result<ExprPtr> dict();
  Result<ExprPtr> in_parentheses();
  Result<CallArguments> arguments();
  Result<void> one_argument(CallArguments& arguments);
  Result<ExprPtr> name();
  /// Binary operators of one level, left to right.
  using Level = Result<ExprPtr> (ExpressionParser::*)();
  Result<ExprPtr> binary(Level operand, std::span<const std::pair<std::string_view, Op>> ops);

  [[nodiscard]] ExprPtr make(ExprKind kind) const;
  /// Adds operands and sets the depth. Errors  corrupt (too deep)
  Result<ExprPtr> finished(ExprPtr expr) const;
  [[nodiscard]] bool at_tuple_end() const;

  TokenStream& stream_;
  std::uint32_t depth_ = 0;  // of the recursion
};

}  // namespace luna::text::jinja
