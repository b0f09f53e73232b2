// Moves bytes between endpoints of one process. Put your network in place of World.
#include <luna/transport.hpp>

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace detail {

// Where the endpoints of this process meet. A transfer that was posted waits here for its match.
class World {
 public:
  static World& instance() {
    static World& world = *new World;  // never destroyed: the library stays loaded
    return world;
  }

  std::uint64_t add() {
    const std::lock_guard lock(mutex_);
    ends_[++last_];
    return last_;
  }
  void remove(std::uint64_t end) {
    const std::lock_guard lock(mutex_);
    ends_.erase(end);
    for (auto& [id, other] : ends_)
      finish_all(other, LUNA_UNAVAILABLE, [end](const Posted& p) { return p.peer == end; });
  }
  bool has(std::uint64_t end) {
    const std::lock_guard lock(mutex_);
    return ends_.contains(end);
  }
  std::uint64_t add_memory(std::uint64_t end, const luna_mem& memory) {
    const std::lock_guard lock(mutex_);
    ends_[end].memory[++last_key_] = {static_cast<std::byte*>(memory.ptr), memory.n_bytes};
    return last_key_;
  }
  void remove_memory(std::uint64_t end, std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    finish_all(ends_[end], LUNA_CANCELLED, [key](const Posted& p) { return p.xfer.key == key; });
    ends_[end].memory.erase(key);
  }
  void drop(std::uint64_t end, std::uint64_t peer) {
    const std::lock_guard lock(mutex_);
    finish_all(ends_[end], LUNA_UNAVAILABLE, [peer](const Posted& p) { return p.peer == peer; });
  }

  struct Posted {
    luna_xfer xfer;
    std::uint64_t peer;
  };
  luna::Result<void> post(std::uint64_t end, const std::vector<Posted>& batch) {
    const std::lock_guard lock(mutex_);
    End& own = ends_[end];
    if (own.n_open + batch.size() > kOpenMax)
      return luna::Error{luna::Code::exhausted, "too many transfers are open: poll first"};
    for (const Posted& posted : batch) {
      if (posted.xfer.verb != LUNA_XFER_SEND && posted.xfer.verb != LUNA_XFER_RECV)
        return luna::Error{luna::Code::invalid_argument, "a transfer is a send or a receive"};
      const auto memory = own.memory.find(posted.xfer.key);
      LUNA_TRY(luna::check_range(
          posted.xfer, memory == own.memory.end() ? nullptr : &memory->second.n_bytes));
    }
    own.n_open += batch.size();
    for (const Posted& posted : batch)
      start(end, posted);
    return {};
  }
  std::uint32_t poll(std::uint64_t end, std::span<luna_xfer_done> done) {
    const std::lock_guard lock(mutex_);
    End& own = ends_[end];
    std::uint32_t n = 0;
    for (; n < done.size() && !own.done.empty(); ++n, --own.n_open) {
      done[n] = own.done.front();
      own.done.pop_front();
    }
    return n;
  }

 private:
  static constexpr std::size_t kOpenMax = 4096;
  struct Memory {
    std::byte* first;
    std::uint64_t n_bytes;
  };
  struct End {
    std::map<std::uint64_t, Memory> memory;  // by key
    std::list<Posted> waiting;               // in the order in which they were posted
    std::deque<luna_xfer_done> done;
    std::size_t n_open = 0;  // posted and not yet polled
  };

  static void finish(End& end, const luna_xfer& xfer, luna_status status, std::uint64_t n_bytes) {
    end.done.push_back({xfer.cookie, status, 0, n_bytes});
  }
  template <typename Concerns>
  static void finish_all(End& end, luna_status status, const Concerns& concerns) {
    std::erase_if(end.waiting, [&](const Posted& posted) {
      if (!concerns(posted)) return false;
      finish(end, posted.xfer, status, 0);
      return true;
    });
  }
  void start(std::uint64_t end, const Posted& posted) {
    const auto there = ends_.find(posted.peer);
    if (there == ends_.end()) return finish(ends_[end], posted.xfer, LUNA_UNAVAILABLE, 0);
    auto& waiting = there->second.waiting;
    const auto match = std::find_if(waiting.begin(), waiting.end(), [&](const Posted& other) {
      return other.peer == end && other.xfer.tag == posted.xfer.tag &&
             other.xfer.verb != posted.xfer.verb;
    });
    if (match == waiting.end()) return ends_[end].waiting.push_back(posted);
    const Posted other = *match;
    waiting.erase(match);
    const bool sends = posted.xfer.verb == LUNA_XFER_SEND;
    const luna_xfer& from = sends ? posted.xfer : other.xfer;
    const luna_xfer& to = sends ? other.xfer : posted.xfer;
    End& sender = ends_[sends ? end : posted.peer];
    End& receiver = ends_[sends ? posted.peer : end];
    const luna_status status = from.n_bytes > to.n_bytes ? LUNA_INVALID_ARGUMENT : LUNA_OK;
    if (status == LUNA_OK && from.n_bytes > 0)
      std::memmove(receiver.memory[to.key].first + to.offset,
                   sender.memory[from.key].first + from.offset, from.n_bytes);
    finish(sender, from, status, status == LUNA_OK ? from.n_bytes : 0);
    finish(receiver, to, status, status == LUNA_OK ? from.n_bytes : 0);
  }

  std::mutex mutex_;  // guards everything below
  std::map<std::uint64_t, End> ends_;
  std::uint64_t last_ = 0;
  std::uint64_t last_key_ = 0;
};

}  // namespace detail

