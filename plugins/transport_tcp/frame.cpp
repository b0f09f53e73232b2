#include "frame.hpp"

#include "bytes.hpp"

#include <string>

namespace luna::tcp {
namespace {

constexpr std::uint32_t kMagic = 0x5043544CU;  // "LTCP"
constexpr std::size_t kChecksumOffset = 68;

enum class Payload { none, handshake, shape, probe, message };

struct TypeRow {
  std::string_view name;
  Payload payload;
};

// By type.
constexpr std::array<TypeRow, 22> kTypes = {{
    {"none", Payload::none},           {"hello", Payload::handshake},
    {"challenge", Payload::handshake}, {"proof", Payload::handshake},
    {"accept", Payload::handshake},    {"refuse", Payload::none},
    {"ping", Payload::none},           {"pong", Payload::none},
    {"probe", Payload::probe},         {"ack", Payload::none},
    {"ready", Payload::none},          {"withdraw", Payload::none},
    {"data", Payload::message},        {"failed", Payload::none},
    {"taken", Payload::none},          {"join", Payload::shape},
    {"leave", Payload::none},          {"abort", Payload::none},
    {"message", Payload::message},     {"credit", Payload::none},
    {"nothing", Payload::none},        {"bye", Payload::none},
}};
static_assert(kTypes.size() == static_cast<std::size_t>(FrameType::bye) + 1);

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

// Source   RFC 3720, appendix B.4 (CRC-32C)
std::uint32_t crc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~0U;
  for (const std::byte byte : bytes)
    crc = (crc >> 8U) ^ kCrcTable[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xFFU];
  return ~crc;
}

Error corrupt(std::string_view what, std::uint64_t value) {
  return {Code::corrupt, "a frame with " + std::string(what) + " " + std::to_string(value)};
}

bool is_payload_allowed(FrameType type, std::uint64_t n_bytes, std::uint64_t message_bytes_max) {
  switch (kTypes[static_cast<std::size_t>(type)].payload) {
    case Payload::none:
      return n_bytes == 0;
    case Payload::handshake:
      return n_bytes >= 1 && n_bytes <= kHandshakeBytesMax;
    case Payload::shape:
      return n_bytes == kGroupShapeBytes;
    case Payload::probe:
      return n_bytes <= kProbeBytes;
    case Payload::message:
      return n_bytes <= message_bytes_max;
  }
  return false;
}

}  // namespace

std::string_view name_of(FrameType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}

bool is_numbered(FrameType type) {
  return type >= FrameType::ready;
}

bool is_handshake(FrameType type) {
  return type <= FrameType::refuse;
}

HeaderBytes encode_header(const Header& header) {
  HeaderBytes bytes{};
  const std::span<std::byte> out(bytes);
  store(out, 0, kMagic);
  store(out, 4, kProtocolVersion);
  store(out, 6, static_cast<std::uint16_t>(header.type));
  store(out, 8, header.epoch);
  store(out, 16, header.value);
  store(out, 24, header.sequence);
  store(out, 32, header.ack);
  store(out, 40, header.n_bytes);
  store(out, 48, header.argument);
  store(out, 56, header.lane);
  store(out, 60, header.tag);
  store(out, 64, header.flags);
  seal_header(bytes);
  return bytes;
}

void seal_header(HeaderBytes& bytes) {
  const std::span<std::byte> out(bytes);
  store(out, kChecksumOffset, crc32c(out.first(kChecksumOffset)));
}

Result<Header> parse_header(std::span<const std::byte, kHeaderBytes> bytes,
                            std::uint64_t message_bytes_max) {
  if (const auto magic = load<std::uint32_t>(bytes, 0); magic != kMagic)
    return corrupt("magic number", magic);
  // Magic and version stand where they are in every version; only then the rest has a meaning.
  if (const auto version = load<std::uint16_t>(bytes, 4); version != kProtocolVersion) {
    return Error{Code::unsupported,
                 "protocol version " + std::to_string(version) + ": this endpoint speaks version " +
                     std::to_string(kProtocolVersion)};
  }
  const auto checksum = load<std::uint32_t>(bytes, kChecksumOffset);
  if (checksum != crc32c(bytes.first(kChecksumOffset))) return corrupt("wrong checksum", checksum);
  const auto type = load<std::uint16_t>(bytes, 6);
  if (type == 0 || type >= kTypes.size()) return corrupt("unknown type", type);
  Header header;
  header.type = static_cast<FrameType>(type);
  header.epoch = load<std::uint64_t>(bytes, 8);
  header.value = load<std::uint64_t>(bytes, 16);
  header.sequence = load<std::uint64_t>(bytes, 24);
  header.ack = load<std::uint64_t>(bytes, 32);
  header.n_bytes = load<std::uint64_t>(bytes, 40);
  header.argument = load<std::uint64_t>(bytes, 48);
  header.lane = load<std::uint32_t>(bytes, 56);
  header.tag = load<std::uint32_t>(bytes, 60);
  header.flags = load<std::uint32_t>(bytes, 64);
  if (!is_payload_allowed(header.type, header.n_bytes, message_bytes_max))
    return corrupt("a length not allowed for its type:", header.n_bytes);
  if (is_numbered(header.type) != (header.sequence != 0))
    return corrupt("a sequence not allowed for its type:", header.sequence);
  if ((header.flags & ~kFlagsAll) != 0) return corrupt("unknown flags", header.flags);
  return header;
}

}  // namespace luna::tcp
