#include "core/http/error_response.hpp"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <utility>

namespace luna::http {
namespace {

namespace json = boost::json;

// Retry-After counts in seconds; a client that waits longer than a minute finds another server.
constexpr std::chrono::seconds kRetryAfterMin{1};
constexpr std::chrono::seconds kRetryAfterMax{60};

struct Row {
  Code code;
  unsigned status;
  const char* type;
  const char* api_code;
  bool retry;
};

constexpr Row kRows[] = {
    {Code::invalid_argument, 400, "invalid_request_error", "", false},
    {Code::not_found, 404, "invalid_request_error", "model_not_found", false},
    {Code::corrupt, 400, "invalid_request_error", "", false},
    {Code::unsupported, 400, "invalid_request_error", "unsupported_parameter", false},
    {Code::exhausted, 429, "rate_limit_error", "rate_limit_exceeded", true},
    {Code::unavailable, 503, "overloaded_error", "overloaded", true},
    {Code::cancelled, 499, "invalid_request_error", "cancelled", false},
    {Code::timeout, 408, "timeout_error", "timeout", false},
    {Code::io, 500, "server_error", "server_error", false},
    {Code::internal, 500, "server_error", "server_error", false},
};

// Messages quote what the client sent; a name of megabytes need not come back whole.
constexpr std::size_t kMessageBytesMax = 2000;

std::string shortened(const std::string& message) {
  if (message.size() <= kMessageBytesMax) return message;
  std::size_t end = kMessageBytesMax;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0U) == 0x80U)
    --end;  // never inside a character
  return message.substr(0, end) + " ...";
}

json::value or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

}  // namespace

ApiError invalid_request(std::string param, std::string message, std::string code) {
  return {400, "invalid_request_error", std::move(code), std::move(param), std::move(message), {}};
}

ApiError unsupported_parameter(std::string param, std::string message) {
  return invalid_request(std::move(param), std::move(message), "unsupported_parameter");
}

ApiError to_api_error(const Error& error, std::chrono::nanoseconds queue_wait) {
  for (const Row& row : kRows) {
    if (row.code != error.code()) continue;
    ApiError answer{row.status, row.type, row.api_code, "", error.message(), {}};
    if (!error.reason().empty()) answer.code = error.reason();
    if (row.retry) {
      answer.retry_after = std::clamp(
          std::chrono::ceil<std::chrono::seconds>(queue_wait), kRetryAfterMin, kRetryAfterMax);
    }
    return answer;
  }
  return {500, "server_error", "server_error", "", error.message(), {}};
}

std::string error_body(const ApiError& error) {
  json::object inner;
  inner["message"] = shortened(error.message);
  inner["type"] = error.type;
  inner["param"] = or_null(shortened(error.param));
  inner["code"] = or_null(error.code);
  json::object outer;
  outer["error"] = std::move(inner);
  return json::serialize(outer);
}

}  // namespace luna::http
