// Bytes that a worker or a stranger sends: frames, greetings and messages, or a reason; never a
// crash, and memory follows what came.
#include "core/cluster/frame.hpp"
#include "core/cluster/greeting.hpp"
#include "core/cluster/kv_messages.hpp"
#include "core/cluster/messages.hpp"
#include "core/cluster/step_messages.hpp"

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
      if (!parse_step(frame.payload, step)) return;
      if (step.seq_first_row.back() != step.positions.size()) std::abort();
      for (const StepSlice& slice : step.slices)
        if (slice.seq + 1 >= step.seq_first_row.size()) std::abort();
      return;
    }
    case FrameType::output:
      (void)parse_output(frame.payload);
      return;
    case FrameType::done:
      if (const auto done = parse_done(frame.payload); done && !parse_done(encode_done(*done)))
        std::abort();
      return;
    case FrameType::slices_open:
      if (const auto terms = parse_slice_terms(frame.payload);
          terms && !parse_slice_terms(encode_slice_terms(*terms)))
        std::abort();
      return;
    case FrameType::slices_abort:
    case FrameType::slices_close:
      (void)parse_slice_place(frame.payload);
      return;
    case FrameType::kv_export:
    case FrameType::kv_import:
      if (const auto order = parse_kv_order(frame.payload);
          order && !parse_kv_order(encode_kv_order(*order)))
        std::abort();
      return;
    case FrameType::kv_given:
    case FrameType::kv_taken:
      (void)parse_kv_answer(frame.payload);
      return;
    case FrameType::survey:
      (void)parse_survey(frame.payload);
      return;
    case FrameType::dismiss:
      (void)parse_farewell(frame.payload);
      return;
    case FrameType::memory:
      (void)parse_memory(frame.payload);
      return;
    case FrameType::stay:
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

FrameSeal some_seal() {
  FrameSeal::Key key{};
  key.fill(std::byte{7});
  auto seal = FrameSeal::create(key);
  if (!seal) std::abort();
  return std::move(*seal);
}

/// Who does not know the key gets nothing through, whole frames of others' least of all.
void read_sealed_stream(std::span<const std::byte> bytes) {
  FrameReader reader;
  reader.trust(some_seal());
  const auto room = reader.room();
  const std::size_t n = std::min(room.size(), bytes.size());
  std::copy_n(bytes.begin(), n, room.begin());
  reader.add(n);
  if (const auto frame = reader.next(); frame && *frame) std::abort();
}

/// A frame that was sealed comes through as it is; with a bit changed, the bytes themselves decide
/// which one, it does not.
void change_sealed_frame(std::span<const std::byte> payload) {
  payload = payload.first(std::min<std::size_t>(payload.size(), 4096));
  const FrameHead head = encode_head(FrameType::step, payload.size(), payload.size());
  Bytes whole(head.begin(), head.end());
  whole.insert(whole.end(), payload.begin(), payload.end());
  const std::span<const std::byte> sealed(whole);
  FrameSeal seal = some_seal();
  const auto tag = seal.next(std::span(&sealed, 1));
  if (!tag) std::abort();
  whole.insert(whole.end(), tag->begin(), tag->end());
  std::size_t bit = 0;
  for (const std::byte byte : payload)
    bit = (bit * 31 + std::to_integer<std::size_t>(byte)) % (8 * whole.size());
  for (const bool is_changed : {false, true}) {
    if (is_changed) whole[bit / 8] ^= std::byte{1} << (bit % 8);
    FrameReader reader;
    reader.trust(some_seal());
    const auto room = reader.room();
    std::copy(whole.begin(), whole.end(), room.begin());
    reader.add(whole.size());
    const auto frame = reader.next();
    if ((frame && *frame) == is_changed) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  read_stream(bytes, false);
  read_stream(bytes, true);
  read_sealed_stream(bytes);
  change_sealed_frame(bytes);
  // Without a head: each parser meets any bytes.
  for (std::uint16_t type = 1; type <= static_cast<std::uint16_t>(kFrameTypeLast); ++type)
    parse_payload({static_cast<FrameType>(type), 0, bytes});
  return 0;
}
