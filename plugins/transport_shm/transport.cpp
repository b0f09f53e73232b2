// Moves bytes between processes of one machine and user through shared memory.
#include "communicator.hpp"
#include "endpoint.hpp"
#include "rendezvous.hpp"

#include <luna/collective.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <sched.h>
#include <string>
#include <vector>

namespace luna::shm {
namespace {

/// What an address blob holds. Sent between processes of one machine.
struct Address {
  std::array<char, 8> magic{'l', 'u', 'n', 'a', '-', 's', 'h', 'm'};
  SegmentAddress inbox;
};

struct Options {
  std::string run;        // whose processes meet
  std::string directory;  // where they do; empty: the user's default
  std::uint64_t ring_bytes_max = 0;
};

/// One endpoint, and the communicators that were opened through it.
class ShmTransport final : public CollectiveTransport {
 public:
  static Result<std::unique_ptr<ShmTransport>> create(Host /*host*/, const Settings& settings) {
    Options options{settings.text("run"),
                    settings.text("directory"),
                    std::bit_floor(static_cast<std::uint64_t>(settings.integer("ring_bytes_max")))};
    LUNA_TRY(auto endpoint, Endpoint::create(std::min(options.ring_bytes_max, kTransferRingBytes)));
    return std::make_unique<ShmTransport>(std::move(options), std::move(endpoint));
  }
  ShmTransport(Options options, std::unique_ptr<Endpoint> endpoint)
      : options_(std::move(options)), endpoint_(std::move(endpoint)) {}
  ~ShmTransport() override {
    while (!ranks_.empty())
      close_communicator(*ranks_.back());
  }

  [[nodiscard]] luna_transport_caps caps() const override {
    const LinkSpeed assumed;
    return {sizeof(luna_transport_caps),
            LUNA_MEM_HOST | LUNA_MEM_PINNED,
            kCommMessageBytesMax,
            assumed.latency_ns,
            assumed.bytes_per_ns,
            LUNA_REACH_HOST,
            0};
  }

  std::uint32_t address(std::span<std::uint8_t> blob) const override {
    static_assert(sizeof(Address) <= LUNA_ADDRESS_BYTES_MAX);
    Address address;
    address.inbox = endpoint_->address();
    std::memcpy(blob.data(), &address, sizeof(address));
    return sizeof(address);
  }

  luna_status connect(std::span<const std::uint8_t> blob,
                      std::uint32_t& peer,
                      luna_err* err) override {
    Address address;
    if (blob.size() != sizeof(address) ||
        std::memcmp(blob.data(), address.magic.data(), sizeof(address.magic)) != 0) {
      return report(err, LUNA_INVALID_ARGUMENT, "not an address of transport shm");
    }
    std::memcpy(&address, blob.data(), sizeof(address));
    const auto connected = endpoint_->connect(address.inbox);
    if (!connected) return report(err, connected.error());
    if (!*connected) return LUNA_AGAIN;
    peer = **connected;
    return LUNA_OK;
  }

  Result<std::uint64_t> register_memory(const luna_mem& memory) override {
    if (memory.kind != LUNA_MEM_HOST && memory.kind != LUNA_MEM_PINNED) {
      return Error{Code::unsupported,
                   "memory kind " + std::to_string(memory.kind) + ": shm moves host memory only"};
    }
    if (memory.ptr == nullptr || memory.n_bytes == 0) {
      return Error{Code::invalid_argument, "an empty range of memory cannot be registered"};
    }
    return endpoint_->add_region(memory.ptr, memory.n_bytes);
  }
  void deregister_memory(std::uint64_t key) override { endpoint_->remove_region(key); }

  [[nodiscard]] std::uint64_t estimate_ns(std::uint32_t peer,
                                          std::uint64_t n_bytes) const override {
    const LinkSpeed& speed = endpoint_->speed(peer);
    return speed.latency_ns.load() +
           static_cast<std::uint64_t>(static_cast<double>(n_bytes) / speed.bytes_per_ns.load());
  }

  Result<void> post(std::span<const luna_xfer> transfers) override {
    return endpoint_->post(transfers);
  }
  std::uint32_t poll(std::span<luna_xfer_done> done) override { return endpoint_->poll(done); }
  void drop_peer(std::uint32_t peer) override { endpoint_->drop(peer); }

