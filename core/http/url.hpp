// The URLs that files are fetched from.
#pragma once

#include <luna/result.hpp>

#include <string>
#include <string_view>

namespace luna::http {

/// An http or https URL, taken apart.
struct Url {
  bool secure = false;
  std::string host;    ///< without the brackets of an IPv6 address
  std::string port;    ///< the scheme's own where the URL names none
  std::string target;  ///< path and query; begins with /

  /// As the header Host has it: brackets, and the port where it is not the scheme's own.
  [[nodiscard]] std::string host_field() const;
};

/// Errors  invalid_argument (scheme, host, port, characters that no URL has, a user name)
Result<Url> parse_url(std::string_view text);

/// Where a redirect leads from `base` (RFC 3986, section 5.2): `reference` may be a whole URL, or
/// leave out the scheme, the host, or the folder. Its fragment is dropped.
///
/// Errors  as parse_url
Result<Url> resolve_url(const Url& base, std::string_view reference);

}  // namespace luna::http
