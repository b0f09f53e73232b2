// What comes over a connection is a frame of ours, or it is refused; in whatever pieces it comes.
#include "core/cluster/frame.hpp"

#include "support/test_seed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>

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
  EXPECT_THAT(version.error().message(),
              ::testing::HasSubstr("version 9, this one " + std::to_string(kProtocolVersion)));
  for (const std::size_t offset : {6U, 7U, 20U}) {
    Bytes wrong = frame_bytes(FrameType::step, 0, {});
    wrong[offset] = std::byte{0xEE};
    EXPECT_FALSE(read_one(wrong, true)) << offset;
  }
  FrameHead huge = encode_head(FrameType::step, 0, 0);
  std::fill(huge.begin() + 16, huge.begin() + 20, std::byte{0xFF});
  EXPECT_FALSE(read_one({huge.begin(), huge.end()}, true));
}

FrameSeal seal_of(std::uint8_t key) {
  FrameSeal::Key bytes{};
  bytes.fill(static_cast<std::byte>(key));
  auto seal = FrameSeal::create(bytes);
  EXPECT_TRUE(seal) << seal.error().message();
  return std::move(*seal);
}

/// Frames of one sender, each with its tag.
std::vector<Bytes> sealed_frames(std::size_t n) {
  FrameSeal seal = seal_of(7);
  std::vector<Bytes> frames;
  for (std::size_t i = 0; i < n; ++i) {
    Bytes frame = frame_bytes(FrameType::step, i, bytes_of("step " + std::to_string(i)));
    const std::span<const std::byte> whole(frame);
    const auto tag = seal.next(std::span(&whole, 1));
    EXPECT_TRUE(tag);
    frame.insert(frame.end(), tag->begin(), tag->end());
    frames.push_back(std::move(frame));
  }
  return frames;
}

/// How many frames of a stream are taken, and why no more; empty: more may come.
struct Taken {
  std::size_t n = 0;
  std::string reason;
};
Taken take(const std::vector<Bytes>& frames, std::uint8_t key = 7) {
  FrameReader reader;
  reader.trust(seal_of(key));
  for (const Bytes& frame : frames)
    put(reader, frame);
  for (Taken taken;; ++taken.n) {
    const auto frame = reader.next();
    if (!frame) taken.reason = frame.error().message();
    if (!frame || !*frame) return taken;
    EXPECT_EQ((*frame)->subject, taken.n);
  }
}

TEST(ClusterFrame, SealedFramesComeInTheirOrder) {
  const auto frames = sealed_frames(20);
  EXPECT_EQ(take(frames).n, 20U);
  EXPECT_EQ(take(frames).reason, "");
  const Taken other = take(frames, 8);
  EXPECT_EQ(other.n, 0U);
  EXPECT_THAT(other.reason, ::testing::HasSubstr("a frame 'step' with a wrong tag"));
}

TEST(ClusterFrame, ATagDependsOnTheBytesAndNotOnTheirParts) {
  const Bytes bytes = bytes_of("head, payload, more");
  const std::span<const std::byte> whole(bytes);
  const std::array<std::span<const std::byte>, 4> parts = {
      whole.first(4), std::span<const std::byte>(), whole.subspan(4, 3), whole.subspan(7)};
  EXPECT_EQ(*seal_of(7).next(std::span(&whole, 1)), *seal_of(7).next(parts));
}

TEST(ClusterFrame, NoBitOfASealedFrameCanBeChanged) {
  const auto frames = sealed_frames(3);
  for (std::size_t bit = 0; bit < 8 * frames[1].size(); ++bit) {
    auto changed = frames;
    changed[1][bit / 8] ^= std::byte{1} << (bit % 8);
    // The frame before it is whole; it and what follows is not taken, whatever its length says.
    EXPECT_EQ(take(changed).n, 1U) << bit;
  }
}

TEST(ClusterFrame, SealedFramesCannotBeRepeatedMovedOrLeftOut) {
  const auto frames = sealed_frames(4);
  const Taken repeated = take({frames[0], frames[1], frames[1], frames[2]});
  EXPECT_EQ(repeated.n, 2U);
  EXPECT_THAT(repeated.reason, ::testing::HasSubstr("wrong tag"));
  EXPECT_EQ(take({frames[0], frames[2], frames[1], frames[3]}).n, 1U);
  EXPECT_EQ(take({frames[1], frames[2], frames[3]}).n, 0U);
  // One that is cut off takes bytes of the next one for its own.
  Bytes cut = frames[1];
  cut.resize(cut.size() - 5);
  EXPECT_EQ(take({frames[0], cut, frames[2], frames[3]}).n, 1U);
  // One that never ends is waited for, and the connection's end tells.
  EXPECT_EQ(take({frames[0], cut}).reason, "");
}

}  // namespace
}  // namespace luna::cluster
