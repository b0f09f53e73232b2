#include "core/text/normalizer.hpp"

#include "core/text/utf8.hpp"

#include <cstdlib>
#include <utf8proc.h>

namespace luna::text {
namespace {

// Below U+0300 nothing combines, and all characters are composed already.
constexpr char32_t kFirstCombining = 0x300;

Result<void> append_nfc(std::string_view valid, std::string& out) {
  if (is_surely_nfc(valid)) {
    out += valid;
    return {};
  }
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t n_bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                   static_cast<utf8proc_ssize_t>(valid.size()),
                   &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (n_bytes < 0) {
    std::free(composed);
    return Error{Code::exhausted, std::string("normalising text: ") + utf8proc_errmsg(n_bytes)};
  }
  out.append(reinterpret_cast<const char*>(composed), static_cast<std::size_t>(n_bytes));
  std::free(composed);
  return {};
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    if (step.valid && step.point >= kFirstCombining) return false;
    pos += step.n_bytes;
  }
  return true;
}

Result<std::string> to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t begin = 0;  // of the valid stretch that is being read
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    if (!step.valid) {
      LUNA_TRY(append_nfc(text.substr(begin, pos - begin), out));
      out.push_back(text[pos]);
      begin = pos + 1;
    }
    pos += step.n_bytes;
  }
  LUNA_TRY(append_nfc(text.substr(begin), out));
  return out;
}

}  // namespace luna::text
