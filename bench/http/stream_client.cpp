#include "bench/http/stream_client.hpp"

#include "bench/http/stamped_token.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <unistd.h>

namespace luna::bench {
namespace {

constexpr std::string_view kKey = R"("content":")";
constexpr std::string_view kDone = "data: [DONE]";
constexpr std::string_view kOk = "HTTP/1.1 200";
constexpr std::string_view kBody =
    R"({"messages":[{"role":"user","content":"Hello"}],"stream":true,"max_tokens":100000})";
// Ages above are counted as this.
constexpr std::size_t kAgeUsMax = 4'000'000;
constexpr std::size_t kReadBytes = std::size_t{256} * 1024;

Error io_error(const std::string& what) {
  return {Code::io, what + ": " + std::strerror(errno)};
}

/// One stream: what is left of the last read, because an event may come in two.
struct Stream {
  int fd = -1;
  std::string rest;
  std::uint64_t last_due_us = 0;
  bool has_head = false;
  bool is_done = false;
};

class Reader {
 public:
  explicit Reader(const ClientOptions& options)
      : options_(options), streams_(options.n_streams), n_by_age_(kAgeUsMax + 1) {}
  ~Reader() {
    for (const Stream& stream : streams_)
      if (stream.fd >= 0) close(stream.fd);
    if (epoll_ >= 0) close(epoll_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Result<void> open_all();
  Result<void> read_all();
  [[nodiscard]] ClientReport report();

 private:
  Result<void> open(std::uint32_t idx);
  Result<bool> read_some(Stream& stream);
  void take(Stream& stream, std::string_view bytes);
  void take_text(Stream& stream, std::string_view text);
  [[nodiscard]] std::uint32_t percentile(double share) const;

  const ClientOptions options_;
  int epoll_ = -1;
  std::vector<Stream> streams_;
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
  std::vector<std::uint64_t> n_by_age_;  // [kAgeUsMax + 1]
  std::uint64_t now_us_ = 0;             // of the read being taken apart
  std::uint64_t first_us_ = 0;
  std::uint64_t counted_begin_us_ = 0;
  std::uint64_t counted_end_us_ = 0;
  ClientReport report_;
};

Result<void> Reader::open(std::uint32_t idx) {
  Stream& stream = streams_[idx];
  stream.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (stream.fd < 0) return io_error("socket " + std::to_string(idx));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(options_.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(stream.fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return io_error("connect " + std::to_string(idx));
  const int on = 1;
  setsockopt(stream.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::string request =
      "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
      "content-type: application/json\r\ncontent-length: " +
      std::to_string(kBody.size()) + "\r\n\r\n";
  request += kBody;
  if (send(stream.fd, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    return io_error("send " + std::to_string(idx));
  epoll_event interest{};
  interest.events = EPOLLIN;
  interest.data.u32 = idx;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, stream.fd, &interest) != 0) return io_error("epoll_ctl");
  return {};
}

Result<void> Reader::open_all() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return io_error("epoll_create1");
  for (std::uint32_t idx = 0; idx < options_.n_streams; ++idx)
    LUNA_TRY(open(idx));
  return {};
}

void Reader::take_text(Stream& stream, std::string_view text) {
  if (text.empty()) return;  // the opening chunk, with the role
  if (first_us_ == 0) first_us_ = now_us_;
  const std::uint64_t since_us = now_us_ - first_us_;
  const bool counts =
      since_us >= options_.warm_up_us && since_us < options_.warm_up_us + options_.counted_us;
  if (counts && counted_begin_us_ == 0) counted_begin_us_ = now_us_;
  if (counts) ++report_.n_events;
  for (; text.size() >= kTokenBytes; text.remove_prefix(kTokenBytes)) {
    const std::uint32_t age = age_us(text, now_us_);
    const std::uint64_t due_us = now_us_ - age;
    if (due_us < stream.last_due_us) ++report_.n_out_of_order;
    stream.last_due_us = due_us;
    ++report_.n_tokens_all;
    if (!counts) continue;
    ++report_.n_tokens;
    ++n_by_age_[std::min<std::size_t>(age, kAgeUsMax)];
    report_.age_us_max = std::max(report_.age_us_max, age);
    counted_end_us_ = now_us_;
  }
}

void Reader::take(Stream& stream, std::string_view bytes) {
  if (!stream.has_head) {
    if (bytes.size() < kOk.size()) {
      stream.rest = bytes;
      return;
    }
    stream.has_head = bytes.starts_with(kOk);
  }
  for (;;) {
    const auto key = bytes.find(kKey);
    const auto end = key == std::string_view::npos ? key : bytes.find('"', key + kKey.size());
    if (key == std::string_view::npos) {
      if (bytes.find(kDone) != std::string_view::npos) stream.is_done = true;
      stream.rest = bytes.substr(bytes.size() - std::min(bytes.size(), kDone.size() - 1));
      return;
    }
    if (end == std::string_view::npos) {
      stream.rest = bytes.substr(key);
      return;
    }
    take_text(stream, bytes.substr(key + kKey.size(), end - key - kKey.size()));
    bytes.remove_prefix(end);
  }
}

/// False at the stream's end.
Result<bool> Reader::read_some(Stream& stream) {
  const std::size_t n_rest = stream.rest.size();
  std::copy(stream.rest.begin(), stream.rest.end(), buffer_.begin());
  const ssize_t n = recv(stream.fd, buffer_.data() + n_rest, buffer_.size() - n_rest, 0);
  if (n < 0) return io_error("recv");
  now_us_ = now_us();
  ++report_.n_reads;
  if (n == 0) return false;
  stream.rest.clear();
  take(stream, {buffer_.data(), n_rest + static_cast<std::size_t>(n)});
  return !stream.is_done;
}

Result<void> Reader::read_all() {
  std::array<epoll_event, 512> ready{};
  for (std::uint32_t n_open = options_.n_streams; n_open > 0;) {
    const int n = epoll_wait(epoll_, ready.data(), static_cast<int>(ready.size()), -1);
    if (n < 0 && errno != EINTR) return io_error("epoll_wait");
    for (int i = 0; i < n; ++i) {
      Stream& stream = streams_[ready[static_cast<std::size_t>(i)].data.u32];
      LUNA_TRY(const bool goes_on, read_some(stream));
      if (goes_on) continue;
      if (stream.has_head && stream.is_done) ++report_.n_ended_well;
      close(stream.fd);
      stream.fd = -1;
      --n_open;
    }
  }
  return {};
}

std::uint32_t Reader::percentile(double share) const {
  const auto wanted = static_cast<std::uint64_t>(share * static_cast<double>(report_.n_tokens));
  std::uint64_t n = 0;
  for (std::size_t age = 0; age <= kAgeUsMax; ++age) {
    n += n_by_age_[age];
    if (n > wanted) return static_cast<std::uint32_t>(age);
  }
  return static_cast<std::uint32_t>(kAgeUsMax);
}

ClientReport Reader::report() {
  report_.counted_s = static_cast<double>(counted_end_us_ - counted_begin_us_) / 1e6;
  report_.age_us_p50 = percentile(0.5);
  report_.age_us_p99 = percentile(0.99);
  report_.age_us_p999 = percentile(0.999);
  return report_;
}

}  // namespace

Result<ClientReport> read_streams(const ClientOptions& options) {
  Reader reader(options);
  LUNA_TRY(reader.open_all());
  LUNA_TRY(reader.read_all());
  return reader.report();
}

}  // namespace luna::bench