class @CLASS@ final : public luna::Transport {
 public:
  static luna::Result<std::unique_ptr<@CLASS@>> create(luna::Host, const luna::Settings&) {
    return std::make_unique<@CLASS@>();
  }
  ~@CLASS@() override { detail::World::instance().remove(end_); }

  luna_transport_caps caps() const override {
    return {sizeof(luna_transport_caps), LUNA_MEM_HOST, std::uint64_t{1} << 32, kLatencyNs,
            kBytesPerNs, LUNA_REACH_PROCESS, 0};
  }
  // The host carries the address to the peers.
  std::uint32_t address(std::span<std::uint8_t> blob) const override {
    std::memcpy(blob.data(), &end_, sizeof(end_));
    return sizeof(end_);
  }
  luna_status connect(std::span<const std::uint8_t> blob, std::uint32_t& peer,
                      luna_err* err) override {
    std::uint64_t end = 0;
    if (blob.size() != sizeof(end))
      return luna::report(err, LUNA_INVALID_ARGUMENT, "not an address of transport @NAME@");
    std::memcpy(&end, blob.data(), sizeof(end));
    if (!detail::World::instance().has(end)) return LUNA_AGAIN;
    const auto found = std::find(peers_.begin(), peers_.end(), end);
    peer = static_cast<std::uint32_t>(found - peers_.begin());
    if (found == peers_.end()) peers_.push_back(end);
    return LUNA_OK;
  }
  luna::Result<std::uint64_t> register_memory(const luna_mem& memory) override {
    if (memory.kind != LUNA_MEM_HOST || memory.ptr == nullptr || memory.n_bytes == 0)
      return luna::Error{luna::Code::unsupported, "only ranges of host memory can be registered"};
    return detail::World::instance().add_memory(end_, memory);
  }
  void deregister_memory(std::uint64_t key) override { detail::World::instance().remove_memory(end_, key); }
  std::uint64_t estimate_ns(std::uint32_t, std::uint64_t n_bytes) const override {
    return kLatencyNs + static_cast<std::uint64_t>(static_cast<double>(n_bytes) / kBytesPerNs);
  }
  luna::Result<void> post(std::span<const luna_xfer> transfers) override {
    std::vector<detail::World::Posted> batch;
    for (const luna_xfer& transfer : transfers) {
      if (transfer.peer >= peers_.size() || peers_[transfer.peer] == 0)
        return luna::Error{luna::Code::invalid_argument,
                           "peer " + std::to_string(transfer.peer) + " is not connected"};
      batch.push_back({transfer, peers_[transfer.peer]});
    }
    return detail::World::instance().post(end_, batch);
  }
  std::uint32_t poll(std::span<luna_xfer_done> done) override {
    return detail::World::instance().poll(end_, done);
  }
  void drop_peer(std::uint32_t peer) override {
    if (peer >= peers_.size()) return;
    detail::World::instance().drop(end_, peers_[peer]);
    peers_[peer] = 0;  // numbers are not given twice
  }

 private:
  static constexpr std::uint64_t kLatencyNs = 1'000;
  static constexpr double kBytesPerNs = 8.0;
  const std::uint64_t end_ = detail::World::instance().add();
  std::vector<std::uint64_t> peers_;  // by number; 0: dropped
};

static constexpr luna_transport_if kTable = luna::transport_table<@CLASS@>();

LUNA_DEFINE_PLUGIN("@ID@", "@NAME@", "0.1.0", "Moves bytes between endpoints of one process.",
                   LUNA_KIND_TRANSPORT, kTable)
