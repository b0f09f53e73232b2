// POST /v1/chat/completions and /v1/completions, streamed or whole.
#pragma once

#include "core/http/exchange.hpp"
#include "core/pipeline/request.hpp"

#include <boost/asio/awaitable.hpp>

namespace luna::http {

/// Answers the exchange's request. A client that goes away cancels its work. [io]
boost::asio::awaitable<void> handle_completion(Exchange& exchange, pipeline::Endpoint endpoint);

}  // namespace luna::http
