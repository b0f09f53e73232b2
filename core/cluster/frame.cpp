#include "core/cluster/frame.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <string>

namespace luna::cluster {
namespace {

constexpr std::uint32_t kMagic = 0x4C54434C;                // "LCTL"
constexpr std::size_t kReadBytes = std::size_t{64} * 1024;  // what a socket's buffer gives at once

}  // namespace

std::string_view name_of(FrameType type) {
  switch (type) {
    case FrameType::hello:
      return "hello";
    case FrameType::challenge:
      return "challenge";
    case FrameType::proof:
      return "proof";
    case FrameType::accept:
      return "accept";
    case FrameType::refuse:
      return "refuse";
    case FrameType::join:
      return "join";
    case FrameType::welcome:
      return "welcome";
    case FrameType::ping:
      return "ping";
    case FrameType::leave:
      return "leave";
    case FrameType::drain:
      return "drain";
    case FrameType::dismiss:
      return "dismiss";
    case FrameType::stay:
      return "stay";
    case FrameType::memory:
      return "memory";
    case FrameType::relieve:
      return "relieve";
    case FrameType::survey:
      return "survey";
    case FrameType::plan:
      return "plan";
    case FrameType::pack:
      return "pack";
    case FrameType::bind:
      return "bind";
    case FrameType::answer:
      return "answer";
    case FrameType::unload:
      return "unload";
    case FrameType::abort:
      return "abort";
    case FrameType::step:
      return "step";
    case FrameType::output:
      return "output";
    case FrameType::done:
      return "done";
    case FrameType::kv_export:
      return "kv_export";
    case FrameType::kv_import:
      return "kv_import";
    case FrameType::kv_given:
      return "kv_given";
    case FrameType::kv_taken:
      return "kv_taken";
    case FrameType::slices_open:
      return "slices_open";
    case FrameType::slices_abort:
      return "slices_abort";
    case FrameType::slices_close:
      return "slices_close";
  }
  return "unknown";
}

bool is_greeting(FrameType type) {
  return type <= FrameType::refuse;
}

FrameHead encode_head(FrameType type, std::uint64_t subject, std::size_t n_bytes) {
  LUNA_VERIFY(n_bytes <= kPayloadBytesMax);
  FrameHead head{};
  const auto put = [&](std::size_t offset, auto value) {
    std::memcpy(head.data() + offset, &value, sizeof(value));
  };
  put(0, kMagic);
  put(4, kProtocolVersion);
  put(6, static_cast<std::uint16_t>(type));
  put(8, subject);
  put(16, static_cast<std::uint32_t>(n_bytes));
  return head;
}

std::span<std::byte> FrameReader::room() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0 && buffer_.size() - end_ < kReadBytes) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  // Twice what is there: a frame is copied a bounded number of times while it comes.
  if (buffer_.size() - end_ < kReadBytes) buffer_.resize(2 * end_ + kReadBytes);
  return std::span(buffer_).subspan(end_);
}

void FrameReader::add(std::size_t n) {
  LUNA_VERIFY(n <= buffer_.size() - end_);
  end_ += n;
}

Result<std::optional<Frame>> FrameReader::next() {
  if (end_ - begin_ < kFrameHeadBytes) return std::optional<Frame>();
  WireReader head(std::span<const std::byte>(buffer_).subspan(begin_, kFrameHeadBytes));
  const auto magic = head.number<std::uint32_t>();
  const auto version = head.number<std::uint16_t>();
  const auto type = head.number<std::uint16_t>();
  const auto subject = head.number<std::uint64_t>();
  const auto n_bytes = head.number<std::uint32_t>();
  const auto reserved = head.number<std::uint32_t>();
  if (magic != kMagic) return Error{Code::corrupt, "what came is no frame of a cluster"};
  if (version != kProtocolVersion) {
    return Error{Code::unsupported,
                 "the other side speaks protocol version " + std::to_string(version) +
                     ", this one " + std::to_string(kProtocolVersion)};
  }
  const auto known = static_cast<FrameType>(type);
  if (type == 0 || known > kFrameTypeLast || reserved != 0)
    return Error{Code::corrupt, "a frame of unknown type " + std::to_string(type)};
  if (!is_trusted_ && !is_greeting(known)) {
    return Error{Code::corrupt,
                 "a frame '" + std::string(name_of(known)) + "' before the token was proved"};
  }
  const std::uint32_t n_max = is_trusted_ ? kPayloadBytesMax : kGreetingBytesMax;
  if (n_bytes > n_max) {
    return Error{Code::corrupt,
                 "a frame '" + std::string(name_of(known)) + "' of " + std::to_string(n_bytes) +
                     " bytes: at most " + std::to_string(n_max)};
  }
  const std::size_t n_tag_bytes = seal_ ? FrameSeal::kTagBytes : 0;
  if (end_ - begin_ - kFrameHeadBytes < n_bytes + n_tag_bytes) return std::optional<Frame>();
  if (seal_) LUNA_TRY(check_tag(name_of(known), n_bytes));
  const std::span<const std::byte> bytes(buffer_);
  const Frame frame{known, subject, bytes.subspan(begin_ + kFrameHeadBytes, n_bytes)};
  begin_ += kFrameHeadBytes + n_bytes + n_tag_bytes;
  return std::optional<Frame>(frame);
}

/// Of the whole frame that comes next.
Result<void> FrameReader::check_tag(std::string_view type, std::size_t n_bytes) {
  const auto frame = std::span<const std::byte>(buffer_).subspan(begin_);
  const auto sealed = frame.first(kFrameHeadBytes + n_bytes);
  LUNA_TRY(const FrameSeal::Tag due, seal_->next(std::span(&sealed, 1)));
  const auto tag = frame.subspan(sealed.size()).first<FrameSeal::kTagBytes>();
  if (is_same_tag(due, tag)) return {};
  return Error{Code::corrupt,
               "a frame '" + std::string(type) +
                   "' with a wrong tag: it was changed, repeated, held back or made up on its way"};
}

}  // namespace luna::cluster
