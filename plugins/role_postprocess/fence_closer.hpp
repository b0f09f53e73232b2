// Closes a code fence that the text leaves open.
#pragma once

#include "text_filter.hpp"

#include <cstdint>

namespace luna::postprocess {

/// Follows the fences of a Markdown text and, if one is open at its end, adds the closing line.
/// Holds nothing back: the state of the current line is a few numbers.
///
/// Source  CommonMark 0.31, section 4.5
class FenceCloser final : public TextFilter {
 public:
  void push(std::string_view piece, std::string& out) override;
  void finish(std::string& out) override;

 private:
  enum class Part : std::uint8_t { indent, marks, rest, other };
  struct Line {
    Part part = Part::indent;
    std::uint32_t n_indent = 0;
    char mark = '\0';
    std::uint64_t n_marks = 0;
    bool rest_is_blank = true;       // behind the marks
    bool rest_has_backtick = false;  // such a line is inline code, no fence
  };

  void take(char byte);
  void end_line();
  [[nodiscard]] bool is_fence_line() const;

  Line line_;
  char open_mark_ = '\0';           // of the open fence
  std::uint64_t n_open_marks_ = 0;  // 0: no fence is open
  bool at_line_start_ = true;
};

}  // namespace luna::postprocess
