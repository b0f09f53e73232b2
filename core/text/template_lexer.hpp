// Cuts the source of a template into text and the tokens of its tags.
#pragma once

#include <luna/result.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace luna::text::jinja {

enum class TokenKind : std::uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::uint32_t offset = 0;  // in the normalised source
  std::string text;          // of a string: the value
  std::int64_t integer = 0;
  double real = 0;

  [[nodiscard]] bool is_name(std::string_view wanted) const {
    return kind == TokenKind::name && text == wanted;
  }
  [[nodiscard]] bool is_op(std::string_view wanted) const {
    return kind == TokenKind::op && text == wanted;
  }
};

/// The source as the lexer sees it: line ends are "\n", one at the end is dropped.
std::string normalized_source(std::string_view source);

/// "line:column" of an offset, both from 1.
std::string position_of(std::string_view source, std::size_t offset);

/// The tokens of a normalised source, with trim_blocks and lstrip_blocks on.
/// Errors  corrupt, with line and column
/// Source  jinja2.lexer
Result<std::vector<Token>> lex(std::string_view source);

}  // namespace luna::text::jinja
