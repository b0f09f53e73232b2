#include "core/text/template_parser.hpp"

#include "core/text/template_expression_parser.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace luna::text::jinja {
namespace {

constexpr std::array<std::string_view, 6> kRefused = {
    "extends", "include", "import", "from", "block", "autoescape"};

class Parser {
 public:
  explicit Parser(TokenStream& stream) : stream_(stream), expressions_(stream) {}

  Result<Body> run() { return body({}); }

 private:
  using EndNames = std::initializer_list<std::string_view>;

  /// Text and statements up to one of the tags that end the body, whose name is left unread, or to
  /// the end of the template where there is none to wait for.
  Result<Body> body(EndNames ends) {
    if (++depth_ > kTreeDepthMax) return stream_.fail("blocks are nested too deeply");
    Body statements;
    while (stream_.current().kind != TokenKind::end) {
      const Token& token = stream_.current();
      if (token.kind == TokenKind::data) {
        statements.push_back(begin(StmtKind::data));
        statements.back().text = stream_.take().text;
      } else if (token.kind == TokenKind::variable_begin) {
        statements.push_back(begin(StmtKind::print));
        stream_.take();
        LUNA_TRY(statements.back().expr, expressions_.tuple());
        LUNA_TRY(stream_.expect(TokenKind::variable_end, "the end of the print statement"));
      } else {
        LUNA_TRY(stream_.expect(TokenKind::block_begin, "a tag"));
        const Token& name = stream_.current();
        const bool at_end = std::any_of(
            ends.begin(), ends.end(), [&name](std::string_view end) { return name.is_name(end); });
        if (at_end) {
          --depth_;
          return statements;
        }
        LUNA_TRY(Stmt parsed, statement());
        statements.push_back(std::move(parsed));
        LUNA_TRY(stream_.expect(TokenKind::block_end, "the end of the block"));
      }
    }
    --depth_;
    if (ends.size() > 0) {
      return stream_.fail("the template ends where {% " + std::string(*(ends.end() - 1)) +
                          " %} is missing");
    }
    return statements;
  }

  /// The rest of an opening tag, then a body up to one of `ends`.
  Result<Body> block(EndNames ends) {
    stream_.skip_op(":");
    LUNA_TRY(stream_.expect(TokenKind::block_end, "the end of the block"));
    return body(ends);
  }

  /// As block(), and the end tag's name is read.
  Result<Body> whole_block(std::string_view end) {
    LUNA_TRY(Body statements, block({end}));
    stream_.take();
    return statements;
  }

  [[nodiscard]] Stmt begin(StmtKind kind) const {
    Stmt statement;
    statement.kind = kind;
    statement.offset = stream_.current().offset;
    return statement;
  }

  Result<Stmt> statement() {
    const Token& token = stream_.current();
    if (token.kind != TokenKind::name) {
      return stream_.fail("expected the name of a tag, found " + TokenStream::describe(token));
    }
    const std::string& name = token.text;
    if (name == "if") return branches();
    if (name == "for") return loop();
    if (name == "set") return assign();
    if (name == "macro") return macro();
    if (name == "call") return call_block();
    if (name == "filter") return filter_block();
    if (name == "with") return with();
    if (name == "print") return print();
    if (name == "generation") return generation();
    if (name == "break" || name == "continue") return loop_control();
    for (const std::string_view refused : kRefused) {
      if (name == refused) {
        return stream_.unsupported(token.offset, "the tag {% " + name + " %} is not supported");
      }
    }
    return stream_.fail("unknown tag '" + name.substr(0, 40) + "'");
  }

  Result<Stmt> branches() {
    Stmt statement = begin(StmtKind::branches);
    bool has_else = false;
    while (!has_else) {
      Branch branch;
      if (stream_.take().text == "else") {
        has_else = true;
      } else {
        LUNA_TRY(branch.condition, expressions_.tuple(false));
      }
      if (has_else) {
        LUNA_TRY(branch.body, block({"endif"}));
      } else {
        LUNA_TRY(branch.body, block({"elif", "else", "endif"}));
      }
      statement.branches.push_back(std::move(branch));
      if (stream_.skip_name("endif")) break;
    }
    return statement;
  }

