// Values as they lie in a frame: little-endian, in order, texts and lists behind their lengths.
#pragma once

#include "core/base/assert.hpp"

#include <luna/result.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace luna::cluster {

static_assert(std::endian::native == std::endian::little, "arrays go over the wire as they lie");

using Bytes = std::vector<std::byte>;

/// Of what goes wrong elsewhere: a message that is longer is cut off.
inline constexpr std::size_t kMessageBytesMax = std::size_t{64} * 1024;

/// Appends values. The caller owns the bytes.
class WireWriter {
 public:
  explicit WireWriter(Bytes& bytes) : bytes_(bytes) {}

  template <typename Number>
  void number(Number value) {
    static_assert(std::is_arithmetic_v<Number>);
    append(&value, sizeof(value));
  }
  void flag(bool value) { number(static_cast<std::uint8_t>(value ? 1 : 0)); }
  void text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    append(value.data(), value.size());
  }
  /// Nothing, or what went wrong.
  void result(const Result<void>& value) {
    number(value ? std::int32_t{0} : static_cast<std::int32_t>(value.error().code()));
    text(value ? std::string_view()
               : std::string_view(value.error().message()).substr(0, kMessageBytesMax));
  }
  /// n values without their number, which stands elsewhere.
  template <typename T>
  void array(const T* values, std::size_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(values, n * sizeof(T));
  }
  void raw(std::span<const std::byte> value) { append(value.data(), value.size()); }

 private:
  void append(const void* from, std::size_t n) {
    LUNA_VERIFY(n <= kAppendMax);
    if (n == 0) return;
    const std::size_t begin = bytes_.size();
    bytes_.resize(begin + n);
    std::memcpy(bytes_.data() + begin, from, n);
  }
  // Longer than anything that is sent; said so that the compiler knows that nothing wraps.
  static constexpr std::size_t kAppendMax = std::size_t{1} << 40U;

  Bytes& bytes_;
};

/// Takes values in order. What is missing or too long makes it fail, for good: everything it gives
/// then is zero or empty, and finish() says what was wrong. Nothing is allocated beyond the bytes
/// that are there.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename Number>
  Number number() {
    static_assert(std::is_arithmetic_v<Number>);
    Number value{};
    take(&value, sizeof(value));
    return value;
  }
  bool flag() {
    const auto value = number<std::uint8_t>();
    if (value > 1) fail("a flag of " + std::to_string(value));
    return value == 1;
  }
  /// Of at most n_max bytes.
  std::string text(std::size_t n_max) {
    const std::size_t n = count(n_max);
    if (n > left()) fail("a text that is cut off");
    std::string value(failed() ? 0 : n, '\0');
    take(value.data(), value.size());
    return value;
  }
  /// An error of a code that is not known here is an internal one.
  Result<void> result() {
    const auto code = number<std::int32_t>();
    std::string message = text(kMessageBytesMax);
    if (code == 0) return {};
    const bool is_known = code >= static_cast<std::int32_t>(Code::internal) &&
                          code <= static_cast<std::int32_t>(Code::invalid_argument);
    return Error{is_known ? static_cast<Code>(code) : Code::internal, std::move(message)};
  }
  /// The length of a list: at most n_max.
  std::uint32_t count(std::size_t n_max) {
    const auto n = number<std::uint32_t>();
    if (n > n_max) fail("a length of " + std::to_string(n) + ": at most " + std::to_string(n_max));
    return failed() ? 0 : n;
  }
  /// n values into `values`, which is made that long.
  template <typename T>
  void array(std::vector<T>& values, std::uint64_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (n > left() / sizeof(T)) fail("an array that is cut off");
    values.resize(failed() ? 0 : static_cast<std::size_t>(n));
    take(values.data(), values.size() * sizeof(T));
  }
  template <std::size_t N>
  void raw(std::span<std::byte, N> into) {
    take(into.data(), into.size());
  }
  /// All that is left.
  std::span<const std::byte> rest() {
    const auto all = bytes_.subspan(at_);
    at_ = bytes_.size();
    return all;
  }

  [[nodiscard]] bool failed() const { return !what_.empty(); }
  /// What the caller found wrong with a value.
  void fail(std::string what) {
    if (what_.empty()) what_ = std::move(what);
    at_ = bytes_.size();
  }
  /// Errors  corrupt: what was wrong first, or bytes that are left
  [[nodiscard]] Result<void> finish() const {
    if (failed()) return Error{Code::corrupt, what_};
    if (left() != 0) return Error{Code::corrupt, std::to_string(left()) + " bytes too many"};
    return {};
  }

 private:
  [[nodiscard]] std::size_t left() const { return bytes_.size() - at_; }
  void take(void* into, std::size_t n) {
    if (n > left()) fail("it is cut off");
    if (failed() || n == 0) return;
    std::memcpy(into, bytes_.data() + at_, n);
    at_ += n;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::string what_;
};

}  // namespace luna::cluster
