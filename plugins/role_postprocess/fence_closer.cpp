#include "fence_closer.hpp"

namespace luna::postprocess {
namespace {

constexpr std::uint32_t kIndentMax = 3;  // four blanks make indented code
constexpr std::uint64_t kMarksMin = 3;

}  // namespace

void FenceCloser::push(std::string_view piece, std::string& out) {
  for (const char byte : piece)
    take(byte);
  out += piece;
}

void FenceCloser::take(char byte) {
  if (byte == '\n') {
    end_line();
    at_line_start_ = true;
    return;
  }
  at_line_start_ = false;
  if (line_.part == Part::indent) {
    if (byte == ' ' && line_.n_indent < kIndentMax) {
      ++line_.n_indent;
      return;
    }
    line_.part = byte == '`' || byte == '~' ? Part::marks : Part::other;
    line_.mark = byte;
  }
  if (line_.part == Part::marks) {
    if (byte == line_.mark) {
      ++line_.n_marks;
      return;
    }
    line_.part = Part::rest;
  }
  if (line_.part == Part::rest) {
    if (byte != ' ' && byte != '\t' && byte != '\r') line_.rest_is_blank = false;
    if (byte == '`') line_.rest_has_backtick = true;
  }
}

bool FenceCloser::is_fence_line() const {
  if (line_.n_marks < kMarksMin) return false;
  if (n_open_marks_ > 0) {
    return line_.mark == open_mark_ && line_.n_marks >= n_open_marks_ && line_.rest_is_blank;
  }
  return line_.mark == '~' || !line_.rest_has_backtick;
}

void FenceCloser::end_line() {
  if (is_fence_line()) {
    const bool closes = n_open_marks_ > 0;
    n_open_marks_ = closes ? 0 : line_.n_marks;
    open_mark_ = line_.mark;
  }
  line_ = {};
}

void FenceCloser::finish(std::string& out) {
  end_line();  // the last line may be a fence without a line break behind it
  if (n_open_marks_ == 0) return;
  if (!at_line_start_) out += '\n';
  out.append(n_open_marks_, open_mark_);
  n_open_marks_ = 0;
}

}  // namespace luna::postprocess
