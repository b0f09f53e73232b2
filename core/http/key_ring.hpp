// API keys: who may ask. Compared as digests in constant time; never kept or shown in clear.
#pragma once

#include <luna/result.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace luna::http {

class KeyRing {
 public:
  /// No keys: everybody may ask (the server then listens on loopback only).
  KeyRing() = default;

  /// One key a line; blank lines and lines that begin with # are skipped. [start-up]
  /// Errors  not_found; invalid_argument (no key, a key shorter than 16 characters; with the line)
  static Result<KeyRing> open(const std::filesystem::path& path);

  [[nodiscard]] bool empty() const { return digests_.empty(); }
  /// Keys, which are the tenants 1..n.
  [[nodiscard]] std::uint32_t n_tenants() const {
    return static_cast<std::uint32_t>(digests_.size());
  }

  /// The tenant (1 + position of the key) behind the value of `Authorization` or `X-Api-Key`.
  [[nodiscard]] std::optional<std::uint32_t> tenant_of(std::string_view authorization,
                                                       std::string_view api_key) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  std::vector<Digest> digests_;
};

}  // namespace luna::http
