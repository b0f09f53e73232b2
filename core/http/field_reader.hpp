// Reads the fields of a JSON object with their types and ranges; keeps the first error.
#pragma once

#include "core/http/error_response.hpp"

#include <boost/json/object.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::http {

/// Absent and null fields are the same: not given. After the reads, error() tells what was wrong
/// first. A value, used on one thread.
class FieldReader {
 public:
  explicit FieldReader(const boost::json::object& object) : object_(object) {}

  std::optional<bool> boolean(std::string_view key);
  std::optional<double> number(std::string_view key, double min, double max);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max);
  std::optional<std::string> string(std::string_view key);
  const boost::json::object* object(std::string_view key);
  const boost::json::array* array(std::string_view key);
  /// A string or a list of strings, as OpenAI's `stop`.
  std::vector<std::string> strings(std::string_view key, std::size_t n_max);

  /// The field, or nullptr when absent or null.
  [[nodiscard]] const boost::json::value* find(std::string_view key) const;
  /// Keeps `error` unless there is one already.
  void fail(ApiError error);
  [[nodiscard]] const std::optional<ApiError>& error() const { return error_; }

 private:
  void fail_type(std::string_view key, std::string_view wanted, const boost::json::value& got);
  const boost::json::object& object_;
  std::optional<ApiError> error_;
};

/// An integer in JSON: 3, 3.0, not 3.5, within int64.
std::optional<std::int64_t> as_integer(const boost::json::value& value);
/// "a string", "a number", ... for messages.
std::string_view kind_name(const boost::json::value& value);

}  // namespace luna::http
