// A stream's bytes to events, events to what is measured, URLs and bodies.
#include "core/bench/completion_event.hpp"
#include "core/bench/http_target.hpp"
#include "core/bench/sse_parser.hpp"

#include <boost/json/parse.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luna::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Strings = std::vector<std::string>;

/// Feeds a text in two pieces, cut at `cut`.
Strings events_of(std::string_view text, std::size_t cut) {
  SseParser parser;
  Strings events;
  const auto keep = [&](std::string_view data) { events.emplace_back(data); };
  EXPECT_TRUE(parser.feed(text.substr(0, cut), keep));
  EXPECT_TRUE(parser.feed(text.substr(cut), keep));
  return events;
}

TEST(SseParser, EventsAreTheSameWhereverTheStreamIsCut) {
  const std::string_view text =
      ": a comment\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: lines\nid: 7\n\ndata:\r\r"
      "data:  [DONE]\n\n";
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_THAT(events_of(text, cut), ElementsAre("one", "two\nlines", "", " [DONE]"))
        << "cut at " << cut;
}

TEST(SseParser, EventWithoutItsEmptyLineIsNoEventYet) {
  EXPECT_THAT(events_of("data: one\n\ndata: two\n", 3), ElementsAre("one"));
}

TEST(SseParser, RefusesALineOrAnEventWithoutEnd) {
  const auto ignore = [](std::string_view) {};
  SseParser line;
  const std::string half(SseParser::kEventBytesMax / 2 + 1, 'x');
  EXPECT_TRUE(line.feed("data: " + half, ignore));
  EXPECT_FALSE(line.feed(half, ignore));
  SseParser event;
  EXPECT_TRUE(event.feed("data: " + half + "\n", ignore));
  EXPECT_FALSE(event.feed("data: " + half + "\n", ignore));
}

TEST(CompletionEvent, TextOfACompletionIsAToken) {
  EXPECT_TRUE(
      read_completion_event(R"({"choices":[{"text":"a","finish_reason":null}]})").has_token);
  EXPECT_TRUE(
      read_completion_event(R"({"choices":[{"text":"a","finish_reason":"length"}]})").has_token);
}

TEST(CompletionEvent, HeldBackCharacterIsATokenButTheBareEndIsNone) {
  EXPECT_TRUE(read_completion_event(R"({"choices":[{"text":"","finish_reason":null}]})").has_token);
  EXPECT_FALSE(
      read_completion_event(R"({"choices":[{"text":"","finish_reason":"stop"}]})").has_token);
}

TEST(CompletionEvent, RoleOfAChatIsNoToken) {
  EXPECT_FALSE(read_completion_event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})")
                   .has_token);
  EXPECT_TRUE(read_completion_event(R"({"choices":[{"delta":{"content":"x"}}]})").has_token);
}

TEST(CompletionEvent, UsageIsTheServers) {
  const auto event =
      read_completion_event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,)"
                            R"("prompt_tokens_details":{"cached_tokens":4}}})");
  ASSERT_TRUE(event.usage);
  EXPECT_EQ(event.usage->n_prompt, 7U);
  EXPECT_EQ(event.usage->n_cached, 4U);
  EXPECT_EQ(event.usage->n_generated, 3U);
  EXPECT_FALSE(event.has_token);
  EXPECT_FALSE(read_completion_event(R"({"choices":[],"usage":null})").usage);
}

TEST(CompletionEvent, ErrorsAndRubbishAreErrors) {
  EXPECT_THAT(*read_completion_event(R"({"error":{"message":"full"}})").error, HasSubstr("full"));
  for (const char* rubbish : {"", "[", "[]", "7", "{\"choices\"", "\xff"})
    EXPECT_TRUE(read_completion_event(rubbish).error) << rubbish;
  // Shapes that nobody promised are no tokens, and no crash.
  for (const char* odd : {R"({"choices":{}})",
                          R"({"choices":[1,null]})",
                          R"({"usage":[]})",
                          R"({"choices":[{"delta":7}]})",
                          R"({"usage":{"prompt_tokens":-1}})"})
    EXPECT_FALSE(read_completion_event(odd).has_token) << odd;
}

TEST(CompletionEvent, DoneIsTheEnd) {
  EXPECT_TRUE(read_completion_event("[DONE]").is_done);
}

TEST(BaseUrl, NamesHostPortAndPath) {
  const auto plain = parse_base_url("http://localhost:8080");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->host, "localhost");
  EXPECT_EQ(plain->port, "8080");
  EXPECT_EQ(plain->base_path, "/v1");
  const auto v6 = parse_base_url("http://[::1]/api/v1/");
  ASSERT_TRUE(v6);
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->port, "80");
  EXPECT_EQ(v6->base_path, "/api/v1");
}

TEST(BaseUrl, RefusesWhatItCannotMeasure) {
  for (const char* url : {"", "localhost:80", "http://", "http://:80", "http://a:b", "http://a:"})
    EXPECT_FALSE(parse_base_url(url)) << url;
  EXPECT_EQ(parse_base_url("https://a").error().code(), Code::unsupported);
}

TEST(RequestBody, AsksForAStreamWithUsage) {
  HttpTargetOptions options;
  options.model = "m";
  options.body = {{"ignore_eos", true}, {"temperature", 0.5}};
  const auto body = boost::json::parse(request_body({TokenIds{5, 6}, 9}, options));
  EXPECT_EQ(body, boost::json::parse(R"({"ignore_eos":true,"temperature":0.5,"model":"m",
      "stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"prompt":[5,6]})"));
}

}  // namespace
}  // namespace luna::bench
