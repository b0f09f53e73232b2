// Moves bytes between devices of one process by copying them.
#include "communicator.hpp"
#include "exchange.hpp"

#include <luna/collective.hpp>

#include <sys/types.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

namespace luna::inproc {
namespace {

/// What an address blob holds. Compared byte by byte, never sent to another machine.
struct Address {
  char magic[8] = {'l', 'u', 'n', 'a', '-', 'i', 'n', 'p'};
  std::uint64_t process = 0;
  std::uint64_t endpoint = 0;
};

/// One endpoint, and the communicators that were opened through it.
class InprocTransport final : public CollectiveTransport {
 public:
  static Result<std::unique_ptr<InprocTransport>> create(Host /*host*/,
                                                         const Settings& /*settings*/) {
    return std::make_unique<InprocTransport>();
  }
  ~InprocTransport() override { Exchange::instance().remove_endpoint(endpoint_); }

  [[nodiscard]] luna_transport_caps caps() const override {
    return {sizeof(luna_transport_caps),
            LUNA_MEM_HOST | LUNA_MEM_PINNED,
            kCommMessageBytesMax,
            kLatencyNs,
            kBytesPerNs,
            LUNA_REACH_PROCESS,
            0};
  }

  std::uint32_t address(std::span<std::uint8_t> blob) const override {
    Address address;
    address.process = static_cast<std::uint64_t>(::getpid());
    address.endpoint = endpoint_;
    static_assert(sizeof(address) <= LUNA_ADDRESS_BYTES_MAX);
    std::memcpy(blob.data(), &address, sizeof(address));
    return sizeof(address);
  }

  luna_status connect(std::span<const std::uint8_t> blob,
                      std::uint32_t& peer,
                      luna_err* err) override {
    Address address;
    if (blob.size() != sizeof(address) ||
        std::memcmp(blob.data(), address.magic, sizeof(address.magic)) != 0) {
      return report(err, LUNA_INVALID_ARGUMENT, "not an address of transport inproc");
    }
    std::memcpy(&address, blob.data(), sizeof(address));
    if (address.process != static_cast<std::uint64_t>(::getpid())) {
      return report(err,
                    LUNA_UNSUPPORTED,
                    "the peer lives in process " + std::to_string(address.process) +
                        ": inproc reaches this process only");
    }
    switch (Exchange::instance().presence(address.endpoint)) {
      case Exchange::Presence::present:
        peer = number_of(address.endpoint);
        return LUNA_OK;
      case Exchange::Presence::gone:
        return report(err, LUNA_UNAVAILABLE, "the peer has closed");
      case Exchange::Presence::never:
        break;
    }
    return LUNA_AGAIN;
  }

  Result<std::uint64_t> register_memory(const luna_mem& memory) override {
    if (memory.kind != LUNA_MEM_HOST && memory.kind != LUNA_MEM_PINNED) {
      return Error{
          Code::unsupported,
          "memory kind " + std::to_string(memory.kind) + ": inproc moves host memory only"};
    }
    if (memory.ptr == nullptr || memory.n_bytes == 0) {
      return Error{Code::invalid_argument, "an empty range of memory cannot be registered"};
    }
    return Exchange::instance().add_region(endpoint_, memory.ptr, memory.n_bytes);
  }
  void deregister_memory(std::uint64_t key) override {
    Exchange::instance().remove_region(endpoint_, key);
  }

  [[nodiscard]] std::uint64_t estimate_ns(std::uint32_t /*peer*/,
                                          std::uint64_t n_bytes) const override {
    return kLatencyNs + static_cast<std::uint64_t>(static_cast<double>(n_bytes) / kBytesPerNs);
  }

  Result<void> post(std::span<const luna_xfer> transfers) override {
    std::vector<Exchange::Transfer> resolved;
    resolved.reserve(transfers.size());
    for (const luna_xfer& transfer : transfers) {
      if (transfer.peer >= peers_.size()) {
        return Error{Code::invalid_argument,
                     "peer " + std::to_string(transfer.peer) + " is not connected"};
      }
      resolved.push_back({transfer, peers_[transfer.peer]});
    }
    return Exchange::instance().post(endpoint_, resolved);
  }
  std::uint32_t poll(std::span<luna_xfer_done> done) override {
    return Exchange::instance().poll(endpoint_, done);
  }
  void drop_peer(std::uint32_t peer) override {
    if (peer >= peers_.size()) return;
    Exchange::instance().drop(endpoint_, peers_[peer]);
    peers_[peer] = kNoEndpoint;  // numbers are not used again
  }

