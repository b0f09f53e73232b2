#include "options.hpp"

#include "address.hpp"

#include <boost/asio/ip/address.hpp>

namespace luna::tcp {
namespace {

Result<void> check_reach(const Options& options) {
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(options.host, error);
  if (error) {
    return Error{
        Code::invalid_argument,
        "host = \"" + options.host + "\": must be an IP address, for example 127.0.0.1 or 0.0.0.0"};
  }
  if (!address.is_loopback() && options.token_file.empty() && !options.has_tls()) {
    return Error{Code::invalid_argument,
                 "host = \"" + options.host +
                     "\": without token_file or tls_certificate only a loopback address is served"};
  }
  if (address.is_unspecified() && options.advertised_host.empty()) {
    return Error{Code::invalid_argument,
                 "host = \"" + options.host +
                     "\" is every address: advertised_host must say which one others use"};
  }
  return {};
}

}  // namespace

Result<Options> Options::from(const Settings& settings) {
  const auto ms = [&](std::string_view key) {
    return std::chrono::milliseconds(settings.integer(key));
  };
  Options options;
  options.host = settings.text("host");
  options.port = static_cast<std::uint16_t>(settings.integer("port"));
  options.advertised_host = settings.text("advertised_host");
  options.advertised_port = static_cast<std::uint16_t>(settings.integer("advertised_port"));
  options.token_file = settings.text("token_file");
  options.tls = {
      settings.text("tls_certificate"), settings.text("tls_key"), settings.text("tls_ca")};
  options.message_bytes_max = static_cast<std::uint64_t>(settings.integer("message_bytes_max"));
  options.heartbeat_interval = ms("heartbeat_interval_ms");
  options.heartbeat_timeout = ms("heartbeat_timeout_ms");
  options.peer_timeout = ms("peer_timeout_ms");
  options.refused_timeout = ms("refused_timeout_ms");
  const TlsFiles& tls = options.tls;
  if (tls.certificate.empty() != tls.key.empty() ||
      tls.certificate.empty() != tls.authority.empty())
    return Error{Code::invalid_argument,
                 "tls_certificate, tls_key and tls_ca belong together: give all three or none"};
  if (options.heartbeat_timeout < 2 * options.heartbeat_interval ||
      options.peer_timeout < options.heartbeat_timeout)
    return Error{Code::invalid_argument,
                 "heartbeat_timeout_ms must be at least twice heartbeat_interval_ms, and "
                 "peer_timeout_ms at least heartbeat_timeout_ms"};
  LUNA_TRY(check_reach(options));
  if (options.advertised_host.empty()) options.advertised_host = options.host;
  if (options.advertised_host.size() > kHostBytesMax)
    return Error{Code::invalid_argument,
                 "advertised_host has " + std::to_string(options.advertised_host.size()) +
                     " bytes: at most " + std::to_string(kHostBytesMax)};
  return options;
}

}  // namespace luna::tcp
