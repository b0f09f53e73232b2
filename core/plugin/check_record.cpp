#include "core/plugin/check_record.hpp"

#include "core/base/sha256.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

namespace luna::plugin {
namespace {

constexpr std::string_view kFirstLine = "lunacheck 1\n";

std::string lines_of(const CheckRecord& r) {
  std::string text(kFirstLine);
  const auto add = [&text](std::string_view word, std::string_view value) {
    text.append(word).append(" ").append(value).append("\n");
  };
  add("sha256", r.sha256);
  add("id", r.id);
  add("checker", r.checker);
  add("abi", std::to_string(r.abi_major) + "." + std::to_string(r.abi_minor));
  add("verdict", r.verdict);
  add("cases", std::to_string(r.n_cases));
  add("seed", std::to_string(r.seed));
  add("seeds", std::to_string(r.n_seeds));
  return text;
}

/// The lines of a record, one after the other, each with the word that must begin it.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  bool take(std::string_view word, std::string& value) {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos || !rest_.starts_with(word)) return false;
    std::string_view line = rest_.substr(word.size(), end - word.size());
    if (line.size() < 2 || line.front() != ' ') return false;
    line.remove_prefix(1);
    const bool is_plain = std::ranges::all_of(line, [](char c) { return c > ' ' && c <= '~'; });
    if (!is_plain) return false;
    value = line;
    rest_.remove_prefix(end + 1);
    return true;
  }
  template <typename Number>
  bool take(std::string_view word, Number& value) {
    std::string text;
    return take(word, text) && number(text, value);
  }
  bool take_abi(std::uint32_t& major, std::uint32_t& minor) {
    std::string text;
    if (!take("abi", text)) return false;
    const std::size_t dot = text.find('.');
    return dot != std::string::npos && number(std::string_view(text).substr(0, dot), major) &&
           number(std::string_view(text).substr(dot + 1), minor);
  }
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  template <typename Number>
  static bool number(std::string_view text, Number& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end == text.data() + text.size() && !text.empty();
  }

  std::string_view rest_;
};

}  // namespace

std::filesystem::path record_path(const std::filesystem::path& plugin) {
  std::filesystem::path path = plugin;
  return path.replace_extension(".lunacheck");
}

std::string print_record(const CheckRecord& record) {
  const std::string lines = lines_of(record);
  return lines + "seal " + sha256_text(std::as_bytes(std::span(lines))) + "\n";
}

Result<CheckRecord> parse_record(std::string_view text) {
  const Error broken{Code::corrupt, "is not a record of `luna plugins check`"};
  if (text.size() > kCheckRecordBytesMax || !text.starts_with(kFirstLine)) return broken;
  Lines lines(text.substr(kFirstLine.size()));
  CheckRecord r;
  std::string seal;
  const bool is_read =
      lines.take("sha256", r.sha256) && lines.take("id", r.id) &&
      lines.take("checker", r.checker) && lines.take_abi(r.abi_major, r.abi_minor) &&
      lines.take("verdict", r.verdict) && lines.take("cases", r.n_cases) &&
      lines.take("seed", r.seed) && lines.take("seeds", r.n_seeds) && lines.take("seal", seal);
  // Written once more it must be the same to the byte, its seal too.
  if (!is_read || print_record(r) != text) return broken;
  return r;
}

std::string_view program_version() {
  return LUNA_VERSION;
}

std::string sha256_text(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hex_of(hash.finish());
}

}  // namespace luna::plugin
