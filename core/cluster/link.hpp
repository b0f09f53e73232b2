// One connection between a controller and a worker: frames in, frames out, and whether the other
// side lives.
#pragma once

#include "core/cluster/frame.hpp"

#include <luna/result.hpp>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace luna::cluster {

/// What a connection tells its owner. [io]
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  /// An error ends the connection.
  virtual Result<void> on_frame(const Frame& frame) = 0;
  /// Once, at the end; nothing comes after it.
  virtual void on_closed(const Error& why) = 0;
};

/// Reads on its I/O thread. Writes at once from whoever sends, as far as the system takes it, since
/// each step of a remote device pays for the way; the rest goes out on the I/O thread. Kept alive
/// by its own pending reads, so owners may let go of it when they have closed it.
class Link : public std::enable_shared_from_this<Link> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  /// What may wait for a peer that does not read: beyond it the peer is lost.
  static constexpr std::size_t kPendingBytesMax = std::size_t{128} << 20U;

  explicit Link(Socket socket);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Reads from now on. The handler lives until on_closed() has returned. [io]
  void start(std::shared_ptr<LinkHandler> handler);
  /// The other side is trusted: longer frames are read, pings are sent and silence is counted.
  ///
  /// seals     of all frames from now on; none: there is no token
  /// interval  between pings
  /// timeout   of silence, counted while this process runs: one that was stopped blames nobody
  /// [io]
  void trust(std::chrono::milliseconds interval,
             std::chrono::milliseconds timeout,
             std::optional<FrameSeals> seals);
  /// Ends the connection; on_closed() follows, from the I/O thread. What was sent before still goes
  /// out as far as the system takes it. [any]
  void close(Error why);

  /// Sends a frame whose payload may be in two parts. False: the connection has ended. [any]
  bool send(FrameType type,
            std::uint64_t subject,
            std::span<const std::byte> payload = {},
            std::span<const std::byte> more = {});
  [[nodiscard]] bool is_open() const { return is_open_.load(std::memory_order_acquire); }
  /// "10.0.0.7:41234". [any]
  [[nodiscard]] const std::string& peer() const { return peer_; }
  /// The address of this side, by which the other one reaches it. [any]
  [[nodiscard]] const std::string& own_host() const { return own_host_; }

 private:
  void read();
  void take(std::size_t n);
  void flush();
  void beat();
  void end(Error why);

  Socket socket_;
  boost::asio::steady_timer timer_;
  std::string peer_;
  std::string own_host_;
  std::shared_ptr<LinkHandler> handler_;  // until the end
  FrameReader reader_;
  std::chrono::milliseconds interval_{};
  std::uint32_t n_silent_ = 0;      // beats since something came
  std::uint32_t n_silent_max_ = 0;  // beyond it the other side is lost
  std::atomic<bool> is_open_{true};

  std::mutex mutex_;  // guards what follows, and the socket's writing side
  Bytes pending_;     // that the system did not take yet
  bool is_flushing_ = false;
  std::optional<FrameSeal> seal_;  // of what is sent
};

}  // namespace luna::cluster
