// Fetching a file over http or https, with resume.
#pragma once

#include <luna/result.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace luna::http {

/// Bytes so far and in all (0: unknown). False stops the download; what is there stays for a
/// resume.
using DownloadProgress = std::function<bool(std::uint64_t n_done, std::uint64_t n_total)>;

/// Downloads a URL into `target`. Bytes go to `target`.part first; a part that is there is
/// continued when the server can. At most five redirects; https checks the certificate. [main]
///
/// Errors  invalid_argument (URL); not_found (404); io (network, disk); timeout; cancelled
Result<void> download(const std::string& url,
                      const std::filesystem::path& target,
                      const DownloadProgress& progress);

}  // namespace luna::http
