// TLS between endpoints: both sides show a certificate.
#pragma once

#include "handshake.hpp"
#include "options.hpp"

#include <luna/result.hpp>

#include <openssl/ssl.h>

#include <memory>

namespace luna::tcp {

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslContext = std::unique_ptr<SSL_CTX, FreeSsl>;
using Ssl = std::unique_ptr<SSL, FreeSsl>;

/// Reads certificate, key and authority. TLS 1.3 only, no tickets, peers must show a certificate
/// that the authority signed. [start-up]
/// Errors   invalid_argument: a file that cannot be read or does not fit, in OpenSSL's words
Result<SslContext> make_ssl_context(const TlsFiles& files);

/// The state of one connection over a connected socket; the handshake happens with the first bytes.
Result<Ssl> make_ssl(SSL_CTX& context, int socket, Side side);

/// OpenSSL's words on what went wrong last on this thread; empties its queue.
std::string last_ssl_error();

}  // namespace luna::tcp
