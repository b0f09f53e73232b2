// What the two halves of the template parser share: the tokens, and complaints about them.
#pragma once

#include "core/text/template_ast.hpp"
#include "core/text/template_lexer.hpp"

#include <luna/result.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace luna::text::jinja {

/// A cursor over the tokens of one template, the last of which is `end`.
class TokenStream {
 public:
  TokenStream(std::string_view source, std::vector<Token> tokens)
      : source_(source), tokens_(std::move(tokens)) {}

  [[nodiscard]] const Token& current() const { return tokens_[next_]; }
  [[nodiscard]] const Token& look() const {
    return tokens_[next_ + 1 < tokens_.size() ? next_ + 1 : next_];
  }
  const Token& take() {
    const Token& token = tokens_[next_];
    if (next_ + 1 < tokens_.size()) ++next_;
    return token;
  }
  bool skip_op(std::string_view op) {
    const bool there = current().is_op(op);
    if (there) take();
    return there;
  }
  bool skip_name(std::string_view name) {
    const bool there = current().is_name(name);
    if (there) take();
    return there;
  }
  Result<void> expect_op(std::string_view op) {
    if (skip_op(op)) return {};
    return fail("expected '" + std::string(op) + "', found " + describe(current()));
  }
  Result<void> expect_name(std::string_view name) {
    if (skip_name(name)) return {};
    return fail("expected '" + std::string(name) + "', found " + describe(current()));
  }
  Result<std::string> expect_any_name() {
    if (current().kind == TokenKind::name) return take().text;
    return fail("expected a name, found " + describe(current()));
  }
  Result<void> expect(TokenKind kind, std::string_view what) {
    if (current().kind == kind) {
      take();
      return {};
    }
    return fail("expected " + std::string(what) + ", found " + describe(current()));
  }

  [[nodiscard]] Error fail(std::string_view what) const { return fail_at(current().offset, what); }
  [[nodiscard]] Error fail_at(std::size_t offset, std::string_view what) const {
    return {Code::corrupt, "template:" + position_of(source_, offset) + ": " + std::string(what)};
  }
  [[nodiscard]] Error unsupported(std::size_t offset, std::string_view what) const {
    return {Code::unsupported,
            "template:" + position_of(source_, offset) + ": " + std::string(what)};
  }

  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::end:
        return "the end of the template";
      case TokenKind::block_end:
        return "the end of the block";
      case TokenKind::variable_end:
        return "the end of the print statement";
      case TokenKind::string:
        return "a string";
      default:
        return "'" + token.text.substr(0, 40) + "'";
    }
  }

 private:
  std::string_view source_;
  std::vector<Token> tokens_;
  std::size_t next_ = 0;
};

}  // namespace luna::text::jinja
