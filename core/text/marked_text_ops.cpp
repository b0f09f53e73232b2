#include "core/text/marked_text_ops.hpp"

#include "core/text/python_text.hpp"
#include "core/text/unicode_classes.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <utf8proc.h>

namespace luna::text {
namespace {

struct CaseExpansion {
  char32_t point;
  const char* upper;
  const char* title;
};

#include "core/text/case_expansions.inc"

const CaseExpansion* expansion_of(char32_t point) {
  const auto* const found =
      std::lower_bound(std::begin(kCaseExpansions),
                       std::end(kCaseExpansions),
                       point,
                       [](const CaseExpansion& e, char32_t p) { return e.point < p; });
  return found != std::end(kCaseExpansions) && found->point == point ? found : nullptr;
}

utf8proc_int32_t signed_point(char32_t point) {
  return static_cast<utf8proc_int32_t>(point);
}

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;
constexpr char32_t kCapitalDottedI = 0x130;

bool is_cased(char32_t point) {
  return is_python_lower(point) || is_python_upper(point) ||
         utf8proc_category(signed_point(point)) == UTF8PROC_CATEGORY_LT;
}

/// Characters that the rule of the final sigma looks past.
bool is_case_ignorable(char32_t point) {
  if (point == '\'' || point == '.' || point == ':' || point == 0xB7 || point == 0x2019)
    return true;
  switch (utf8proc_category(signed_point(point))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return false;
  }
}

bool is_final_sigma(std::string_view text, std::size_t pos) {
  std::size_t before = pos;
  bool after_cased = false;
  while (before > 0 && !after_cased) {
    before = previous_char(text, before);
    const char32_t point = utf8_step(text, before).point;
    if (is_case_ignorable(point)) continue;
    if (!is_cased(point)) return false;
    after_cased = true;
  }
  if (!after_cased) return false;
  for (std::size_t at = pos + 2; at < text.size(); at += utf8_step(text, at).n_bytes) {
    const char32_t point = utf8_step(text, at).point;
    if (!is_case_ignorable(point)) return !is_cased(point);
  }
  return true;
}

void append_lower(std::string& out, std::string_view text, std::size_t pos, char32_t point) {
  if (point == kCapitalSigma && is_final_sigma(text, pos)) return append_utf8(out, kFinalSigma);
  if (point == kCapitalDottedI) {
    out += "i\xCC\x87";
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(signed_point(point))));
}

void append_upper(std::string& out, char32_t point, bool title) {
  if (const CaseExpansion* expansion = expansion_of(point)) {
    out += title ? expansion->title : expansion->upper;
    return;
  }
  const auto mapped =
      title ? utf8proc_totitle(signed_point(point)) : utf8proc_toupper(signed_point(point));
  append_utf8(out, static_cast<char32_t>(mapped));
}

bool is_in(std::string_view characters, std::string_view one) {
  return characters.find(one) != std::string_view::npos;
}

}  // namespace

bool is_python_alpha(char32_t point) {
  const auto category = utf8proc_category(signed_point(point));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_python_decimal(char32_t point) {
  return utf8proc_category(signed_point(point)) == UTF8PROC_CATEGORY_ND;
}

bool is_python_numeric(char32_t point) {
  return char_class(point) == CharClass::number;
}

bool is_python_upper(char32_t point) {
  return utf8proc_isupper(signed_point(point)) != 0;
}
bool is_python_lower(char32_t point) {
  return utf8proc_islower(signed_point(point)) != 0;
}

MarkedText with_case(const MarkedText& text, LetterCase wanted) {
  MarkedText out;
  const std::string& bytes = text.bytes();
  bool in_word = false;
  std::string mapped;
  for (std::size_t pos = 0; pos < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, pos);
    const char32_t point = step.point;
    mapped.clear();
    const bool upper =
        wanted == LetterCase::upper || (wanted == LetterCase::swapped && is_python_lower(point));
    const bool title = (wanted == LetterCase::title_words && !in_word) ||
                       (wanted == LetterCase::capital_first && pos == 0);
    const bool stays = wanted == LetterCase::swapped && !is_cased(point);
    if (stays) {
      mapped = bytes.substr(pos, step.n_bytes);
    } else if (upper || title) {
      append_upper(mapped, point, title);
    } else {
      append_lower(mapped, bytes, pos, point);
    }
    in_word = is_cased(point);
    out.append(mapped, text.trusted_at(pos));
    pos += step.n_bytes;
  }
  return out;
}

MarkedText stripped(const MarkedText& text,
                    Side side,
                    const std::optional<std::string>& characters) {
  const std::string_view bytes = text.bytes();
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  const auto goes = [&](std::size_t at) {
    const Utf8Step step = utf8_step(bytes, at);
    return characters ? is_in(*characters, bytes.substr(at, step.n_bytes))
                      : is_python_space(step.point);
  };
  if (side != Side::right) {
    while (begin < end && goes(begin))
      begin += utf8_step(bytes, begin).n_bytes;
  }
  if (side != Side::left) {
    while (end > begin && goes(previous_char(bytes, end)))
      end = previous_char(bytes, end);
  }
  return text.slice(begin, end);
}

