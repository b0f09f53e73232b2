// What the parts of an endpoint that make connections share.
#pragma once

#include "greeting.hpp"
#include "options.hpp"
#include "tls.hpp"

#include <luna/plugin.hpp>

#include <boost/asio/io_context.hpp>

#include <exception>
#include <string>

namespace luna::tcp {

/// An endpoint's means; it owns them and outlives the others.
struct Site {
  asio::io_context& context;
  const Options& options;
  const Token& token;
  SSL_CTX* ssl = nullptr;  ///< null: no TLS
  const Address& self;
  Host host;

  [[nodiscard]] Greeter greeter() const { return {token, self}; }
};

/// For co_spawn: logs what a library has thrown out of a coroutine.
inline auto log_thrown(Host host, std::string what) {
  return [host, what = std::move(what)](const std::exception_ptr& thrown) {
    if (thrown == nullptr) return;
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      host.log(LUNA_LOG_ERROR, what + " ended by an exception: " + e.what());
    }
  };
}

}  // namespace luna::tcp
