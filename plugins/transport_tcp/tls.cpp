#include "tls.hpp"

#include <openssl/err.h>

#include <string>

namespace luna::tcp {

std::string last_ssl_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  char text[256];
  ERR_error_string_n(code, text, sizeof(text));
  return text;
}

Result<SslContext> make_ssl_context(const TlsFiles& files) {
  const auto failed = [](const char* key, const std::string& file) {
    return Error{Code::invalid_argument,
                 std::string(key) + " = \"" + file + "\": " + last_ssl_error()};
  };
  ERR_clear_error();
  SslContext context(SSL_CTX_new(TLS_method()));
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1) {
    return Error{Code::internal, "OpenSSL made no context: " + last_ssl_error()};
  }
  SSL_CTX* const c = context.get();
  if (SSL_CTX_use_certificate_chain_file(c, files.certificate.c_str()) != 1)
    return failed("tls_certificate", files.certificate);
  if (SSL_CTX_use_PrivateKey_file(c, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(c) != 1)
    return failed("tls_key", files.key);
  if (SSL_CTX_load_verify_locations(c, files.authority.c_str(), nullptr) != 1)
    return failed("tls_ca", files.authority);
  SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(c, 0);
  // A write that would block is offered again from wherever its bytes then lie.
  SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return context;
}

Result<Ssl> make_ssl(SSL_CTX& context, int socket, Side side) {
  Ssl ssl(SSL_new(&context));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), socket) != 1)
    return Error{Code::internal, "OpenSSL made no connection: " + last_ssl_error()};
  if (side == Side::dialer) {
    SSL_set_connect_state(ssl.get());
  } else {
    SSL_set_accept_state(ssl.get());
  }
  return ssl;
}

}  // namespace luna::tcp