MarkedText replaced(const MarkedText& text,
                    const MarkedText& from,
                    const MarkedText& to,
                    std::size_t n_max) {
  MarkedText out;
  const std::string& bytes = text.bytes();
  std::size_t pos = 0;
  for (std::size_t n = 0; n < n_max; ++n) {
    if (from.empty()) {  // before each character, and at the end
      out.append(to);
      if (pos >= bytes.size()) return out;
      const std::size_t next = pos + utf8_step(bytes, pos).n_bytes;
      out.append(text, pos, next);
      pos = next;
      continue;
    }
    const std::size_t at = bytes.find(from.bytes(), pos);
    if (at == std::string::npos) break;
    out.append(text, pos, at);
    out.append(to);
    pos = at + from.size();
  }
  out.append(text, pos, bytes.size());
  return out;
}

namespace {

std::vector<MarkedText> split_by_space(const MarkedText& text, std::size_t n_max) {
  std::vector<MarkedText> parts;
  const std::string_view bytes = text.bytes();
  std::size_t pos = leading_space_bytes(bytes);
  while (pos < bytes.size()) {
    if (parts.size() == n_max) {
      parts.push_back(text.slice(pos, bytes.size() - trailing_space_bytes(bytes)));
      break;
    }
    std::size_t end = pos;
    while (end < bytes.size() && !is_python_space(utf8_step(bytes, end).point)) {
      end += utf8_step(bytes, end).n_bytes;
    }
    parts.push_back(text.slice(pos, end));
    pos = end + leading_space_bytes(bytes.substr(end));
  }
  return parts;
}

std::vector<MarkedText> split_by_space_from_right(const MarkedText& text, std::size_t n_max) {
  std::vector<MarkedText> parts;
  const std::string_view bytes = text.bytes();
  std::size_t end = bytes.size() - trailing_space_bytes(bytes);
  while (end > 0) {
    if (parts.size() == n_max) {
      parts.push_back(text.slice(leading_space_bytes(bytes), end));
      break;
    }
    std::size_t begin = end;
    while (begin > 0 && !is_python_space(utf8_step(bytes, previous_char(bytes, begin)).point)) {
      begin = previous_char(bytes, begin);
    }
    parts.push_back(text.slice(begin, end));
    end = begin - trailing_space_bytes(bytes.substr(0, begin));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::vector<MarkedText> split(const MarkedText& text,
                              const std::optional<std::string>& separator,
                              std::size_t n_max,
                              Side from) {
  if (!separator) {
    return from == Side::right ? split_by_space_from_right(text, n_max)
                               : split_by_space(text, n_max);
  }
  std::vector<MarkedText> parts;
  const std::string& bytes = text.bytes();
  if (from == Side::right) {
    std::size_t end = bytes.size();
    while (parts.size() < n_max && end >= separator->size()) {
      const std::size_t at = bytes.rfind(*separator, end - separator->size());
      if (at == std::string::npos) break;
      parts.push_back(text.slice(at + separator->size(), end));
      end = at;
    }
    parts.push_back(text.slice(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  std::size_t pos = 0;
  while (parts.size() < n_max) {
    const std::size_t at = bytes.find(*separator, pos);
    if (at == std::string::npos) break;
    parts.push_back(text.slice(pos, at));
    pos = at + separator->size();
  }
  parts.push_back(text.slice(pos, bytes.size()));
  return parts;
}

std::vector<MarkedText> split_lines(const MarkedText& text, bool keeps_ends) {
  std::vector<MarkedText> lines;
  const std::string_view bytes = text.bytes();
  std::size_t begin = 0;
  for (std::size_t pos = 0; pos < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, pos);
    std::size_t next = pos + step.n_bytes;
    if (is_python_line_end(step.point)) {
      if (step.point == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      lines.push_back(text.slice(begin, keeps_ends ? next : pos));
      begin = next;
    }
    pos = next;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

MarkedText reversed(const MarkedText& text) {
  MarkedText out;
  for (std::size_t end = text.size(); end > 0;) {
    const std::size_t begin = previous_char(text.bytes(), end);
    out.append(text, begin, end);
    end = begin;
  }
  return out;
}

MarkedText padded(const MarkedText& text,
                  const MarkedText& fill,
                  std::size_t n_before,
                  std::size_t n_after) {
  MarkedText out;
  for (std::size_t i = 0; i < n_before; ++i)
    out.append(fill);
  out.append(text);
  for (std::size_t i = 0; i < n_after; ++i)
    out.append(fill);
  return out;
}

std::size_t n_chars(const MarkedText& text) {
  return char_positions(text.bytes()).size() - 1;
}

}  // namespace luna::text
