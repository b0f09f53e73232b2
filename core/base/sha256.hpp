// SHA-256 of bytes that come in pieces.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace luna {

using Sha256Digest = std::array<std::byte, 32>;

/// One running hash. A resource: moved, never copied.
/// Source  FIPS 180-4, by OpenSSL, which uses the processor's instructions where it has them
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  /// The hash of all bytes so far. Called once, at the end.
  [[nodiscard]] Sha256Digest finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

/// 64 lower-case hexadecimal digits.
std::string hex_of(const Sha256Digest& digest);
/// Whether a text is of that form.
bool is_sha256_text(std::string_view text);

}  // namespace luna
