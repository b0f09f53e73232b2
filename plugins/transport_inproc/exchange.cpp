#include "exchange.hpp"

#include <algorithm>
#include <cstring>

namespace luna::inproc {

Exchange& Exchange::instance() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): a process has one
  static auto& exchange = *new Exchange;
  return exchange;
}

std::uint64_t Exchange::add_endpoint() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_endpoint_++;
  endpoints_[id];
  return id;
}

void Exchange::remove_endpoint(std::uint64_t endpoint) {
  std::unique_lock lock(mutex_);
  endpoints_[endpoint].waiting.clear();
  const auto end_transfers_to_it = [&] {
    for (auto& [id, other] : endpoints_) {
      end_waiting(other, LUNA_UNAVAILABLE, [&](const Transfer& transfer) {
        return transfer.peer == endpoint;
      });
    }
  };
  end_transfers_to_it();
  // Copies to and from it use its memory, and report to it when they end.
  const auto has_copies = [&] {
    const auto& regions = endpoints_[endpoint].regions;
    return std::any_of(regions.begin(), regions.end(), [](const auto& entry) {
      return entry.second.n_copies > 0;
    });
  };
  copy_ended_.wait(lock, [&] { return !has_copies(); });
  end_transfers_to_it();  // those that were posted while this waited
  endpoints_.erase(endpoint);
}

Exchange::Presence Exchange::presence(std::uint64_t endpoint) {
  const std::lock_guard lock(mutex_);
  if (endpoints_.contains(endpoint)) return Presence::present;
  return endpoint < next_endpoint_ ? Presence::gone : Presence::never;
}

std::uint64_t Exchange::add_region(std::uint64_t endpoint, void* begin, std::uint64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t key = next_key_++;
  endpoints_[endpoint].regions[key] = {static_cast<std::byte*>(begin), n_bytes, 0};
  return key;
}

void Exchange::remove_region(std::uint64_t endpoint, std::uint64_t key) {
  std::unique_lock lock(mutex_);
  Endpoint& owner = endpoints_[endpoint];
  const auto found = owner.regions.find(key);
  if (found == owner.regions.end()) return;
  end_waiting(
      owner, LUNA_CANCELLED, [&](const Transfer& transfer) { return transfer.posted.key == key; });
  copy_ended_.wait(lock, [&] { return found->second.n_copies == 0; });
  owner.regions.erase(found);
}

Result<void> Exchange::check(const Endpoint& endpoint, const luna_xfer& transfer) {
  if (transfer.verb != LUNA_XFER_SEND && transfer.verb != LUNA_XFER_RECV) {
    return Error{Code::invalid_argument,
                 "transfer verb " + std::to_string(transfer.verb) + ": must be send or receive"};
  }
  const auto region = endpoint.regions.find(transfer.key);
  return check_range(transfer,
                     region == endpoint.regions.end() ? nullptr : &region->second.n_bytes);
}

Result<void> Exchange::post(std::uint64_t endpoint, const std::vector<Transfer>& transfers) {
  std::unique_lock lock(mutex_);
  Endpoint& self = endpoints_[endpoint];
  if (self.n_open + transfers.size() > kTransfersMax) {
    return Error{Code::exhausted,
                 std::to_string(self.n_open) + " transfers are open and " +
                     std::to_string(transfers.size()) + " more were posted: at most " +
                     std::to_string(kTransfersMax)};
  }
  for (const Transfer& transfer : transfers)
    LUNA_TRY(check(self, transfer.posted));
  self.n_open += transfers.size();
  for (const Transfer& transfer : transfers) {
    Meeting meeting;
    if (!endpoints_.contains(transfer.peer)) {
      finish(self, transfer.posted, LUNA_UNAVAILABLE);
    } else if (meet(endpoint, transfer, meeting)) {
      carry_out(lock, meeting);
    } else {
      self.waiting.push_back(transfer);
    }
  }
  return {};
}

bool Exchange::meet(std::uint64_t endpoint, const Transfer& transfer, Meeting& meeting) {
  Endpoint& peer = endpoints_[transfer.peer];
  const auto other =
      std::find_if(peer.waiting.begin(), peer.waiting.end(), [&](const Transfer& waiting) {
        return waiting.peer == endpoint && waiting.posted.verb != transfer.posted.verb &&
               waiting.posted.tag == transfer.posted.tag;
      });
  if (other == peer.waiting.end()) return false;
  if (transfer.posted.verb == LUNA_XFER_SEND) {
    meeting = {endpoint, transfer.peer, transfer.posted, other->posted};
  } else {
    meeting = {transfer.peer, endpoint, other->posted, transfer.posted};
  }
  peer.waiting.erase(other);
  return true;
}

void Exchange::carry_out(std::unique_lock<std::mutex>& lock, const Meeting& meeting) {
  Endpoint& sender = endpoints_[meeting.sender];
  Endpoint& receiver = endpoints_[meeting.receiver];
  luna_status status = LUNA_OK;
  if (meeting.send.n_bytes > meeting.recv.n_bytes) {
    status = LUNA_INVALID_ARGUMENT;  // the receiver's room is too small
  } else if (meeting.send.n_bytes > 0) {
    Region& from = sender.regions[meeting.send.key];
    Region& to = receiver.regions[meeting.recv.key];
    ++from.n_copies;
    ++to.n_copies;
    lock.unlock();
    // memmove: an endpoint may send to itself, inside one range.
    std::memmove(
        to.begin + meeting.recv.offset, from.begin + meeting.send.offset, meeting.send.n_bytes);
    lock.lock();
    --from.n_copies;
    --to.n_copies;
  }
  luna_xfer received = meeting.recv;
  received.n_bytes = meeting.send.n_bytes;
  finish(sender, meeting.send, status);
  finish(receiver, received, status);
  copy_ended_.notify_all();
}

void Exchange::finish(Endpoint& endpoint, const luna_xfer& transfer, luna_status status) {
  endpoint.done.push_back({transfer.cookie, status, 0, status == LUNA_OK ? transfer.n_bytes : 0});
}

template <typename Condition>
void Exchange::end_waiting(Endpoint& endpoint, luna_status status, const Condition& concerns) {
  endpoint.waiting.remove_if([&](const Transfer& transfer) {
    if (!concerns(transfer)) return false;
    finish(endpoint, transfer.posted, status);
    return true;
  });
}

std::uint32_t Exchange::poll(std::uint64_t endpoint, std::span<luna_xfer_done> done) {
  const std::lock_guard lock(mutex_);
  Endpoint& self = endpoints_[endpoint];
  std::uint32_t n = 0;
  while (n < done.size() && !self.done.empty()) {
    done[n++] = self.done.front();
    self.done.pop_front();
  }
  self.n_open -= n;
  return n;
}

void Exchange::drop(std::uint64_t endpoint, std::uint64_t peer) {
  const std::lock_guard lock(mutex_);
  end_waiting(endpoints_[endpoint], LUNA_UNAVAILABLE, [&](const Transfer& transfer) {
    return transfer.peer == peer;
  });
}

}  // namespace luna::inproc
