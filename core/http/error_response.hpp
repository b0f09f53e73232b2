// Errors as the OpenAI API has them: the one table from Error to HTTP.
#pragma once

#include <luna/result.hpp>

#include <chrono>
#include <optional>
#include <string>

namespace luna::http {

/// An error on its way to a client. A value.
struct ApiError {
  unsigned status = 500;
  std::string type;   ///< "invalid_request_error", ...
  std::string code;   ///< "model_not_found", ...; empty: null
  std::string param;  ///< the field at fault; empty: null
  std::string message;
  std::optional<std::chrono::seconds> retry_after;
};

/// An error of a field of the request.
ApiError invalid_request(std::string param, std::string message, std::string code = {});
/// A field that is understood but not built yet.
ApiError unsupported_parameter(std::string param, std::string message);
/// queue_wait   what the queue takes to drain: when to come again, for errors that pass
ApiError to_api_error(const Error& error, std::chrono::nanoseconds queue_wait = {});

/// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);

}  // namespace luna::http
