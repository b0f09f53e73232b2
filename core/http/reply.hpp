// A whole answer, before it is written to a connection.
#pragma once

#include "core/http/error_response.hpp"

#include <string>
#include <utility>
#include <vector>

namespace luna::http {

struct Reply {
  unsigned status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

/// The reply that carries an error, with Retry-After where a client should come again.
inline Reply error_reply(const ApiError& error) {
  Reply reply;
  reply.status = error.status;
  reply.body = error_body(error);
  if (error.retry_after)
    reply.headers.emplace_back("retry-after", std::to_string(error.retry_after->count()));
  return reply;
}

}  // namespace luna::http
