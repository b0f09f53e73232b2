// Trimming, and the limit on characters.
#pragma once

#include "text_filter.hpp"

#include <cstdint>

namespace luna::postprocess {

inline constexpr std::string_view kWhitespace = " \t\n\r\v\f";

/// Drops whitespace at the beginning. Holds nothing back.
class LeadingTrim final : public TextFilter {
 public:
  void push(std::string_view piece, std::string& out) override;
  void finish(std::string& out) override;

 private:
  bool begun_ = false;
};

/// Drops whitespace at the end. Holds back a run of whitespace until something follows it.
class TrailingTrim final : public TextFilter {
 public:
  void push(std::string_view piece, std::string& out) override;
  void finish(std::string& out) override;

 private:
  std::string held_;
};

/// Cuts after so many characters (code points). Full as soon as one more has come.
class CharLimit final : public TextFilter {
 public:
  explicit CharLimit(std::uint64_t n_chars_max) : n_left_(n_chars_max) {}
  void push(std::string_view piece, std::string& out) override;
  void finish(std::string& out) override;
  [[nodiscard]] bool is_full() const override { return is_full_; }

 private:
  std::uint64_t n_left_;
  bool is_full_ = false;
};

}  // namespace luna::postprocess
