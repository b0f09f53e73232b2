#include "core/http/field_reader.hpp"

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include <cmath>
#include <cstdio>
#include <utility>

namespace luna::http {
namespace {

namespace json = boost::json;

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.10g", value);
  return text;
}

std::string range_message(std::string_view key, double value, double min, double max) {
  return "'" + std::string(key) + "' is " + number_text(value) + ": must be between " +
         number_text(min) + " and " + number_text(max);
}

}  // namespace

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "a value";
}

std::optional<std::int64_t> as_integer(const json::value& value) {
  if (const auto* i = value.if_int64()) return *i;
  if (const auto* d = value.if_double()) {
    // Doubles hold integers exactly up to 2^53; beyond, "integer" has no meaning.
    if (std::nearbyint(*d) == *d && std::fabs(*d) <= 0x1p53) return static_cast<std::int64_t>(*d);
  }
  return std::nullopt;
}

const json::value* FieldReader::find(std::string_view key) const {
  const auto* value = object_.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void FieldReader::fail_type(std::string_view key, std::string_view wanted, const json::value& got) {
  fail(invalid_request(std::string(key),
                       "'" + std::string(key) + "' must be " + std::string(wanted) + ", not " +
                           std::string(kind_name(got)),
                       "invalid_type"));
}

std::optional<bool> FieldReader::boolean(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const bool* b = value->if_bool()) return *b;
  fail_type(key, "a boolean", *value);
  return std::nullopt;
}

std::optional<double> FieldReader::number(std::string_view key, double min, double max) {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    fail_type(key, "a number", *value);
    return std::nullopt;
  }
  const double number = value->to_number<double>();
  if (!(number >= min && number <= max)) {
    fail(invalid_request(std::string(key), range_message(key, number, min, max)));
    return std::nullopt;
  }
  return number;
}

std::optional<std::int64_t> FieldReader::integer(std::string_view key,
                                                 std::int64_t min,
                                                 std::int64_t max) {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    fail_type(key, "an integer", *value);
    return std::nullopt;
  }
  const auto number = as_integer(*value);
  if (!number) {
    fail(invalid_request(std::string(key),
                         "'" + std::string(key) + "' must be an integer within 64 bits"));
    return std::nullopt;
  }
  if (*number < min || *number > max) {
    fail(invalid_request(std::string(key),
                         "'" + std::string(key) + "' is " + std::to_string(*number) +
                             ": must be between " + std::to_string(min) + " and " +
                             std::to_string(max)));
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> FieldReader::string(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* s = value->if_string()) return std::string(*s);
  fail_type(key, "a string", *value);
  return std::nullopt;
}

const json::object* FieldReader::object(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return nullptr;
  if (const auto* o = value->if_object()) return o;
  fail_type(key, "an object", *value);
  return nullptr;
}

const json::array* FieldReader::array(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return nullptr;
  if (const auto* a = value->if_array()) return a;
  fail_type(key, "an array", *value);
  return nullptr;
}

std::vector<std::string> FieldReader::strings(std::string_view key, std::size_t n_max) {
  const json::value* value = find(key);
  if (value == nullptr) return {};
  std::vector<std::string> result;
  const auto add = [&](const json::value& element) {
    const auto* s = element.if_string();
    if (s == nullptr) return fail_type(key, "a string or a list of strings", element);
    if (s->empty())
      return fail(
          invalid_request(std::string(key), "'" + std::string(key) + "' holds an empty string"));
    result.emplace_back(*s);
  };
  if (const auto* list = value->if_array()) {
    if (list->size() > n_max)
      fail(invalid_request(std::string(key),
                           "'" + std::string(key) + "' has " + std::to_string(list->size()) +
                               " entries: at most " + std::to_string(n_max)));
    else
      for (const json::value& element : *list)
        add(element);
  } else {
    add(*value);
  }
  return result;
}

}  // namespace luna::http
