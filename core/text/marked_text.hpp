// Text of a template while it is made: bytes, each of which remembers whether it may be trusted.
#pragma once

#include "core/text/text_run.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace luna::text {

/// A value. Trusted bytes came from the template, the others from a request; every operation on
/// text keeps this, so that a client's words stay a client's through filters, slices and joins.
class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string bytes, bool trusted);

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  [[nodiscard]] bool trusted_at(std::size_t pos) const;
  [[nodiscard]] bool all_trusted() const;

  void append(std::string_view bytes, bool trusted);
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  /// Appends the bytes `begin` to `end` of another text.
  void append(const MarkedText& other, std::size_t begin, std::size_t end);
  [[nodiscard]] MarkedText slice(std::size_t begin, std::size_t end) const;

  /// The text as runs of one origin each.
  [[nodiscard]] std::vector<TextRun> runs() const;

 private:
  struct Mark {
    std::size_t begin;
    bool trusted;
  };
  /// Index of the mark that holds for `pos`, which is inside the text.
  [[nodiscard]] std::size_t mark_at(std::size_t pos) const;
  void mark_end(bool trusted);

  std::string bytes_;
  std::vector<Mark> marks_;  // ascending, neighbours differ, the first begins at 0
};

}  // namespace luna::text
