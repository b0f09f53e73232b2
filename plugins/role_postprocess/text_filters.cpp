#include "text_filters.hpp"

namespace luna::postprocess {
namespace {

/// Bytes 10xxxxxx continue a character; every other byte begins one.
bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
}

}  // namespace

void LeadingTrim::push(std::string_view piece, std::string& out) {
  if (!begun_) {
    const std::size_t first = piece.find_first_not_of(kWhitespace);
    if (first == std::string_view::npos) return;
    piece.remove_prefix(first);
    begun_ = true;
  }
  out += piece;
}

void LeadingTrim::finish(std::string& /*out*/) {}

void TrailingTrim::push(std::string_view piece, std::string& out) {
  const std::size_t last = piece.find_last_not_of(kWhitespace);
  if (last == std::string_view::npos) {
    held_ += piece;
    return;
  }
  out += held_;
  out += piece.substr(0, last + 1);
  held_ = piece.substr(last + 1);
}

void TrailingTrim::finish(std::string& /*out*/) {
  held_.clear();
}

void CharLimit::push(std::string_view piece, std::string& out) {
  if (is_full_) return;
  std::size_t n_taken = 0;
  while (n_taken < piece.size()) {
    if (begins_character(piece[n_taken])) {
      if (n_left_ == 0) {
        is_full_ = true;
        break;
      }
      --n_left_;
    }
    ++n_taken;
  }
  out += piece.substr(0, n_taken);
}

void CharLimit::finish(std::string& /*out*/) {}

}  // namespace luna::postprocess
