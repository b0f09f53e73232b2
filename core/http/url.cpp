#include "core/http/url.hpp"

#include <algorithm>
#include <vector>

namespace luna::http {
namespace {

constexpr std::size_t kQuotedMax = 200;

std::string scheme_port(bool secure) {
  return secure ? "443" : "80";
}

/// Whether a scheme stands before the text's first path or query.
bool has_scheme(std::string_view text) {
  const auto colon = text.find(':');
  return colon != std::string_view::npos && colon < text.find_first_of("/?#");
}

/// RFC 3986, 5.2.4: `.` goes, `..` takes the segment before it along.
std::string without_dots(std::string_view path) {
  std::vector<std::string_view> segments;
  bool ends_in_folder = false;
  while (!path.empty()) {
    path.remove_prefix(1);  // the slash
    const auto n = std::min(path.find('/'), path.size());
    const std::string_view segment = path.substr(0, n);
    path.remove_prefix(n);
    ends_in_folder = segment.empty() || segment == "." || segment == "..";
    if (segment == "..") {
      if (!segments.empty()) segments.pop_back();
    } else if (segment != "." && (!segment.empty() || !path.empty())) {
      segments.push_back(segment);
    }
  }
  std::string out;
  for (const std::string_view segment : segments)
    out.append("/").append(segment);
  if (ends_in_folder || out.empty()) out += '/';
  return out;
}

/// "host", "host:port", "[v6]" or "[v6]:port" into the URL.
bool take_authority(std::string_view authority, Url& url) {
  if (authority.find('@') != std::string_view::npos) return false;
  std::size_t host_end = authority.find(':');
  if (authority.starts_with('[')) {
    const auto bracket = authority.find(']');
    if (bracket == std::string_view::npos) return false;
    url.host = authority.substr(1, bracket - 1);
    host_end = bracket + 1 < authority.size() ? bracket + 1 : std::string_view::npos;
    if (host_end != std::string_view::npos && authority[host_end] != ':') return false;
  } else {
    url.host = authority.substr(0, host_end);
  }
  url.port = scheme_port(url.secure);
  if (host_end != std::string_view::npos) url.port = authority.substr(host_end + 1);
  const bool is_number =
      !url.port.empty() && url.port.size() <= 5 &&
      std::all_of(url.port.begin(), url.port.end(), [](char c) { return c >= '0' && c <= '9'; });
  return is_number && !url.host.empty();
}

}  // namespace

std::string Url::host_field() const {
  std::string field = host.find(':') == std::string::npos ? host : "[" + host + "]";
  if (port != scheme_port(secure)) field += ":" + port;
  return field;
}

Result<Url> parse_url(std::string_view text) {
  const std::string quoted = "\"" + std::string(text.substr(0, kQuotedMax)) + "\"";
  Url url;
  if (text.starts_with("https://")) {
    url.secure = true;
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    text.remove_prefix(7);
  } else {
    return Error{Code::invalid_argument,
                 "the URL " + quoted + " must begin with http:// or https://"};
  }
  text = text.substr(0, text.find('#'));
  const auto authority_end = std::min(text.find_first_of("/?"), text.size());
  url.target = text.substr(authority_end);
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  const bool has_bad_byte = std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) <= 0x20U || c == 0x7F;
  });
  if (has_bad_byte || !take_authority(text.substr(0, authority_end), url))
    return Error{Code::invalid_argument, "the URL " + quoted + " is not valid"};
  return url;
}

Result<Url> resolve_url(const Url& base, std::string_view reference) {
  const std::string scheme = base.secure ? "https:" : "http:";
  if (has_scheme(reference)) return parse_url(reference);
  if (reference.starts_with("//")) return parse_url(scheme + std::string(reference));
  reference = reference.substr(0, reference.find('#'));
  const std::string_view base_target = base.target;
  const std::string_view base_path = base_target.substr(0, base_target.find('?'));
  const auto query_at = std::min(reference.find('?'), reference.size());
  std::string path(reference.substr(0, query_at));
  std::string query(reference.substr(query_at));
  if (path.empty()) {
    path = base_path;
    if (query.empty()) query = base_target.substr(base_path.size());
  } else if (!path.starts_with('/')) {
    path.insert(0, base_path.substr(0, base_path.rfind('/') + 1));
  }
  return parse_url(scheme + "//" + base.host_field() + without_dots(path) + query);
}

}  // namespace luna::http
