#include "core/cluster/frame_seal.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <cstring>
#include <utility>

namespace luna::cluster {
namespace {

constexpr std::size_t kNonceBytes = 12;  // what GCM takes as it is

const unsigned char* chars(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

Error broken() {
  return {Code::internal, "OpenSSL made no tag of AES-256-GCM"};
}

}  // namespace

void FrameSeal::Free::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);
}

Result<FrameSeal> FrameSeal::create(const Key& key) {
  std::unique_ptr<evp_cipher_ctx_st, Free> context(EVP_CIPHER_CTX_new());
  if (!context || EVP_EncryptInit_ex(
                      context.get(), EVP_aes_256_gcm(), nullptr, chars(key.data()), nullptr) != 1)
    return broken();
  return FrameSeal(std::move(context));
}

Result<FrameSeal::Tag> FrameSeal::next(std::span<const std::span<const std::byte>> parts) {
  std::array<std::byte, kNonceBytes> nonce{};
  const std::uint64_t number = n_frames_++;
  std::memcpy(nonce.data(), &number, sizeof(number));
  evp_cipher_ctx_st* const context = context_.get();
  if (EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, chars(nonce.data())) != 1)
    return broken();
  int n = 0;
  for (const auto part : parts) {
    if (part.empty()) continue;
    // Without a place for a result the bytes are authenticated only.
    if (EVP_EncryptUpdate(
            context, nullptr, &n, chars(part.data()), static_cast<int>(part.size())) != 1)
      return broken();
  }
  unsigned char nothing[kTagBytes];
  Tag tag{};
  if (EVP_EncryptFinal_ex(context, nothing, &n) != 1 ||
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, kTagBytes, tag.data()) != 1)
    return broken();
  return tag;
}

bool is_same_tag(const FrameSeal::Tag& a, std::span<const std::byte, FrameSeal::kTagBytes> b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace luna::cluster