  Result<Stmt> loop() {
    Stmt statement = begin(StmtKind::loop);
    stream_.take();
    LUNA_TRY(statement.target, target_list("in"));
    LUNA_TRY(stream_.expect_name("in"));
    LUNA_TRY(statement.expr, expressions_.tuple(false));
    if (stream_.skip_name("if")) {
      LUNA_TRY(statement.condition, expressions_.expression());
    }
    if (stream_.current().is_name("recursive")) {
      return stream_.unsupported(stream_.current().offset, "recursive loops are not supported");
    }
    ++n_open_loops_;
    auto inside = block({"else", "endfor"});
    --n_open_loops_;
    LUNA_TRY(statement.body, std::move(inside));
    if (stream_.take().text == "else") {
      LUNA_TRY(statement.otherwise, whole_block("endfor"));
    }
    return statement;
  }

  Result<Stmt> assign() {
    Stmt statement = begin(StmtKind::assign);
    stream_.take();
    LUNA_TRY(statement.target, target_list(""));
    if (stream_.skip_op("=")) {
      LUNA_TRY(statement.expr, expressions_.tuple());
      return statement;
    }
    statement.kind = StmtKind::assign_block;
    LUNA_TRY(statement.expr, expressions_.filters(captured()));
    LUNA_TRY(statement.body, whole_block("endset"));
    return statement;
  }

  Result<Stmt> macro() {
    Stmt statement = begin(StmtKind::macro);
    stream_.take();
    statement.macro = std::make_unique<MacroCode>();
    LUNA_TRY(statement.macro->name, stream_.expect_any_name());
    LUNA_TRY(parameters(*statement.macro));
    LUNA_TRY(statement.macro->body, macro_body(*statement.macro, "endmacro"));
    return statement;
  }

  Result<Body> macro_body(MacroCode& macro, std::string_view end) {
    expressions_.open_macros.push_back(&macro);
    const std::size_t loops = std::exchange(n_open_loops_, 0);
    auto inside = whole_block(end);
    n_open_loops_ = loops;
    expressions_.open_macros.pop_back();
    return inside;
  }

