// Moves bytes between hosts by TCP: endpoints that prove to know a token, connections that are made
// again without loss, and communicators over them.
#include "communicator.hpp"
#include "endpoint.hpp"
#include "params.hpp"
#include "peer_numbers.hpp"
#include "regions.hpp"

#include <luna/transport.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace luna::tcp {
namespace {

/// An endpoint as core sees it: numbers for peers, keys for memory.
class TcpTransport final : public CollectiveTransport {
 public:
  static Result<std::unique_ptr<TcpTransport>> create(Host host, const Settings& settings) {
    LUNA_TRY(Options options, Options::from(settings));
    LUNA_TRY(auto endpoint, Endpoint::open(std::move(options), host));
    return std::make_unique<TcpTransport>(std::move(endpoint));
  }
  explicit TcpTransport(std::unique_ptr<Endpoint> endpoint)
      : endpoint_(std::move(endpoint)), numbers_(*endpoint_) {}

  [[nodiscard]] luna_transport_caps caps() const override {
    return {sizeof(luna_transport_caps),
            LUNA_MEM_HOST | LUNA_MEM_PINNED,
            endpoint_->options().message_bytes_max,
            PeerNumbers::kLatencyNs,
            PeerNumbers::kBytesPerNs,
            LUNA_REACH_NETWORK,
            0};
  }
  std::uint32_t address(std::span<std::uint8_t> blob) const override {
    const auto bytes = encode_address(endpoint_->address());
    static_assert(kAddressBytesMax <= LUNA_ADDRESS_BYTES_MAX);
    std::memcpy(blob.data(), bytes.data(), bytes.size());
    return static_cast<std::uint32_t>(bytes.size());
  }
  luna_status connect(std::span<const std::uint8_t> blob,
                      std::uint32_t& peer,
                      luna_err* err) override;
  Result<std::uint64_t> register_memory(const luna_mem& memory) override;
  void deregister_memory(std::uint64_t key) override;
  [[nodiscard]] std::uint64_t estimate_ns(std::uint32_t peer,
                                          std::uint64_t n_bytes) const override {
    return numbers_.estimate_ns(peer, n_bytes);
  }
  Result<void> post(std::span<const luna_xfer> transfers) override;
  std::uint32_t poll(std::span<luna_xfer_done> done) override {
    return endpoint_->completions().poll(done);
  }
  void drop_peer(std::uint32_t peer) override;

  Result<Communicator*> open_communicator(const CommunicatorOptions& options) override;
  void abort_communicator(Communicator& communicator) override;
  void close_communicator(Communicator& communicator) override;
  [[nodiscard]] Result<std::uint64_t> communicator_bytes(
      const CommunicatorOptions& options) const override {
    LUNA_TRY(check(options));
    return options.lanes.size() * kLaneDepth * options.message_bytes_max;
  }

 private:
  /// A transfer on its way to the I/O thread.
  struct Posted {
    std::uint64_t endpoint = 0;
    std::uint32_t verb = 0;
    Transfer transfer;
  };

  [[nodiscard]] Result<void> check(const CommunicatorOptions& options) const;
  [[nodiscard]] Result<Posted> resolve(const luna_xfer& transfer) const;
  static void start(Endpoint& endpoint, const std::vector<Posted>& posted);
  [[nodiscard]] Result<std::vector<Address>> addresses_of(const CommunicatorOptions& options) const;
  static Result<std::vector<std::shared_ptr<Peer>>> reach(Endpoint& endpoint,
                                                          const std::vector<Address>& addresses);

