#include "core/text/marked_text.hpp"

#include <algorithm>
#include <utility>

namespace luna::text {

MarkedText::MarkedText(std::string bytes, bool trusted) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) marks_.push_back({0, trusted});
}

std::size_t MarkedText::mark_at(std::size_t pos) const {
  const auto after = std::upper_bound(
      marks_.begin(), marks_.end(), pos, [](std::size_t p, const Mark& m) { return p < m.begin; });
  return static_cast<std::size_t>(after - marks_.begin()) - 1;
}

bool MarkedText::trusted_at(std::size_t pos) const {
  return marks_[mark_at(pos)].trusted;
}

bool MarkedText::all_trusted() const {
  return marks_.empty() || (marks_.size() == 1 && marks_[0].trusted);
}

void MarkedText::mark_end(bool trusted) {
  if (marks_.empty() || marks_.back().trusted != trusted)
    marks_.push_back({bytes_.size(), trusted});
}

void MarkedText::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  mark_end(trusted);
  bytes_ += bytes;
}

void MarkedText::append(const MarkedText& other, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  for (std::size_t i = other.mark_at(begin); i < other.marks_.size(); ++i) {
    const std::size_t from = std::max(begin, other.marks_[i].begin);
    if (from >= end) break;
    const std::size_t next = i + 1 < other.marks_.size() ? other.marks_[i + 1].begin : other.size();
    const bool trusted = other.marks_[i].trusted;
    append(std::string_view(other.bytes_).substr(from, std::min(next, end) - from), trusted);
  }
}

MarkedText MarkedText::slice(std::size_t begin, std::size_t end) const {
  MarkedText part;
  part.append(*this, begin, end);
  return part;
}

std::vector<TextRun> MarkedText::runs() const {
  std::vector<TextRun> runs;
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    const std::size_t end = i + 1 < marks_.size() ? marks_[i + 1].begin : bytes_.size();
    runs.push_back({bytes_.substr(marks_[i].begin, end - marks_[i].begin), marks_[i].trusted});
  }
  return runs;
}

}  // namespace luna::text
