// A relay between two endpoints that delays, cuts and swallows what passes.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <fcntl.h>
#include <list>
#include <poll.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace luna::test {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

inline int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in at = loopback(port);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  return fd;
}

/// Listens on a port of its own and connects everybody with one target. Its thread looks at the
/// wishes of the test every few milliseconds.
class Relay {
 public:
  explicit Relay(std::uint16_t target) : target_(target) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const sockaddr_in at = loopback(0);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    sockaddr_in bound{};
    socklen_t n = sizeof(bound);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &n), 0);
    port_ = ntohs(bound.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    is_stopping_ = true;
    thread_.join();
    for (Pair& pair : pairs_)
      close(pair);
    ::close(listener_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// Every byte comes this much later.
  void delay(std::chrono::milliseconds by) { delay_ms_ = by.count(); }
  /// While true, nothing passes, and connections stay open: half-open for both ends.
  void swallow(bool is_swallowing) { is_swallowing_ = is_swallowing; }
  /// Closes all connections. Returns when it is done.
  void cut() {
    const int before = n_cuts_;
    is_cutting_ = true;
    while (n_cuts_ == before)
      std::this_thread::yield();
  }
  [[nodiscard]] int n_connections() const { return n_connections_; }
  /// All bytes in both directions so far.
  [[nodiscard]] std::uint64_t n_bytes() const { return n_bytes_; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Chunk {
    Time due;
    std::vector<char> bytes;
    std::size_t n_sent = 0;
  };
  struct Way {
    int from = -1;
    int to = -1;
    std::deque<Chunk> chunks;
  };
  struct Pair {
    std::array<Way, 2> ways;
    bool is_over = false;
    bool was_swallowed = false;  // bytes are missing, so nothing may pass any more
  };

  void run() {
    while (!is_stopping_) {
      accept();
      bool has_moved = false;
      for (Pair& pair : pairs_)
        for (Way& way : pair.ways)
          has_moved = step(pair, way) || has_moved;
      if (is_cutting_.exchange(false)) {
        for (Pair& pair : pairs_)
          pair.is_over = true;
        ++n_cuts_;
      }
      pairs_.remove_if([&](Pair& pair) {
        if (pair.is_over) close(pair);
        return pair.is_over;
      });
      pollfd nothing{listener_, POLLIN, 0};
      if (!has_moved) ::poll(&nothing, 1, 1);
    }
  }
  void accept() {
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (client < 0) return;
    ++n_connections_;
    const int server = connect_to(target_);
    ::fcntl(server, F_SETFL, O_NONBLOCK);
    Pair& pair = pairs_.emplace_back();
    pair.ways[0].from = pair.ways[1].to = client;
    pair.ways[0].to = pair.ways[1].from = server;
  }
  bool step(Pair& pair, Way& way) {
    if (is_swallowing_) pair.was_swallowed = true;
    bool has_moved = false;
    std::array<char, 65536> buffer;
    if (way.chunks.size() < 64) {
      const ssize_t n = ::recv(way.from, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) pair.is_over = !pair.was_swallowed;
      if (n > 0 && !pair.was_swallowed) {
        const Time due =
            std::chrono::steady_clock::now() + std::chrono::milliseconds(delay_ms_.load());
        way.chunks.push_back({due, {buffer.data(), buffer.data() + n}, 0});
        n_bytes_ += static_cast<std::uint64_t>(n);
        has_moved = true;
      }
    }
    if (pair.was_swallowed) return has_moved;
    while (!way.chunks.empty() && way.chunks.front().due <= std::chrono::steady_clock::now()) {
      Chunk& chunk = way.chunks.front();
      const ssize_t n = ::send(way.to,
                               chunk.bytes.data() + chunk.n_sent,
                               chunk.bytes.size() - chunk.n_sent,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) pair.is_over = true;
      if (n <= 0) break;
      has_moved = true;
      chunk.n_sent += static_cast<std::size_t>(n);
      if (chunk.n_sent == chunk.bytes.size()) way.chunks.pop_front();
    }
    return has_moved;
  }
  static void close(Pair& pair) {
    ::close(pair.ways[0].from);
    ::close(pair.ways[0].to);
  }

  const std::uint16_t target_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::list<Pair> pairs_;  // of the thread
  std::atomic<std::int64_t> delay_ms_{0};
  std::atomic<std::uint64_t> n_bytes_{0};
  std::atomic<bool> is_swallowing_{false};
  std::atomic<bool> is_cutting_{false};
  std::atomic<bool> is_stopping_{false};
  std::atomic<int> n_cuts_{0};
  std::atomic<int> n_connections_{0};
  std::thread thread_;
};

}  // namespace luna::test
