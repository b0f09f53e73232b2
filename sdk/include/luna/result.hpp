// Result<T>: a value or an Error. The member names are those of std::expected (C++23).
#pragma once

#include <luna/abi/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace luna {

/// What kind of failure it was. The values are the ABI's, so a code crosses the border unchanged.
enum class Code : std::int32_t {
  invalid_argument = LUNA_INVALID_ARGUMENT,
  not_found = LUNA_NOT_FOUND,
  corrupt = LUNA_CORRUPT,
  unsupported = LUNA_UNSUPPORTED,
  exhausted = LUNA_EXHAUSTED,
  unavailable = LUNA_UNAVAILABLE,
  cancelled = LUNA_CANCELLED,
  timeout = LUNA_TIMEOUT,
  io = LUNA_IO,
  internal = LUNA_INTERNAL,
};

/// The name of a code as it stands in messages and logs.
constexpr std::string_view code_name(Code code) {
  switch (code) {
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::not_found:
      return "not_found";
    case Code::corrupt:
      return "corrupt";
    case Code::unsupported:
      return "unsupported";
    case Code::exhausted:
      return "exhausted";
    case Code::unavailable:
      return "unavailable";
    case Code::cancelled:
      return "cancelled";
    case Code::timeout:
      return "timeout";
    case Code::io:
      return "io";
    case Code::internal:
      return "internal";
  }
  return "internal";
}

/// An expected failure. The message names what was tried, the value, what is allowed and where.
class Error {
 public:
  /// reason   a word for programs ("context_length_exceeded"), static text; empty: the code says
  /// all
  Error(Code code, std::string message, std::string_view reason = {})
      : code_(code), message_(std::move(message)), reason_(reason) {}

  [[nodiscard]] Code code() const { return code_; }
  [[nodiscard]] std::string_view reason() const { return reason_; }
  [[nodiscard]] const std::string& message() const { return message_; }

  /// The same error with `where` (a file, a tensor, a stage) put before its message.
  [[nodiscard]] Error in(std::string_view where) const& {
    return {code_, std::string(where) + ": " + message_, reason_};
  }

  friend bool operator==(const Error&, const Error&) = default;

 private:
  Code code_;
  std::string message_;
  std::string_view reason_;
};

/// A value of type T, or the Error that kept it from being made.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  using error_type = Error;

  // Implicit on purpose: `return value;` and `return Error{...};` are how a function answers.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  [[nodiscard]] T& value() & { return *std::get_if<0>(&state_); }
  [[nodiscard]] const T& value() const& { return *std::get_if<0>(&state_); }
  [[nodiscard]] T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  [[nodiscard]] T& operator*() & { return value(); }
  [[nodiscard]] const T& operator*() const& { return value(); }
  [[nodiscard]] T&& operator*() && { return std::move(*this).value(); }
  [[nodiscard]] T* operator->() { return std::get_if<0>(&state_); }
  [[nodiscard]] const T* operator->() const { return std::get_if<0>(&state_); }
  [[nodiscard]] Error& error() & { return *std::get_if<1>(&state_); }
  [[nodiscard]] const Error& error() const& { return *std::get_if<1>(&state_); }
  [[nodiscard]] Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, Error> state_;
};

/// Success without a value, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  using error_type = Error;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: `return Error{...};`

  [[nodiscard]] bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  void value() const {}
  [[nodiscard]] Error& error() & { return *error_; }
  [[nodiscard]] const Error& error() const& { return *error_; }
  [[nodiscard]] Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

}  // namespace luna

#define LUNA_CONCAT_INNER(a, b) a##b
#define LUNA_CONCAT(a, b) LUNA_CONCAT_INNER(a, b)

/// LUNA_TRY(expr): returns the error of a Result<void>.
/// LUNA_TRY(auto value, expr): declares `value` from a Result<T>, or returns its error.
#define LUNA_TRY_1(expr)                                              \
  do {                                                                \
    if (auto luna_try_result = (expr); !luna_try_result) [[unlikely]] \
      return std::move(luna_try_result).error();                      \
  } while (false)
#define LUNA_TRY_2(declaration, expr) \
  LUNA_TRY_NAMED(LUNA_CONCAT(luna_try_, __LINE__), declaration, expr)
#define LUNA_TRY_NAMED(name, declaration, expr) \
  auto name = (expr);                           \
  if (!name) [[unlikely]]                       \
    return std::move(name).error();             \
  declaration = std::move(name).value()
#define LUNA_TRY_PICK(_1, _2, pick, ...) pick
#define LUNA_TRY(...) LUNA_TRY_PICK(__VA_ARGS__, LUNA_TRY_2, LUNA_TRY_1)(__VA_ARGS__)
