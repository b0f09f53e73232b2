// What comes over a connection is a frame of ours, or it is refused; in whatever pieces it comes.
#include "core/cluster/frame.hpp"

#include "support/test_seed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace luna::cluster {
namespace {

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes frame_bytes(FrameType type, std::uint64_t subject, const Bytes& payload) {
  const FrameHead head = encode_head(type, subject, payload.size());
  Bytes bytes(head.size() + payload.size());
  std::ranges::copy(payload, std::ranges::copy(head, bytes.begin()).out);
  return bytes;
}

void put(FrameReader& reader, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto room = reader.room();
    const std::size_t n = std::min(room.size(), bytes.size());
    std::copy_n(bytes.begin(), n, room.begin());
    reader.add(n);
    bytes = bytes.subspan(n);
  }
}

Result<std::optional<Frame>> read_one(const Bytes& bytes, bool is_trusted) {
  FrameReader reader;
  if (is_trusted) reader.trust();
  put(reader, bytes);
  return reader.next();
}

TEST(ClusterFrame, ComesOutAsItWentInWhateverThePieces) {
  std::mt19937_64 rng(test::test_seed());
  for (int round = 0; round < 50; ++round) {
    Bytes stream;
    std::vector<Bytes> payloads;
    for (int i = 0; i < 8; ++i) {
      Bytes payload(rng() % (i == 3 ? 300'000 : 900));
      for (std::byte& byte : payload)
        byte = static_cast<std::byte>(rng());
      const Bytes frame = frame_bytes(FrameType::step, static_cast<std::uint64_t>(i), payload);
      stream.insert(stream.end(), frame.begin(), frame.end());
      payloads.push_back(std::move(payload));
    }
    FrameReader reader;
    reader.trust();
    std::size_t n_read = 0;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t n = std::min<std::size_t>(1 + rng() % 70'000, stream.size() - at);
      put(reader, std::span(stream).subspan(at, n));
      at += n;
      for (;;) {
        const auto frame = reader.next();
        ASSERT_TRUE(frame) << frame.error().message();
        if (!*frame) break;
        EXPECT_EQ((*frame)->subject, n_read);
        EXPECT_TRUE(std::ranges::equal((*frame)->payload, payloads[n_read]));
        ++n_read;
      }
    }
    EXPECT_EQ(n_read, payloads.size());
  }
}

TEST(ClusterFrame, StrangersMaySayNoMoreThanAGreeting) {
  const auto early = read_one(frame_bytes(FrameType::join, 0, bytes_of("x")), false);
  ASSERT_FALSE(early);
  EXPECT_THAT(early.error().message(), ::testing::HasSubstr("before the token was proved"));
  // The head alone decides: nothing of the payload is waited for or stored.
  const FrameHead head = encode_head(FrameType::hello, 0, kGreetingBytesMax + 1);
  const auto large = read_one({head.begin(), head.end()}, false);
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message(), ::testing::HasSubstr("at most 4096"));
}

TEST(ClusterFrame, WhatIsNoFrameIsRefusedAtItsHead) {
  const auto http = read_one(bytes_of("GET / HTTP/1.1\r\nHost: luna\r\n\r\n"), false);
  ASSERT_FALSE(http);
  EXPECT_EQ(http.error().code(), Code::corrupt);
  Bytes other_version = frame_bytes(FrameType::hello, 0, {});
  other_version[4] = std::byte{9};
  const auto version = read_one(other_version, false);
  ASSERT_FALSE(version);
  EXPECT_EQ(version.error().code(), Code::unsupported);
  EXPECT_THAT(version.error().message(), ::testing::HasSubstr("version 9, this one 1"));
  for (const std::size_t offset : {6U, 7U, 20U}) {
    Bytes wrong = frame_bytes(FrameType::step, 0, {});
    wrong[offset] = std::byte{0xEE};
    EXPECT_FALSE(read_one(wrong, true)) << offset;
  }
  FrameHead huge = encode_head(FrameType::step, 0, 0);
  std::fill(huge.begin() + 16, huge.begin() + 20, std::byte{0xFF});
  EXPECT_FALSE(read_one({huge.begin(), huge.end()}, true));
}

}  // namespace
}  // namespace luna::cluster
