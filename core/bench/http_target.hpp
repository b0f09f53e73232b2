// A server that speaks OpenAI's API, over plain HTTP.
#pragma once

#include "core/bench/target.hpp"

#include <luna/result.hpp>

#include <boost/json/object.hpp>

#include <chrono>
#include <string>
#include <string_view>

namespace luna::bench {

struct HttpTargetOptions {
  std::string host;
  std::string port;
  std::string base_path;                       ///< "/v1"
  std::string model;                           ///< as requests name it
  std::string api_key;                         ///< empty: none is sent
  boost::json::object body;                    ///< fields added to each request's body
  std::chrono::milliseconds timeout{300'000};  ///< of a whole request
};

/// Host, port and base path of a URL; "/v1" is the path of a URL without one.
/// Errors  invalid_argument; unsupported (https)
Result<HttpTargetOptions> parse_base_url(std::string_view url);

/// The body that asks for a prompt's streamed completion with its usage, greedy.
std::string request_body(const Prompt& prompt, const HttpTargetOptions& options);

/// Asks the server for its first model's name. Blocks. [main]
/// Errors  io, unavailable (an answer other than 200), corrupt
Result<std::string> first_model(const HttpTargetOptions& options);

/// Connections are kept and used again.
TargetFactory http_target(HttpTargetOptions options);

}  // namespace luna::bench