  Result<Communicator*> open_communicator(const CommunicatorOptions& options) override {
    LUNA_TRY(check_communicator(options));
    const std::lock_guard lock(groups_mutex_);
    LUNA_TRY(auto group, group_of(options));
    LUNA_TRY(group->join(options.rank));
    for (const luna_comm_lane& lane : options.lanes)
      group->mailbox(lane.peer, options.rank, lane.tag);
    ranks_.push_back(
        std::make_unique<GroupRank>(group, options.rank, has_core_for_each_rank(options)));
    return ranks_.back().get();
  }
  void abort_communicator(Communicator& communicator) override {
    static_cast<GroupRank&>(communicator).group()->abort();
  }
  void close_communicator(Communicator& communicator) override {
    const std::lock_guard lock(groups_mutex_);
    const auto group = static_cast<GroupRank&>(communicator).group();
    const bool was_last = group->leave(communicator.rank());
    std::erase_if(ranks_, [&](const auto& rank) { return rank.get() == &communicator; });
    if (was_last) std::erase(groups_, group);
  }
  [[nodiscard]] Result<std::uint64_t> communicator_bytes(
      const CommunicatorOptions& options) const override {
    LUNA_TRY(check_communicator(options));
    return options.lanes.size() * comm_messages(options) * options.message_bytes_max;
  }

 private:
  // A copy between cores through the shared cache, and what a wake-up costs; for planning only.
  static constexpr std::uint64_t kLatencyNs = 2'000;
  static constexpr double kBytesPerNs = 8.0;
  static constexpr std::uint64_t kNoEndpoint = 0;

  std::uint32_t number_of(std::uint64_t endpoint) {
    const auto found = std::find(peers_.begin(), peers_.end(), endpoint);
    const auto number = static_cast<std::uint32_t>(found - peers_.begin());
    if (found == peers_.end()) peers_.push_back(endpoint);
    return number;
  }

  Result<std::shared_ptr<Group>> group_of(const CommunicatorOptions& options) {
    for (const auto& group : groups_) {
      if (group->name() != options.group) continue;
      const std::uint32_t n_messages = comm_messages(options);
      if (group->n_ranks() != options.n_ranks ||
          group->message_bytes_max() != options.message_bytes_max ||
          group->n_messages_max() != n_messages) {
        const auto shape = [](std::uint32_t n_ranks, std::uint32_t n, std::uint64_t n_bytes) {
          return std::to_string(n_ranks) + " ranks, " + std::to_string(n) + " messages of up to " +
                 std::to_string(n_bytes) + " bytes a lane";
        };
        return Error{
            Code::invalid_argument,
            "group " + group->name() + " has " +
                shape(group->n_ranks(), group->n_messages_max(), group->message_bytes_max()) +
                "; rank " + std::to_string(options.rank) + " says " +
                shape(options.n_ranks, n_messages, options.message_bytes_max)};
      }
      return group;
    }
    groups_.push_back(std::make_shared<Group>(options));
    return groups_.back();
  }

  const std::uint64_t endpoint_ = Exchange::instance().add_endpoint();
  std::vector<std::uint64_t> peers_;  // endpoint by peer number
  std::mutex groups_mutex_;
  std::vector<std::shared_ptr<Group>> groups_;  // shared with their ranks
  std::vector<std::unique_ptr<GroupRank>> ranks_;
};

constexpr luna_transport_if kTable = transport_table<InprocTransport>();

}  // namespace
}  // namespace luna::inproc

LUNA_DEFINE_PLUGIN("org.luna.transport.inproc",
                   "inproc",
                   "0.1.0",
                   "Moves bytes between devices of one process.",
                   LUNA_KIND_TRANSPORT,
                   luna::inproc::kTable)
