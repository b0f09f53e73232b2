#include "core/http/key_ring.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <fstream>
#include <string>

namespace luna::http {
namespace {

constexpr std::size_t kKeyCharactersMin = 16;
constexpr std::size_t kKeyCharactersMax = 512;
constexpr std::string_view kBearer = "Bearer ";

std::string_view trimmed(std::string_view line) {
  const auto first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

KeyRing::Digest KeyRing::digest(std::string_view key) {
  Digest digest{};
  EVP_Digest(key.data(), key.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  return digest;
}

Result<KeyRing> KeyRing::open(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return Error{Code::not_found, "server.api_keys_file: cannot read " + path.string()};
  KeyRing ring;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    const std::string_view key = trimmed(line);
    if (key.empty() || key.front() == '#') continue;
    if (key.size() < kKeyCharactersMin || key.size() > kKeyCharactersMax)
      return Error{Code::invalid_argument,
                   path.string() + ":" + std::to_string(number) + ": a key has " +
                       std::to_string(key.size()) + " characters: must be between 16 and 512"};
    ring.digests_.push_back(digest(key));
  }
  if (ring.digests_.empty())
    return Error{Code::invalid_argument, path.string() + ": no key in it: put one a line"};
  return ring;
}

std::optional<std::uint32_t> KeyRing::tenant_of(std::string_view authorization,
                                                std::string_view api_key) const {
  std::string_view key = api_key;
  if (authorization.starts_with(kBearer)) key = authorization.substr(kBearer.size());
  const Digest given = digest(key);
  std::optional<std::uint32_t> tenant;
  // Every digest is compared, so the time says nothing about which one matched.
  for (std::size_t i = 0; i < digests_.size(); ++i)
    if (CRYPTO_memcmp(given.data(), digests_[i].data(), given.size()) == 0)
      tenant = static_cast<std::uint32_t>(i + 1);
  return tenant;
}

}  // namespace luna::http
