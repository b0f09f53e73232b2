// Bytes that a worker or a stranger sends: frames, greetings and messages, or a reason; never a
// crash, and memory follows what came.
#include "core/cluster/frame.hpp"
#include "core/cluster/greeting.hpp"
#include "core/cluster/messages.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace {

using namespace luna::cluster;

void parse_payload(const Frame& frame) {
  switch (frame.type) {
    case FrameType::join:
      if (const auto join = parse_join(frame.payload); join && !parse_join(encode_join(*join)))
        std::abort();
      return;
    case FrameType::plan:
      if (const auto plan = parse_plan(frame.payload); plan && !parse_plan(encode_plan(*plan)))
        std::abort();
      return;
    case FrameType::bind:
      if (const auto bind = parse_bind(frame.payload); bind && !parse_bind(encode_bind(*bind)))
        std::abort();
      return;
    case FrameType::answer:
      (void)parse_answer(frame.payload);
      return;
    case FrameType::step: {
      Step step;
      if (parse_step(frame.payload, step) && step.seq_first_row.back() != step.positions.size())
        std::abort();
      return;
    }
    case FrameType::output:
      (void)parse_output(frame.payload);
      return;
    case FrameType::done:
      (void)parse_done(frame.payload);
      return;
    case FrameType::refuse:
      (void)parse_refusal(frame.payload);
      return;
    default:
      return;
  }
}

/// A stream in pieces whose length is the first byte of each.
void read_stream(std::span<const std::byte> bytes, bool is_trusted) {
  FrameReader reader;
  if (is_trusted) reader.trust();
  static const Token token = Token::none();
  GreetingAcceptor acceptor(token, {});
  while (!bytes.empty()) {
    const auto room = reader.room();
    if (room.size() > 3 * std::size_t{kPayloadBytesMax}) std::abort();
    const std::size_t n = std::min(
        {room.size(), bytes.size(), std::size_t{1} + std::to_integer<std::size_t>(bytes[0])});
    std::copy_n(bytes.begin(), n, room.begin());
    reader.add(n);
    bytes = bytes.subspan(n);
    for (;;) {
      const auto frame = reader.next();
      if (!frame) return;
      if (!*frame) break;
      parse_payload(**frame);
      if (!is_trusted && !acceptor.take(**frame)) return;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  read_stream(bytes, false);
  read_stream(bytes, true);
  // Without a head: each parser meets any bytes.
  for (std::uint16_t type = 1; type <= static_cast<std::uint16_t>(FrameType::done); ++type)
    parse_payload({static_cast<FrameType>(type), 0, bytes});
  return 0;
}