  const std::unique_ptr<Endpoint> endpoint_;
  PeerNumbers numbers_;
  Regions regions_;
  std::mutex mutex_;                               // guards the ranks
  std::vector<std::unique_ptr<GroupRank>> ranks_;  // open
};

luna_status TcpTransport::connect(std::span<const std::uint8_t> blob,
                                  std::uint32_t& peer,
                                  luna_err* err) {
  const auto address = parse_address(std::as_bytes(blob));
  if (!address) return report(err, address.error());
  return numbers_.connect(*address, peer, err);
}

Result<std::uint64_t> TcpTransport::register_memory(const luna_mem& memory) {
  const std::uint64_t key = endpoint_->next_number();
  LUNA_TRY(regions_.add(key, memory));
  return key;
}

void TcpTransport::deregister_memory(std::uint64_t key) {
  if (!regions_.remove(key)) return;
  // Behind what was posted; nobody looks at the memory any more when it returns.
  endpoint_->call([&] {
    const auto peers = endpoint_->registry().peers();
    for (const auto& peer : peers)
      peer->transfers().forget_memory(key);
  });
}

Result<TcpTransport::Posted> TcpTransport::resolve(const luna_xfer& transfer) const {
  LUNA_TRY(const std::uint64_t endpoint, numbers_.endpoint_of(transfer.peer));
  if (transfer.verb != LUNA_XFER_SEND && transfer.verb != LUNA_XFER_RECV) {
    return Error{Code::invalid_argument,
                 "transfer verb " + std::to_string(transfer.verb) + ": must be send or receive"};
  }
  LUNA_TRY(std::byte* const begin, regions_.resolve(transfer));
  if (transfer.n_bytes > endpoint_->options().message_bytes_max) {
    return Error{Code::invalid_argument,
                 "a transfer of " + std::to_string(transfer.n_bytes) + " bytes: at most " +
                     std::to_string(endpoint_->options().message_bytes_max)};
  }
  return Posted{endpoint,
                transfer.verb,
                {transfer.cookie, transfer.key, begin, transfer.n_bytes, transfer.tag}};
}

Result<void> TcpTransport::post(std::span<const luna_xfer> transfers) {
  std::vector<Posted> posted;
  posted.reserve(transfers.size());
  for (const luna_xfer& transfer : transfers) {
    LUNA_TRY(Posted resolved, resolve(transfer));
    posted.push_back(resolved);
  }
  LUNA_TRY(endpoint_->completions().open(posted.size()));
  endpoint_->post(
      [&endpoint = *endpoint_, posted = std::move(posted)] { start(endpoint, posted); });
  return {};
}

void TcpTransport::start(Endpoint& endpoint, const std::vector<Posted>& posted) {
  Registry& registry = endpoint.registry();
  for (const Posted& one : posted) {
    auto peer = registry.find(one.endpoint);
    if (peer != nullptr && one.verb == LUNA_XFER_RECV) peer = registry.receiver_of(peer);
    if (peer == nullptr) {
      endpoint.completions().finish(one.transfer.cookie, LUNA_UNAVAILABLE, 0);
    } else if (one.verb == LUNA_XFER_SEND) {
      peer->transfers().post_send(one.transfer);
    } else {
      peer->transfers().post_receive(one.transfer);
    }
  }
}

void TcpTransport::drop_peer(std::uint32_t peer) {
  const std::uint64_t endpoint = numbers_.drop(peer);
  if (endpoint == 0) return;
  endpoint_->call([&] {
    const auto dropped = endpoint_->registry().find(endpoint);
    if (dropped == nullptr) return;
    const auto receiver = endpoint_->registry().receiver_of(dropped);
    dropped->transfers().end(LUNA_UNAVAILABLE);
    if (receiver != nullptr) receiver->transfers().end(LUNA_UNAVAILABLE);
    if (!endpoint_->groups().is_used(*dropped)) dropped->leave();
  });
}

Result<void> TcpTransport::check(const CommunicatorOptions& options) const {
  LUNA_TRY(check_communicator(options));
  if (options.message_bytes_max > endpoint_->options().message_bytes_max) {
    return Error{Code::invalid_argument,
                 "messages of up to " + std::to_string(options.message_bytes_max) +
                     " bytes: transport.tcp.message_bytes_max allows " +
                     std::to_string(endpoint_->options().message_bytes_max)};
  }
  if (!options.addresses.empty() && options.addresses.size() != options.n_ranks) {
    return Error{Code::invalid_argument,
                 std::to_string(options.addresses.size()) + " addresses for " +
                     std::to_string(options.n_ranks) + " ranks"};
  }
  return {};
}

Result<std::vector<Address>> TcpTransport::addresses_of(const CommunicatorOptions& options) const {
  std::vector<Address> addresses(options.n_ranks, endpoint_->local_address());
  for (std::size_t rank = 0; rank < options.addresses.size(); ++rank) {
    const std::string_view blob = view(options.addresses[rank]);
    if (blob.empty()) continue;
    auto address = parse_address(std::as_bytes(std::span(blob)));
    if (!address) return address.error().in("rank " + std::to_string(rank));
    if (address->endpoint != endpoint_->address().endpoint) addresses[rank] = std::move(*address);
  }
  if (addresses[options.rank].endpoint != endpoint_->address().endpoint) {
    return Error{Code::invalid_argument,
                 "rank " + std::to_string(options.rank) + " has the address of another endpoint"};
  }
  return addresses;
}

// Ranks of this endpoint talk by a connection to itself, which a rank alone needs none of.
Result<std::vector<std::shared_ptr<Peer>>> TcpTransport::reach(
    Endpoint& endpoint, const std::vector<Address>& addresses) {
  const auto is_here = [&](const Address& address) {
    return address.endpoint == endpoint.address().endpoint;
  };
  const bool is_alone = std::count_if(addresses.begin(), addresses.end(), is_here) == 1;
  std::vector<std::shared_ptr<Peer>> peers;
  for (const Address& address : addresses) {
    if (is_alone && is_here(address)) {
      peers.push_back(nullptr);
      continue;
    }
    LUNA_TRY(auto peer, endpoint.registry().reach(address));
    peers.push_back(std::move(peer));
  }
  return peers;
}

Result<Communicator*> TcpTransport::open_communicator(const CommunicatorOptions& options) {
  LUNA_TRY(check(options));
  LUNA_TRY(const std::vector<Address> addresses, addresses_of(options));
  Result<std::shared_ptr<Group>> joined = Error{Code::internal, "not tried"};
  endpoint_->call([&] {
    auto outs = reach(*endpoint_, addresses);
    if (!outs) {
      joined = outs.error();
      return;
    }
    joined = endpoint_->groups().join({options.group,
                                       options.rank,
                                       options.message_bytes_max,
                                       endpoint_->next_number(),
                                       options.lanes,
                                       std::move(*outs)});
  });
  if (!joined) return joined.error();
  const std::lock_guard lock(mutex_);
  ranks_.push_back(std::make_unique<GroupRank>(*endpoint_, std::move(*joined), options.rank));
  return ranks_.back().get();
}

void TcpTransport::abort_communicator(Communicator& communicator) {
  const auto& group = static_cast<GroupRank&>(communicator).group();
  if (!group->abort()) return;
  std::vector<Peer*> told;
  for (std::uint32_t rank = 0; rank < group->n_ranks(); ++rank) {
    const auto& out = group->out(rank);
    if (out == nullptr || out->address().endpoint == endpoint_->address().endpoint ||
        std::find(told.begin(), told.end(), out.get()) != told.end())
      continue;
    told.push_back(out.get());
    endpoint_->inlet().push(out, membership_frame(FrameType::abort, *group, communicator.rank()));
  }
}

void TcpTransport::close_communicator(Communicator& communicator) {
  auto& rank = static_cast<GroupRank&>(communicator);
  endpoint_->call([&] {
    endpoint_->inlet().drain();  // what it has sent goes first
    endpoint_->groups().leave(rank.group(), rank.rank());
  });
  const std::lock_guard lock(mutex_);
  std::erase_if(ranks_, [&](const auto& own) { return own.get() == &rank; });
}

constexpr luna_transport_if kTable = transport_table<TcpTransport>(kParams);

}  // namespace
}  // namespace luna::tcp

LUNA_DEFINE_PLUGIN("org.luna.transport.tcp",
                   "tcp",
                   "0.1.0",
                   "Moves bytes between hosts by TCP, with a shared token or TLS.",
                   LUNA_KIND_TRANSPORT,
                   luna::tcp::kTable)
