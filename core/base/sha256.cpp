#include "core/base/sha256.hpp"

#include "core/base/assert.hpp"

#include <openssl/evp.h>

namespace luna {

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  LUNA_VERIFY(context_ != nullptr);
  LUNA_VERIFY(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::update(std::span<const std::byte> bytes) {
  LUNA_VERIFY(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  auto* out = reinterpret_cast<unsigned char*>(digest.data());
  LUNA_VERIFY(EVP_DigestFinal_ex(context_.get(), out, nullptr) == 1);
  return digest;
}

std::string hex_of(const Sha256Digest& digest) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : digest) {
    text += kHex[std::to_integer<unsigned>(byte) >> 4U];
    text += kHex[std::to_integer<unsigned>(byte) & 15U];
  }
  return text;
}

bool is_sha256_text(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace luna