  Result<void> parameters(MacroCode& macro) {
    LUNA_TRY(stream_.expect_op("("));
    while (!stream_.current().is_op(")")) {
      if (!macro.parameters.empty()) LUNA_TRY(stream_.expect_op(","));
      Parameter parameter;
      LUNA_TRY(parameter.name, stream_.expect_any_name());
      if (stream_.skip_op("=")) {
        LUNA_TRY(parameter.otherwise, expressions_.expression());
      } else if (!macro.parameters.empty() && macro.parameters.back().otherwise) {
        return stream_.fail("a parameter without default follows one with default");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    return stream_.expect_op(")");
  }

  Result<Stmt> call_block() {
    Stmt statement = begin(StmtKind::call_block);
    stream_.take();
    statement.macro = std::make_unique<MacroCode>();
    statement.macro->name = "caller";
    if (stream_.current().is_op("(")) LUNA_TRY(parameters(*statement.macro));
    LUNA_TRY(statement.expr, expressions_.expression());
    if (statement.expr->kind != ExprKind::call) return stream_.fail("expected a call");
    LUNA_TRY(statement.macro->body, macro_body(*statement.macro, "endcall"));
    return statement;
  }

  Result<Stmt> filter_block() {
    Stmt statement = begin(StmtKind::filter_block);
    stream_.take();
    LUNA_TRY(statement.expr, expressions_.named_filters(captured()));
    LUNA_TRY(statement.body, whole_block("endfilter"));
    return statement;
  }

  Result<Stmt> with() {
    Stmt statement = begin(StmtKind::with);
    stream_.take();
    while (stream_.current().kind != TokenKind::block_end) {
      if (!statement.assignments.empty()) LUNA_TRY(stream_.expect_op(","));
      LUNA_TRY(Target target, target_list("="));
      LUNA_TRY(stream_.expect_op("="));
      LUNA_TRY(ExprPtr value, expressions_.expression());
      statement.assignments.emplace_back(std::move(target), std::move(value));
    }
    LUNA_TRY(statement.body, whole_block("endwith"));
    return statement;
  }

  Result<Stmt> print() {
    Stmt statement = begin(StmtKind::print);
    stream_.take();
    // Several values are printed one after the other: a concatenation, not a tuple.
    statement.expr = captured();
    statement.expr->kind = ExprKind::concat;
    do {
      LUNA_TRY(ExprPtr value, expressions_.expression());
      statement.expr->operands.push_back(std::move(value));
    } while (stream_.skip_op(","));
    return statement;
  }

  Result<Stmt> generation() {
    Stmt statement = begin(StmtKind::scope);
    stream_.take();
    const std::size_t loops = std::exchange(n_open_loops_, 0);
    auto inside = whole_block("endgeneration");
    n_open_loops_ = loops;
    LUNA_TRY(statement.body, std::move(inside));
    return statement;
  }

  Result<Stmt> loop_control() {
    if (n_open_loops_ == 0) return stream_.fail("'" + stream_.current().text + "' outside a loop");
    const bool breaks = stream_.current().text == "break";
    Stmt statement = begin(breaks ? StmtKind::break_loop : StmtKind::continue_loop);
    stream_.take();
    return statement;
  }

  [[nodiscard]] ExprPtr captured() const {
    auto expr = std::make_unique<Expr>();
    expr->kind = ExprKind::captured;
    expr->offset = stream_.current().offset;
    return expr;
  }

  /// One target, or several with commas; a name `end` ends the list.
  Result<Target> target_list(std::string_view end) {
    LUNA_TRY(Target first, target());
    if (!stream_.current().is_op(",")) return first;
    Target all;
    all.kind = Target::Kind::tuple;
    all.parts.push_back(std::move(first));
    while (stream_.skip_op(",")) {
      const Token& next = stream_.current();
      if (next.is_name(end) || next.is_op("=") || next.is_op(")") ||
          next.kind == TokenKind::block_end) {
        break;
      }
      LUNA_TRY(Target part, target());
      all.parts.push_back(std::move(part));
    }
    return all;
  }

  Result<Target> target() {
    if (stream_.skip_op("(")) {
      if (++depth_ > kTreeDepthMax) return stream_.fail("targets are nested too deeply");
      LUNA_TRY(Target inside, target_list(""));
      --depth_;
      LUNA_TRY(stream_.expect_op(")"));
      return inside;
    }
    Target target;
    LUNA_TRY(target.name, stream_.expect_any_name());
    for (const char* fixed : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == fixed) return stream_.fail("cannot assign to '" + target.name + "'");
    }
    if (stream_.skip_op(".")) {
      target.kind = Target::Kind::attribute;
      LUNA_TRY(target.attribute, stream_.expect_any_name());
    }
    return target;
  }

  TokenStream& stream_;
  ExpressionParser expressions_;
  std::uint32_t depth_ = 0;
  std::size_t n_open_loops_ = 0;
};

}  // namespace

Result<Template> parse_template(std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    return Error{Code::exhausted,
                 "a template of " + std::to_string(source.size()) + " bytes; at most " +
                     std::to_string(kSourceBytesMax)};
  }
  if (!is_utf8(source)) return Error{Code::corrupt, "the template is not valid UTF-8"};
  Template parsed;
  parsed.source = normalized_source(source);
  LUNA_TRY(std::vector<Token> tokens, lex(parsed.source));
  TokenStream stream(parsed.source, std::move(tokens));
  LUNA_TRY(parsed.body, Parser(stream).run());
  return parsed;
}

}  // namespace luna::text::jinja
