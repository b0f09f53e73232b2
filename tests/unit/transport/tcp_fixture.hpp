// Endpoints of transport tcp for tests: settings, token files, certificates, addresses.
#pragma once

#include "plugins/transport_tcp/address.hpp"
#include "unit/transport/endpoint.hpp"
#include "unit/transport/transport_case.hpp"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

namespace luna::test {

using Blob = std::vector<std::uint8_t>;

inline luna_xfer transfer(std::uint32_t verb,
                          std::uint32_t tag,
                          std::uint64_t key,
                          std::uint64_t n,
                          std::uint32_t peer = 0) {
  return {verb, peer, tag, 0, key, 0, n, tag * 10 + verb};
}

/// A folder that ends with the test.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "luna-tcp-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

/// Signs certificates for endpoints.
class Authority {
 public:
  Authority(const TestFolder& folder, std::string name)
      : folder_(folder), name_(std::move(name)), key_(EVP_EC_gen("P-256")) {
    certificate_ = make(key_, key_, nullptr);
    write(name_ + ".pem", certificate_, nullptr);
  }
  ~Authority() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  /// Settings of an endpoint with a certificate of this authority, which trusts `trusted`.
  SettingValues settings(const std::string& endpoint, const Authority& trusted) {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = make(key, key_, certificate_);
    write(endpoint + ".pem", certificate, nullptr);
    write(endpoint + ".key", nullptr, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return {{"tls_certificate", folder_.file(endpoint + ".pem")},
            {"tls_key", folder_.file(endpoint + ".key")},
            {"tls_ca", trusted.folder_.file(trusted.name_ + ".pem")}};
  }

 private:
  X509* make(EVP_PKEY* subject, EVP_PKEY* signer, X509* issuer) const {
    X509* const made = X509_new();
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), issuer == nullptr ? 1 : 2);
    X509_gmtime_adj(X509_getm_notBefore(made), -60);
    X509_gmtime_adj(X509_getm_notAfter(made), 3600);
    X509_set_pubkey(made, subject);
    X509_NAME* const name = X509_get_subject_name(made);
    const std::string text = issuer == nullptr ? name_ : "endpoint";
    X509_NAME_add_entry_by_txt(
        name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(text.c_str()), -1, -1, 0);
    X509_set_issuer_name(made, issuer == nullptr ? name : X509_get_subject_name(issuer));
    if (issuer == nullptr) {
      X509_EXTENSION* const is_authority =
          X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE");
      X509_add_ext(made, is_authority, -1);
      X509_EXTENSION_free(is_authority);
    }
    EXPECT_GT(X509_sign(made, signer, EVP_sha256()), 0);
    return made;
  }
  void write(const std::string& name, X509* certificate, EVP_PKEY* key) const {
    std::FILE* const file = std::fopen(folder_.file(name).c_str(), "wb");
    if (certificate != nullptr) PEM_write_X509(file, certificate);
    if (key != nullptr) PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
  }

  const TestFolder& folder_;
  const std::string name_;
  EVP_PKEY* key_;
  X509* certificate_ = nullptr;
};

inline SettingValues operator+(SettingValues a, const SettingValues& b) {
  for (const auto& [key, value] : b)
    a[key] = value;
  return a;
}

/// A tenth of the shipped times, so that tests of failures are short.
inline SettingValues quick() {
  return {{"heartbeat_interval_ms", std::int64_t{20}},
          {"heartbeat_timeout_ms", std::int64_t{200}},
          {"refused_timeout_ms", std::int64_t{100}}};
}

inline tcp::Address address_of(const Blob& blob) {
  const auto address = tcp::parse_address(std::as_bytes(std::span(blob)));
  EXPECT_TRUE(address);
  return address ? *address : tcp::Address{};
}

/// The same endpoint behind another port.
inline Blob by_port(const Blob& blob, std::uint16_t port) {
  tcp::Address address = address_of(blob);
  address.port = port;
  Blob changed;
  for (const std::byte byte : tcp::encode_address(address))
    changed.push_back(std::to_integer<std::uint8_t>(byte));
  return changed;
}

class Tcp : public ::testing::Test {
 protected:
  void SetUp() override {
    table_ = load_table<luna_transport_if>("transport_tcp", LUNA_KIND_TRANSPORT);
    ASSERT_NE(table_, nullptr);
  }
  std::unique_ptr<Endpoint> make(const SettingValues& settings = {}) {
    return std::make_unique<Endpoint>(*table_, host_, settings);
  }
  /// Both know each other as peer 0.
  static void join(Endpoint& a, Endpoint& b) {
    std::uint32_t peer = 99;
    ASSERT_EQ(a.connect_at_last(b.address(), peer), LUNA_OK) << a.reason();
    ASSERT_EQ(peer, 0U);
    ASSERT_EQ(b.connect_at_last(a.address(), peer), LUNA_OK) << b.reason();
    ASSERT_EQ(peer, 0U);
  }

  FakeHost host_;
  TestFolder folder_;
  const luna_transport_if* table_ = nullptr;
};

}  // namespace luna::test
