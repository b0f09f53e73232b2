#include "core/http/sse_writer.hpp"

#include <gtest/gtest.h>

#include <string>

namespace luna::http {
namespace {

using Framing = SseWriter::Framing;

void add(SseWriter& out, std::string_view text) {
  out.open_event() += text;
  out.close_event();
}

TEST(SseWriter, EventsOfOnePieceAreOneChunk) {
  SseWriter out;
  out.begin();
  add(out, "{}");
  add(out, "[DONE]");
  EXPECT_EQ(out.finish(Framing::chunk), "18\r\ndata: {}\n\ndata: [DONE]\n\n\r\n");
}

TEST(SseWriter, TheLastChunkEndsTheBody) {
  SseWriter out;
  out.begin();
  add(out, "{}");
  EXPECT_EQ(out.finish(Framing::last_chunk), "a\r\ndata: {}\n\n\r\n0\r\n\r\n");
  out.begin();
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(out.finish(Framing::last_chunk), "0\r\n\r\n");
}

TEST(SseWriter, WithoutFramesThereAreEventsAlone) {
  SseWriter out;
  out.begin();
  out.add_ping();
  EXPECT_EQ(out.finish(Framing::none), ": ping\n\n");
}

TEST(SseWriter, APieceLeavesNothingInTheNext) {
  SseWriter out;
  out.begin();
  add(out, std::string(2'000'000, 'x'));
  const std::string large(out.finish(Framing::chunk));
  EXPECT_TRUE(large.starts_with("1e8488\r\ndata: xxx"));
  EXPECT_EQ(large.size(), 2'000'000 + 8 + 8 + 2);
  out.begin();
  add(out, "1");
  EXPECT_EQ(out.finish(Framing::chunk), "9\r\ndata: 1\n\n\r\n");
}

}  // namespace
}  // namespace luna::http