  Result<Communicator*> open_communicator(const CommunicatorOptions& options) override {
    LUNA_TRY(check_communicator(options));
    const std::lock_guard lock(mutex_);
    const std::string name = full_name(options.group);
    LUNA_TRY(check_against_own(name, options));
    if (!rendezvous_) {
      LUNA_TRY(rendezvous_, Rendezvous::open(options_.directory));
    }
    LUNA_TRY(auto group, rendezvous_->join(name, terms_of(options), options));
    ranks_.push_back(std::make_unique<GroupRank>(
        std::move(group), name, options.rank, has_core_for_each_rank(options)));
    return ranks_.back().get();
  }
  void abort_communicator(Communicator& communicator) override {
    static_cast<GroupRank&>(communicator).group().abort();
  }
  void close_communicator(Communicator& communicator) override {
    const std::lock_guard lock(mutex_);
    const auto& rank = static_cast<GroupRank&>(communicator);
    const std::string name = rank.name();
    const Epoch epoch = rank.epoch();
    std::erase_if(ranks_, [&](const auto& open) { return open.get() == &communicator; });
    rendezvous_->forget(name, epoch);
  }
  [[nodiscard]] Result<std::uint64_t> communicator_bytes(
      const CommunicatorOptions& options) const override {
    LUNA_TRY(check_communicator(options));
    return 2 * Group::kVectorBytes + options.lanes.size() * terms_of(options).lane_bytes;
  }

 private:
  /// Of posted transfers, which go in pieces: enough to keep both sides busy.
  static constexpr std::uint64_t kTransferRingBytes = 1U << 20U;
  static constexpr std::uint64_t kLaneBytesMin = 4096;

  [[nodiscard]] std::string full_name(std::string_view group) const {
    std::string run = options_.run;
    if (run.empty()) {
      const ProcessId self = own_process();
      run = "process-" + std::to_string(self.pid) + "-" + std::to_string(self.start_ticks);
    }
    return run + "/" + std::string(group);
  }

  /// Two messages fit, or as many as were asked for, so that a sender can go on while its receiver
  /// computes; larger rings than the setting would cost more memory than the waiting costs time.
  [[nodiscard]] GroupTerms terms_of(const CommunicatorOptions& options) const {
    const std::uint64_t n_messages = std::max(options.n_messages_max, 2U);
    const std::uint64_t wanted = std::bit_ceil(n_messages * (options.message_bytes_max + 64));
    return {options.n_ranks,
            0,
            options.message_bytes_max,
            std::clamp(wanted, kLaneBytesMin, options_.ring_bytes_max)};
  }

  /// A complete group cannot be found any more, so a rank that is opened twice would wait for ever
  /// in a new one.
  [[nodiscard]] Result<void> check_against_own(const std::string& name,
                                               const CommunicatorOptions& options) const {
    for (const auto& open : ranks_) {
      if (open->name() != name || open->group().is_over()) continue;
      if (open->rank() == options.rank || open->group().terms() != terms_of(options)) {
        return Error{Code::invalid_argument,
                     name + ": rank " + std::to_string(open->rank()) + " of " +
                         std::to_string(open->n_ranks()) + " with messages of up to " +
                         std::to_string(open->group().terms().message_bytes_max) +
                         " bytes is open; rank " + std::to_string(options.rank) + " of " +
                         std::to_string(options.n_ranks) + " with " +
                         std::to_string(options.message_bytes_max) + " does not fit"};
      }
    }
    return {};
  }

  const Options options_;
  const std::unique_ptr<Endpoint> endpoint_;
  std::mutex mutex_;                      // guards what follows
  std::optional<Rendezvous> rendezvous_;  // opened by the first communicator
  std::vector<std::unique_ptr<GroupRank>> ranks_;
};

constexpr luna_param kParams[] = {
    luna::param(LUNA_TYPE_STRING,
                "run",
                "",
                nullptr,
                nullptr,
                nullptr,
                "name that processes share whose ranks shall meet; empty: this process alone"),
    luna::param(LUNA_TYPE_STRING,
                "directory",
                "",
                nullptr,
                nullptr,
                nullptr,
                "folder where such processes find each other, of this user alone; empty: "
                "/dev/shm/luna-<user id>"),
    luna::param(LUNA_TYPE_INT,
                "ring_bytes_max",
                "4194304",
                "4096",
                "1073741824",
                nullptr,
                "largest ring between two ranks and a tag; longer messages stream through it"),
};
constexpr luna_transport_if kTable = transport_table<ShmTransport>(kParams);

}  // namespace
}  // namespace luna::shm

LUNA_DEFINE_PLUGIN("org.luna.transport.shm",
                   "shm",
                   "0.1.0",
                   "Moves bytes between processes of one machine through shared memory.",
                   LUNA_KIND_TRANSPORT,
                   luna::shm::kTable)
