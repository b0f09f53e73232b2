// A decorator: stands in front of another transport, logs who comes and goes and what fails, and at
// the end how much went through. What it does inside of a step is to count.
#include <luna/transport_decorator.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <string>

// Messages and bytes of one direction.
struct Tally {
  std::atomic<std::uint64_t> n_messages{0};
  std::atomic<std::uint64_t> n_bytes{0};

  void add(std::uint64_t bytes) {
    n_messages.fetch_add(1, std::memory_order_relaxed);
    n_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  std::string text() const {
    return std::to_string(n_messages.load()) + " messages of " + std::to_string(n_bytes.load()) +
           " bytes";
  }
};

class Logging : public luna::TransportDecorator {
 public:
  using TransportDecorator::TransportDecorator;
  ~Logging() override {
    log(LUNA_LOG_INFO, "ends: sent " + sent_.text() + ", received " + received_.text());
  }

  luna_status connect(std::span<const std::uint8_t> blob,
                      std::uint32_t& peer,
                      luna_err* err) override {
    const luna_status status = TransportDecorator::connect(blob, peer, err);
    if (status == LUNA_OK) log(LUNA_LOG_INFO, "peer " + std::to_string(peer) + " is there");
    if (status < 0)
      log(LUNA_LOG_WARN,
          "a peer is refused: " + (err == nullptr ? "" : std::string(luna::text_of(*err))));
    return status;
  }
  void drop_peer(std::uint32_t peer) override {
    log(LUNA_LOG_INFO, "peer " + std::to_string(peer) + " is dropped");
    TransportDecorator::drop_peer(peer);
  }

  luna::Result<void> post(std::span<const luna_xfer> transfers) override {
    // Before they are started: what has ended may be polled at once.
    for (const luna_xfer& transfer : transfers)
      if (transfer.verb == LUNA_XFER_SEND) ++n_sends_[transfer.cookie];
    luna::Result<void> started = TransportDecorator::post(transfers);
    if (!started) {
      for (const luna_xfer& transfer : transfers)
        if (transfer.verb == LUNA_XFER_SEND) forget_send(transfer.cookie);
      // A full queue is no failure: the host polls, and posts again.
      if (started.error().code() != luna::Code::exhausted)
        log(LUNA_LOG_WARN, "transfers are refused: " + started.error().message());
    }
    return started;
  }
  std::uint32_t poll(std::span<luna_xfer_done> done) override {
    const std::uint32_t n = TransportDecorator::poll(done);
    for (const luna_xfer_done& one : done.first(n)) {
      const bool is_send = forget_send(one.cookie);
      if (one.status == LUNA_OK)
        (is_send ? sent_ : received_).add(one.n_bytes);
      else
        log(LUNA_LOG_WARN,
            std::string(is_send ? "a send" : "a receive") + " ended with status " +
                std::to_string(one.status));
    }
    return n;
  }

  // Inside of a step: one device's executor calls, and nothing is logged that succeeds.
  class CountingLink final : public Link {
   public:
    CountingLink(const luna_comm* inner, Logging& owner) : Link(inner), owner_(owner) {}
    luna_status send(std::uint32_t peer,
                     std::uint32_t tag,
                     std::span<const std::byte> data) override {
      return counted(Link::send(peer, tag, data), owner_.sent_, data.size());
    }
    luna_status recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) override {
      return counted(Link::recv(peer, tag, data), owner_.received_, data.size());
    }

   private:
    luna_status counted(luna_status status, Tally& tally, std::uint64_t n_bytes) {
      if (status == LUNA_OK) tally.add(n_bytes);
      if (status < 0 && status != LUNA_CANCELLED)
        owner_.log(LUNA_LOG_WARN,
                   "rank " + std::to_string(rank()) + ": a message ended with status " +
                       std::to_string(status));
      return status;
    }
    Logging& owner_;
  };
  std::unique_ptr<Link> make_communicator(const luna_comm* inner) override {
    log(LUNA_LOG_INFO,
        "rank " + std::to_string(inner->rank) + " of " + std::to_string(inner->n_ranks) +
            " opens a communicator");
    return std::make_unique<CountingLink>(inner, *this);
  }

 private:
  void log(std::int32_t level, const std::string& text) const { host().log(level, text); }
  // Whether a transfer of that cookie was a send; a host may use a cookie more than once.
  bool forget_send(std::uint64_t cookie) {
    const auto found = n_sends_.find(cookie);
    if (found == n_sends_.end()) return false;
    if (--found->second == 0) n_sends_.erase(found);
    return true;
  }

  std::map<std::uint64_t, std::uint32_t> n_sends_;  // posted and not yet polled, by cookie
  Tally sent_;
  Tally received_;
};

static constexpr auto kParams = luna::decorator_params();
static constexpr luna_transport_if kTable =
    luna::transport_table<luna::Decorated<Logging>>(kParams);

LUNA_DEFINE_PLUGIN("org.luna.example.transport.logging",
                   "logging",
                   "0.1.0",
                   "Logs what another transport does, and counts what goes through it.",
                   LUNA_KIND_TRANSPORT,
                   kTable)
