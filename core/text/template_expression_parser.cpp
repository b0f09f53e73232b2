#include "core/text/template_expression_parser.hpp"

#include "core/text/template_parser.hpp"

#include <algorithm>
#include <array>

namespace luna::text::jinja {
namespace {

using NamedOp = std::pair<std::string_view, Op>;
constexpr std::array kSumOps = {NamedOp{"+", Op::add}, NamedOp{"-", Op::subtract}};
constexpr std::array kProductOps = {NamedOp{"*", Op::multiply},
                                    NamedOp{"/", Op::divide},
                                    NamedOp{"//", Op::floor_divide},
                                    NamedOp{"%", Op::modulo}};
constexpr std::array kPowerOps = {NamedOp{"**", Op::power}};
constexpr std::array kCompareOps = {NamedOp{"==", Op::equal},
                                    NamedOp{"!=", Op::not_equal},
                                    NamedOp{"<", Op::less},
                                    NamedOp{"<=", Op::less_equal},
                                    NamedOp{">", Op::greater},
                                    NamedOp{">=", Op::greater_equal}};

std::optional<Op> find_op(const Token& token, std::span<const NamedOp> ops) {
  if (token.kind != TokenKind::op) return std::nullopt;
  for (const auto& [text, op] : ops) {
    if (token.text == text) return op;
  }
  return std::nullopt;
}

std::uint32_t depth_below(const CallArguments& arguments) {
  std::uint32_t depth = 0;
  const auto see = [&depth](const ExprPtr& e) { depth = std::max(depth, e ? e->depth : 0); };
  for (const ExprPtr& e : arguments.positional)
    see(e);
  for (const auto& keyword : arguments.keywords)
    see(keyword.second);
  see(arguments.star);
  see(arguments.double_star);
  return depth;
}

}  // namespace

/// Counts the recursion of the parser itself.
class ExpressionParser::DepthGuard {
 public:
  explicit DepthGuard(ExpressionParser& parser) : parser_(parser) { ++parser_.depth_; }
  ~DepthGuard() { --parser_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  [[nodiscard]] bool too_deep() const { return parser_.depth_ > kTreeDepthMax; }

 private:
  ExpressionParser& parser_;
};

ExprPtr ExpressionParser::make(ExprKind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->offset = stream_.current().offset;
  return expr;
}

Result<ExprPtr> ExpressionParser::finished(ExprPtr expr) const {
  std::uint32_t below = depth_below(expr->arguments);
  for (const ExprPtr& operand : expr->operands)
    below = std::max(below, operand ? operand->depth : 0);
  expr->depth = below + 1;
  if (expr->depth > kTreeDepthMax)
    return stream_.fail_at(expr->offset, "expression is nested too deeply");
  return expr;
}

Result<ExprPtr> ExpressionParser::expression(bool with_conditional) {
  const DepthGuard guard(*this);
  if (guard.too_deep()) return stream_.fail("expression is nested too deeply");
  return with_conditional ? conditional() : logical_or();
}

Result<ExprPtr> ExpressionParser::conditional() {
  LUNA_TRY(ExprPtr value, logical_or());
  while (stream_.current().is_name("if")) {
    ExprPtr expr = make(ExprKind::conditional);
    stream_.take();
    LUNA_TRY(ExprPtr condition, logical_or());
    ExprPtr otherwise;
    if (stream_.skip_name("else")) {
      LUNA_TRY(otherwise, expression(true));
    }
    expr->operands.push_back(std::move(condition));
    expr->operands.push_back(std::move(value));
    expr->operands.push_back(std::move(otherwise));
    LUNA_TRY(value, finished(std::move(expr)));
  }
  return value;
}

Result<ExprPtr> ExpressionParser::logical_or() {
  LUNA_TRY(ExprPtr left, logical_and());
  while (stream_.current().is_name("or")) {
    ExprPtr expr = make(ExprKind::binary);
    expr->op = Op::logical_or;
    stream_.take();
    expr->operands.push_back(std::move(left));
    LUNA_TRY(expr->operands.emplace_back(), logical_and());
    LUNA_TRY(left, finished(std::move(expr)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::logical_and() {
  LUNA_TRY(ExprPtr left, logical_not());
  while (stream_.current().is_name("and")) {
    ExprPtr expr = make(ExprKind::binary);
    expr->op = Op::logical_and;
    stream_.take();
    expr->operands.push_back(std::move(left));
    LUNA_TRY(expr->operands.emplace_back(), logical_not());
    LUNA_TRY(left, finished(std::move(expr)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::logical_not() {
  if (!stream_.current().is_name("not")) return comparison();
  const DepthGuard guard(*this);
  if (guard.too_deep()) return stream_.fail("expression is nested too deeply");
  ExprPtr expr = make(ExprKind::unary);
  expr->op = Op::logical_not;
  stream_.take();
  LUNA_TRY(expr->operands.emplace_back(), logical_not());
  return finished(std::move(expr));
}

Result<ExprPtr> ExpressionParser::comparison() {
  ExprPtr expr = make(ExprKind::compare);
  LUNA_TRY(expr->operands.emplace_back(), sum());
  for (;;) {
    Op op = Op::in;
    if (const auto known = find_op(stream_.current(), kCompareOps)) {
      op = *known;
      stream_.take();
    } else if (stream_.current().is_name("not") && stream_.look().is_name("in")) {
      op = Op::not_in;
      stream_.take();
      stream_.take();
    } else if (!stream_.skip_name("in")) {
      break;
    }
    expr->ops.push_back(op);
    LUNA_TRY(expr->operands.emplace_back(), sum());
  }
  if (expr->ops.empty()) return std::move(expr->operands[0]);
  return finished(std::move(expr));
}

Result<ExprPtr> ExpressionParser::binary(Level operand, std::span<const NamedOp> ops) {
  LUNA_TRY(ExprPtr left, (this->*operand)());
  while (const auto op = find_op(stream_.current(), ops)) {
    ExprPtr expr = make(ExprKind::binary);
    expr->op = *op;
    stream_.take();
    expr->operands.push_back(std::move(left));
    LUNA_TRY(expr->operands.emplace_back(), (this->*operand)());
    LUNA_TRY(left, finished(std::move(expr)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::sum() {
  return binary(&ExpressionParser::concat, kSumOps);
}
Result<ExprPtr> ExpressionParser::product() {
  return binary(&ExpressionParser::power, kProductOps);
}

Result<ExprPtr> ExpressionParser::concat() {
  ExprPtr expr = make(ExprKind::concat);
  LUNA_TRY(expr->operands.emplace_back(), product());
  while (stream_.skip_op("~")) {
    LUNA_TRY(expr->operands.emplace_back(), product());
  }
  if (expr->operands.size() == 1) return std::move(expr->operands[0]);
  return finished(std::move(expr));
}

Result<ExprPtr> ExpressionParser::power() {
  LUNA_TRY(ExprPtr left, unary(true));
  while (find_op(stream_.current(), kPowerOps)) {
    ExprPtr expr = make(ExprKind::binary);
    expr->op = Op::power;
    stream_.take();
    expr->operands.push_back(std::move(left));
    LUNA_TRY(expr->operands.emplace_back(), unary(true));
    LUNA_TRY(left, finished(std::move(expr)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::unary(bool with_filters) {
  const DepthGuard guard(*this);
  if (guard.too_deep()) return stream_.fail("expression is nested too deeply");
  ExprPtr expr;
  if (stream_.current().is_op("-") || stream_.current().is_op("+")) {
    expr = make(ExprKind::unary);
    expr->op = stream_.take().text == "-" ? Op::negate : Op::plus;
    LUNA_TRY(expr->operands.emplace_back(), unary(false));
    LUNA_TRY(expr, finished(std::move(expr)));
  } else {
    LUNA_TRY(expr, primary());
  }
  LUNA_TRY(expr, postfix(std::move(expr)));
  if (!with_filters) return expr;
  return filter_or_test(std::move(expr));
}

Result<ExprPtr> ExpressionParser::postfix(ExprPtr subject) {
  for (;;) {
    if (stream_.current().is_op(".")) {
      LUNA_TRY(subject, member(std::move(subject)));
    } else if (stream_.current().is_op("[")) {
      LUNA_TRY(subject, subscript(std::move(subject)));
    } else if (stream_.current().is_op("(")) {
      ExprPtr call = make(ExprKind::call);
      LUNA_TRY(call->arguments, arguments());
      call->operands.push_back(std::move(subject));
      LUNA_TRY(subject, finished(std::move(call)));
    } else {
      return subject;
    }
  }
}

Result<ExprPtr> ExpressionParser::filter_or_test(ExprPtr subject) {
  for (;;) {
    if (stream_.current().is_op("|")) {
      LUNA_TRY(subject, filters(std::move(subject)));
    } else if (stream_.current().is_name("is")) {
      LUNA_TRY(subject, test(std::move(subject)));
    } else if (stream_.current().is_op("(")) {
      ExprPtr call = make(ExprKind::call);
      LUNA_TRY(call->arguments, arguments());
      call->operands.push_back(std::move(subject));
      LUNA_TRY(subject, finished(std::move(call)));
    } else {
      return subject;
    }
  }
}

Result<ExprPtr> ExpressionParser::filters(ExprPtr subject) {
  while (stream_.skip_op("|")) {
    LUNA_TRY(subject, one_filter(std::move(subject)));
  }
  return subject;
}

Result<ExprPtr> ExpressionParser::named_filters(ExprPtr subject) {
  LUNA_TRY(subject, one_filter(std::move(subject)));
  return filters(std::move(subject));
}

Result<ExprPtr> ExpressionParser::one_filter(ExprPtr subject) {
  ExprPtr filter = make(ExprKind::filter);
  LUNA_TRY(filter->name, stream_.expect_any_name());
  while (stream_.skip_op(".")) {
    LUNA_TRY(const std::string part, stream_.expect_any_name());
    filter->name += "." + part;
  }
  if (stream_.current().is_op("(")) {
    LUNA_TRY(filter->arguments, arguments());
  }
  filter->operands.push_back(std::move(subject));
  return finished(std::move(filter));
}

Result<ExprPtr> ExpressionParser::test(ExprPtr subject) {
  ExprPtr expr = make(ExprKind::test);
  stream_.take();  // is
  const bool negated = stream_.skip_name("not");
  LUNA_TRY(expr->name, stream_.expect_any_name());
  const Token& next = stream_.current();
  const bool is_word = next.is_name("else") || next.is_name("or") || next.is_name("and");
  if (next.is_op("(")) {
    LUNA_TRY(expr->arguments, arguments());
  } else if ((next.kind == TokenKind::name && !is_word) || next.kind == TokenKind::string ||
             next.kind == TokenKind::integer || next.kind == TokenKind::real || next.is_op("[") ||
             next.is_op("{")) {
    if (next.is_name("is")) return stream_.fail("tests cannot be chained with is");
    LUNA_TRY(ExprPtr argument, primary());
    LUNA_TRY(argument, postfix(std::move(argument)));
    expr->arguments.positional.push_back(std::move(argument));
  }
  expr->operands.push_back(std::move(subject));
  LUNA_TRY(expr, finished(std::move(expr)));
  if (!negated) return expr;
  ExprPtr opposite = make(ExprKind::unary);
  opposite->op = Op::logical_not;
  opposite->operands.push_back(std::move(expr));
  return finished(std::move(opposite));
}

Result<ExprPtr> ExpressionParser::member(ExprPtr subject) {
  ExprPtr expr = make(ExprKind::attribute);
  stream_.take();  // .
  expr->offset = stream_.current().offset;
  if (stream_.current().kind == TokenKind::integer) {
    expr->kind = ExprKind::item;
    ExprPtr index = make(ExprKind::literal);
    index->literal = Value::integer(stream_.take().integer);
    expr->operands.push_back(std::move(subject));
    expr->operands.push_back(std::move(index));
    return finished(std::move(expr));
  }
  LUNA_TRY(expr->name, stream_.expect_any_name());
  expr->operands.push_back(std::move(subject));
  return finished(std::move(expr));
}

Result<ExprPtr> ExpressionParser::subscript(ExprPtr subject) {
  ExprPtr expr = make(ExprKind::item);
  stream_.take();  // [
  expr->operands.push_back(std::move(subject));
  if (stream_.current().is_op("]")) return stream_.fail("expected a subscript expression");
  if (!stream_.current().is_op(":")) {
    LUNA_TRY(expr->operands.emplace_back(), tuple());
  } else {
    expr->operands.emplace_back();
  }
  if (stream_.skip_op(":")) {
    expr->kind = ExprKind::slice;
    for (int part = 0; part < 2; ++part) {
      expr->operands.emplace_back();
      const bool given = !stream_.current().is_op(":") && !stream_.current().is_op("]");
      if (given) {
        LUNA_TRY(expr->operands.back(), expression());
      }
      if (part == 0) stream_.skip_op(":");
    }
  }
  LUNA_TRY(stream_.expect_op("]"));
  return finished(std::move(expr));
}

Result<CallArguments> ExpressionParser::arguments() {
  CallArguments arguments;
  LUNA_TRY(stream_.expect_op("("));
  for (bool first = true; !stream_.current().is_op(")"); first = false) {
    if (!first) {
      LUNA_TRY(stream_.expect_op(","));
      if (stream_.current().is_op(")")) break;
    }
    LUNA_TRY(one_argument(arguments));
  }
  LUNA_TRY(stream_.expect_op(")"));
  return arguments;
}

Result<void> ExpressionParser::one_argument(CallArguments& arguments) {
  constexpr std::string_view kBroken = "invalid syntax for function call expression";
  if (stream_.skip_op("*")) {
    if (arguments.star || arguments.double_star) return stream_.fail(kBroken);
    LUNA_TRY(arguments.star, expression());
  } else if (stream_.skip_op("**")) {
    if (arguments.double_star) return stream_.fail(kBroken);
    LUNA_TRY(arguments.double_star, expression());
  } else if (stream_.current().kind == TokenKind::name && stream_.look().is_op("=")) {
    if (arguments.double_star) return stream_.fail(kBroken);
    std::string key = stream_.take().text;
    stream_.take();  // =
    LUNA_TRY(ExprPtr value, expression());
    arguments.keywords.emplace_back(std::move(key), std::move(value));
  } else {
    if (arguments.star || arguments.double_star || !arguments.keywords.empty()) {
      return stream_.fail(kBroken);
    }
    LUNA_TRY(arguments.positional.emplace_back(), expression());
  }
  return {};
}

Result<ExprPtr> ExpressionParser::name() {
  ExprPtr expr = make(ExprKind::name);
  expr->name = stream_.take().text;
  const std::string& name = expr->name;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expr->kind = ExprKind::literal;
    expr->literal = Value::boolean(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    expr->kind = ExprKind::literal;
    expr->literal = Value::none();
  } else {
    for (MacroCode* macro : open_macros) {
      macro->uses_varargs |= name == "varargs";
      macro->uses_kwargs |= name == "kwargs";
      macro->uses_caller |= name == "caller";
    }
  }
  return expr;
}

Result<ExprPtr> ExpressionParser::primary() {
  const Token& token = stream_.current();
  if (token.kind == TokenKind::name) return name();
  if (token.is_op("(")) return in_parentheses();
  if (token.is_op("[")) return list();
  if (token.is_op("{")) return dict();
  ExprPtr expr = make(ExprKind::literal);
  if (token.kind == TokenKind::string) {
    std::string text;
    while (stream_.current().kind == TokenKind::string)
      text += stream_.take().text;
    expr->literal = Value::text(MarkedText(std::move(text), true));
  } else if (token.kind == TokenKind::integer) {
    expr->literal = Value::integer(stream_.take().integer);
  } else if (token.kind == TokenKind::real) {
    expr->literal = Value::real(stream_.take().real);
  } else {
    return stream_.fail("unexpected " + TokenStream::describe(token));
  }
  return expr;
}

Result<ExprPtr> ExpressionParser::in_parentheses() {
  ExprPtr empty = make(ExprKind::tuple);
  stream_.take();  // (
  if (stream_.skip_op(")")) return empty;
  LUNA_TRY(ExprPtr inside, tuple());
  LUNA_TRY(stream_.expect_op(")"));
  return inside;
}

Result<ExprPtr> ExpressionParser::list() {
  ExprPtr expr = make(ExprKind::list);
  stream_.take();  // [
  while (!stream_.current().is_op("]")) {
    if (!expr->operands.empty()) LUNA_TRY(stream_.expect_op(","));
    if (stream_.current().is_op("]")) break;
    LUNA_TRY(expr->operands.emplace_back(), expression());
  }
  LUNA_TRY(stream_.expect_op("]"));
  return finished(std::move(expr));
}

Result<ExprPtr> ExpressionParser::dict() {
  ExprPtr expr = make(ExprKind::dict);
  stream_.take();  // {
  while (!stream_.current().is_op("}")) {
    if (!expr->operands.empty()) LUNA_TRY(stream_.expect_op(","));
    if (stream_.current().is_op("}")) break;
    LUNA_TRY(expr->operands.emplace_back(), expression());
    LUNA_TRY(stream_.expect_op(":"));
    LUNA_TRY(expr->operands.emplace_back(), expression());
  }
  LUNA_TRY(stream_.expect_op("}"));
  return finished(std::move(expr));
}

bool ExpressionParser::at_tuple_end() const {
  const Token& token = stream_.current();
  return token.kind == TokenKind::variable_end || token.kind == TokenKind::block_end ||
         token.is_op(")") || token.is_op("]") || token.is_name("recursive");
}

Result<ExprPtr> ExpressionParser::tuple(bool with_conditional) {
  ExprPtr expr = make(ExprKind::tuple);
  bool has_comma = false;
  while (!at_tuple_end()) {
    LUNA_TRY(expr->operands.emplace_back(), expression(with_conditional));
    if (!stream_.skip_op(",")) break;
    has_comma = true;
  }
  if (has_comma) return finished(std::move(expr));
  if (!expr->operands.empty()) return std::move(expr->operands[0]);
  return stream_.fail("expected an expression, found " + TokenStream::describe(stream_.current()));
}

}  // namespace luna::text::jinja
