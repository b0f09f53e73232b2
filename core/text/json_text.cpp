#include "core/text/json_text.hpp"

#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

namespace luna::text {
namespace {

namespace json = boost::json;

/// Builds a value as the parser of Boost.JSON does, but reads real numbers by std::from_chars.
class Handler {
 public:
  static constexpr std::size_t max_object_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_array_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_key_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_string_size = std::numeric_limits<std::size_t>::max();
  using Failure = boost::system::error_code;
  using Text = json::string_view;

  Handler() { stack_.reset(); }
  json::value take() { return stack_.release(); }

  bool on_document_begin(Failure&) { return true; }
  bool on_document_end(Failure&) { return true; }
  bool on_object_begin(Failure&) { return true; }
  bool on_object_end(std::size_t n, Failure&) { return stack_.push_object(n), true; }
  bool on_array_begin(Failure&) { return true; }
  bool on_array_end(std::size_t n, Failure&) { return stack_.push_array(n), true; }
  bool on_key_part(Text part, std::size_t, Failure&) { return stack_.push_chars(part), true; }
  bool on_key(Text part, std::size_t, Failure&) { return stack_.push_key(part), true; }
  bool on_string_part(Text part, std::size_t, Failure&) { return stack_.push_chars(part), true; }
  bool on_string(Text part, std::size_t, Failure&) { return stack_.push_string(part), true; }
  bool on_number_part(Text part, Failure&) {
    return number_.append(part.data(), part.size()), true;
  }
  bool on_int64(std::int64_t value, Text, Failure&) {
    number_.clear();
    return stack_.push_int64(value), true;
  }
  bool on_uint64(std::uint64_t value, Text, Failure&) {
    number_.clear();
    return stack_.push_uint64(value), true;
  }
  bool on_double(double value, Text part, Failure& failure) {
    number_.append(part.data(), part.size());
    if (number_.find_first_of(".eE") == std::string::npos) {
      failure = json::error::not_exact;
      return false;
    }
    // What is out of range stays what Boost made of it: infinite or zero.
    std::from_chars(number_.data(), number_.data() + number_.size(), value);
    number_.clear();
    return stack_.push_double(value), true;
  }
  bool on_bool(bool value, Failure&) { return stack_.push_bool(value), true; }
  bool on_null(Failure&) { return stack_.push_null(), true; }
  bool on_comment_part(Text, Failure&) { return true; }
  bool on_comment(Text, Failure&) { return true; }

 private:
  json::value_stack stack_;
  std::string number_;
};

}  // namespace

Result<void> parse_json(std::string_view text, json::value& out, std::size_t depth_max) {
  json::parse_options options;
  options.max_depth = depth_max;
  json::basic_parser<Handler> parser{options};
  boost::system::error_code failure;
  const std::size_t n = parser.write_some(false, text.data(), text.size(), failure);
  if (!failure && text.find_first_not_of(" \t\r\n", n) != std::string_view::npos) {
    failure = json::error::extra_data;
  }
  if (failure) {
    return Error{Code::corrupt,
                 "not valid JSON at byte " + std::to_string(n) + ": " + failure.message()};
  }
  out = parser.handler().take();
  return {};
}

void append_json_string(std::string& out, std::string_view text) {
  const auto must_escape = [](char c) {
    return static_cast<unsigned char>(c) < 0x20U || c == '"' || c == '\\';
  };
  out += '"';
  while (!text.empty()) {
    const auto plain_end = std::find_if(text.begin(), text.end(), must_escape);
    const auto n_plain = static_cast<std::size_t>(plain_end - text.begin());
    out += text.substr(0, n_plain);
    text.remove_prefix(n_plain);
    if (text.empty()) break;
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
    const auto at = kShort.find(text.front());
    out += '\\';
    if (at != std::string_view::npos) {
      out += "\"\\bfnrt"[at];
    } else {
      const auto byte = static_cast<unsigned char>(text.front());
      out += "u00";
      out += "0123456789abcdef"[byte >> 4U];
      out += "0123456789abcdef"[byte & 15U];
    }
    text.remove_prefix(1);
  }
  out += '"';
}

}  // namespace luna::text
