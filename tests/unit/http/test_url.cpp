#include "core/http/url.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace luna::http {
namespace {

/// The URL as one text, or the kind of its error.
std::string shown(const Result<Url>& url) {
  if (!url) return std::string(code_name(url.error().code()));
  return (url->secure ? "https://" : "http://") + url->host_field() + url->target;
}

TEST(Url, PartsAreTold) {
  const auto url = parse_url("https://Example.org:8443/a/b?c=d#e");
  ASSERT_TRUE(url);
  EXPECT_TRUE(url->secure);
  EXPECT_EQ(url->host, "Example.org");
  EXPECT_EQ(url->port, "8443");
  EXPECT_EQ(url->target, "/a/b?c=d");
  EXPECT_EQ(url->host_field(), "Example.org:8443");
}

TEST(Url, PortsOfTheSchemeAreLeftOutOfHost) {
  EXPECT_EQ(shown(parse_url("http://h")), "http://h/");
  EXPECT_EQ(shown(parse_url("http://h:80?q")), "http://h/?q");
  EXPECT_EQ(shown(parse_url("https://h:80")), "https://h:80/");
}

TEST(Url, Ipv6AddressesHaveBrackets) {
  const auto url = parse_url("http://[::1]:8080/x");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(shown(url), "http://[::1]:8080/x");
  EXPECT_EQ(shown(parse_url("http://[::1]/x")), "http://[::1]/x");
}

TEST(Url, WhatNoUrlHasIsRefused) {
  constexpr std::array kBad = {"",
                               "ftp://h/x",
                               "http://",
                               "http:///x",
                               "http://:80/x",
                               "http://h:/x",
                               "http://h:8x/",
                               "http://h:123456/",
                               "http://user@h/x",
                               "http://[::1/x",
                               "http://[::1]x/",
                               "http://h/a b",
                               "http://h/a\r\nHost: i"};
  for (const char* text : kBad)
    EXPECT_EQ(shown(parse_url(text)), "invalid_argument") << text;
}

TEST(Url, RedirectsAreResolvedAsTheStandardSays) {
  // The examples of RFC 3986, 5.4, with a base of its shape; the last ones are ours.
  const auto base = parse_url("http://a:81/b/c/d;p?q");
  ASSERT_TRUE(base);
  constexpr std::array<std::array<const char*, 2>, 26> kCases = {{
      {"http://h/g", "http://h/g"},
      {"g", "http://a:81/b/c/g"},
      {"./g", "http://a:81/b/c/g"},
      {"g/", "http://a:81/b/c/g/"},
      {"/g", "http://a:81/g"},
      {"//g", "http://g/"},
      {"?y", "http://a:81/b/c/d;p?y"},
      {"g?y", "http://a:81/b/c/g?y"},
      {"#s", "http://a:81/b/c/d;p?q"},
      {"g#s", "http://a:81/b/c/g"},
      {";x", "http://a:81/b/c/;x"},
      {"", "http://a:81/b/c/d;p?q"},
      {".", "http://a:81/b/c/"},
      {"./", "http://a:81/b/c/"},
      {"..", "http://a:81/b/"},
      {"../g", "http://a:81/b/g"},
      {"../..", "http://a:81/"},
      {"../../g", "http://a:81/g"},
      {"../../../g", "http://a:81/g"},
      {"/../g", "http://a:81/g"},
      {"g..", "http://a:81/b/c/g.."},
      {"./g/.", "http://a:81/b/c/g/"},
      {"g;x=1/../y", "http://a:81/b/c/y"},
      {"g?y/../x", "http://a:81/b/c/g?y/../x"},
      {"https://s/x?at=1:2", "https://s/x?at=1:2"},
      {"file:///etc/passwd", "invalid_argument"},
  }};
  for (const auto& [reference, wanted] : kCases)
    EXPECT_EQ(shown(resolve_url(*base, reference)), wanted) << reference;
}

}  // namespace
}  // namespace luna::http
