// Method and path to handler; keys and cross-origin rules come first.
#pragma once

#include "core/http/exchange.hpp"

#include <boost/asio/awaitable.hpp>

namespace luna::http {

/// Answers one request, whatever it asks. [io]
boost::asio::awaitable<void> route(Exchange& exchange);

}  // namespace luna::http
