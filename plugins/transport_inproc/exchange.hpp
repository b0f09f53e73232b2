// Where the endpoints of one process find each other and their transfers meet.
#pragma once

#include <luna/transport.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <vector>

namespace luna::inproc {

/// All endpoints of the process. A send and a receive that match are taken out together and copied
/// without the lock, by whichever thread posted the second of them.
class Exchange {
 public:
  /// Transfers of one endpoint that were posted and not yet polled.
  static constexpr std::size_t kTransfersMax = 4096;

  /// The one exchange of the process: endpoints are instances of their own, and this is where
  /// they meet. Never destroyed, since the library stays loaded.
  static Exchange& instance();

  std::uint64_t add_endpoint();
  /// Ends all transfers with it: unavailable for the others.
  void remove_endpoint(std::uint64_t endpoint);
  enum class Presence { present, gone, never };
  Presence presence(std::uint64_t endpoint);

  std::uint64_t add_region(std::uint64_t endpoint, void* begin, std::uint64_t n_bytes);
  /// Ends its transfers (cancelled) and waits for a copy that is under way.
  void remove_region(std::uint64_t endpoint, std::uint64_t key);

  /// A transfer with its numbers resolved.
  struct Transfer {
    luna_xfer posted{};
    std::uint64_t peer = 0;  // endpoint
  };
  Result<void> post(std::uint64_t endpoint, const std::vector<Transfer>& transfers);
  std::uint32_t poll(std::uint64_t endpoint, std::span<luna_xfer_done> done);
  /// Ends the transfers of an endpoint with one peer: unavailable.
  void drop(std::uint64_t endpoint, std::uint64_t peer);

 private:
  struct Region {
    std::byte* begin = nullptr;
    std::uint64_t n_bytes = 0;
    std::uint32_t n_copies = 0;  // under way
  };
  struct Endpoint {
    std::map<std::uint64_t, Region> regions;  // by key
    std::list<Transfer> waiting;              // in the order they were posted
    std::deque<luna_xfer_done> done;
    std::size_t n_open = 0;  // posted and not yet polled
  };
  /// Two transfers that met.
  struct Meeting {
    std::uint64_t sender = 0;
    std::uint64_t receiver = 0;
    luna_xfer send{};
    luna_xfer recv{};
  };

  static Result<void> check(const Endpoint& endpoint, const luna_xfer& transfer);
  static void finish(Endpoint& endpoint, const luna_xfer& transfer, luna_status status);
  template <typename Condition>
  static void end_waiting(Endpoint& endpoint, luna_status status, const Condition& concerns);
  bool meet(std::uint64_t endpoint, const Transfer& transfer, Meeting& meeting);
  void carry_out(std::unique_lock<std::mutex>& lock, const Meeting& meeting);

  std::mutex mutex_;  // guards everything below
  std::condition_variable copy_ended_;
  std::map<std::uint64_t, Endpoint> endpoints_;  // by id
  std::uint64_t next_endpoint_ = 1;
  std::uint64_t next_key_ = 1;
};

}  // namespace luna::inproc
