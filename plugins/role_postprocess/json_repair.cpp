#include "json_repair.hpp"

#include <algorithm>

namespace luna::postprocess {
namespace {

bool is_json_space(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

constexpr std::size_t kUnicodeEscapeBytes = 6;  // \u and four digits

}  // namespace

void JsonRepair::push(std::string_view piece, std::string& out) {
  for (const char byte : piece)
    take(byte, out);
}

void JsonRepair::take(char byte, std::string& out) {
  switch (mode_) {
    case Mode::before:
      if (!is_json_space(byte)) {
        mode_ = byte == '{' || byte == '[' ? Mode::value : Mode::as_is;
        if (mode_ == Mode::value) return take_value(byte, out);
      }
      out += byte;
      return;
    case Mode::value:
      return take_value(byte, out);
    case Mode::string:
      return take_string(byte, out);
    case Mode::escape:
      return take_escape(byte, out);
    case Mode::after_comma:
      if (is_json_space(byte)) {
        held_ += byte;
        return;
      }
      if (byte == '}' || byte == ']') held_.erase(0, 1);
      out += held_;
      held_.clear();
      mode_ = Mode::value;
      return take_value(byte, out);
    case Mode::as_is:
      out += byte;
      return;
  }
}

void JsonRepair::take_value(char byte, std::string& out) {
  if (byte == ',') {
    held_ = byte;
    mode_ = Mode::after_comma;
    return;
  }
  out += byte;
  if (byte == '"') mode_ = Mode::string;
  if (byte == '{') closers_ += '}';
  if (byte == '[') closers_ += ']';
  if (byte == '}' || byte == ']') close(byte);
}

void JsonRepair::close(char byte) {
  if (closers_.empty() || closers_.back() != byte) {
    closers_.clear();
    mode_ = Mode::as_is;
    return;
  }
  closers_.pop_back();
  if (closers_.empty()) mode_ = Mode::as_is;  // what follows the value is no part of it
}

void JsonRepair::take_string(char byte, std::string& out) {
  if (byte == '\\') {
    held_ = byte;
    mode_ = Mode::escape;
    return;
  }
  out += byte;
  if (byte == '"') mode_ = Mode::value;
}

void JsonRepair::take_escape(char byte, std::string& out) {
  held_ += byte;
  const bool is_whole = held_[1] != 'u' || held_.size() == kUnicodeEscapeBytes;
  // A quote inside \uXXXX is an error of the text, not the end of the string by our doing.
  if (!is_whole && byte != '"') return;
  out += held_;
  mode_ = byte == '"' && held_.size() > 2 ? Mode::value : Mode::string;
  held_.clear();
}

void JsonRepair::finish(std::string& out) {
  if (mode_ == Mode::before || mode_ == Mode::as_is) return;
  if (mode_ == Mode::after_comma) out += std::string_view(held_).substr(1);
  if (mode_ == Mode::string || mode_ == Mode::escape) out += '"';
  std::reverse(closers_.begin(), closers_.end());
  out += closers_;
  closers_.clear();
  held_.clear();
  mode_ = Mode::as_is;
}

}  // namespace luna::postprocess
