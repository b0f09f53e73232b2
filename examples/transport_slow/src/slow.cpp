// A decorator that makes another transport as slow as a network would be: what would a model over
// two machines with 10 Gbit/s between them do? Ask before you buy the cable.
//
// A message of n bytes arrives latency_us + n / bytes_per_us after the inner transport has it.
// Inside of a step messages of one rank pass one behind the other, as over one cable.
#include <luna/transport_decorator.hpp>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <thread>

class Slow : public luna::TransportDecorator {
 public:
  Slow(luna::Host host, luna::InnerPlugin inner, const luna::Settings& settings)
      : TransportDecorator(host, std::move(inner)),
        latency_us_(settings.number("latency_us")),
        bytes_per_us_(settings.number("bytes_per_us")) {}

  luna_transport_caps caps() const override {
    luna_transport_caps caps = TransportDecorator::caps();
    caps.latency_ns += delay_ns(0);
    caps.bytes_per_ns = 1.0 / (1.0 / caps.bytes_per_ns + 1e3 / bytes_per_us_);  // ns of a byte add
    return caps;
  }
  std::uint64_t estimate_ns(std::uint32_t peer, std::uint64_t n_bytes) const override {
    return TransportDecorator::estimate_ns(peer, n_bytes) + delay_ns(n_bytes);
  }

  // What has ended is told when it would have come.
  std::uint32_t poll(std::span<luna_xfer_done> done) override {
    luna_xfer_done some[16];
    for (std::uint32_t n = sizeof(some) / sizeof(some[0]); n == sizeof(some) / sizeof(some[0]);) {
      n = TransportDecorator::poll(some);
      for (std::uint32_t i = 0; i < n; ++i)
        late_.push_back({now_ns() + delay_ns(some[i].n_bytes), some[i]});
    }
    std::uint32_t n = 0;
    for (; n < done.size() && !late_.empty() && late_.front().due_ns <= now_ns(); ++n) {
      done[n] = late_.front().done;
      late_.pop_front();
    }
    return n;
  }

  class SlowLink final : public Link {
   public:
    SlowLink(const luna_comm* inner, const Slow& owner) : Link(inner), owner_(owner) {}
    luna_status recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) override {
      const luna_status status = Link::recv(peer, tag, data);
      if (status == LUNA_OK) owner_.wait(data.size());
      return status;
    }
    luna_status all_reduce(const void* in,
                           void* out,
                           std::uint64_t n,
                           std::uint32_t operation) override {
      const luna_status status = Link::all_reduce(in, out, n, operation);
      if (status == LUNA_OK) owner_.wait(n * sizeof(float));
      return status;
    }

   private:
    const Slow& owner_;
  };
  std::unique_ptr<Link> make_communicator(const luna_comm* inner) override {
    return std::make_unique<SlowLink>(inner, *this);
  }

 private:
  struct Late {
    std::uint64_t due_ns;
    luna_xfer_done done;
  };
  // Of the machine and not of the host, whose clock may be a virtual one: the bytes are real.
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  std::uint64_t delay_ns(std::uint64_t n_bytes) const {
    return static_cast<std::uint64_t>((latency_us_ + static_cast<double>(n_bytes) / bytes_per_us_) *
                                      1e3);
  }
  void wait(std::uint64_t n_bytes) const {
    std::this_thread::sleep_for(std::chrono::nanoseconds(delay_ns(n_bytes)));
  }

  double latency_us_;
  double bytes_per_us_;
  std::deque<Late> late_;  // in the order in which the inner transport ended them
};

static constexpr auto kParams =
    luna::decorator_params(luna::param(LUNA_TYPE_FLOAT,
                                       "latency_us",
                                       "50",
                                       "0",
                                       "1000000",
                                       nullptr,
                                       "what a message takes longer, whatever its size"),
                           luna::param(LUNA_TYPE_FLOAT,
                                       "bytes_per_us",
                                       "1250",
                                       "1",
                                       "1000000",
                                       nullptr,
                                       "speed of the network: 1250 are 10 Gbit/s"));
static constexpr luna_transport_if kTable = luna::transport_table<luna::Decorated<Slow>>(kParams);

LUNA_DEFINE_PLUGIN("org.luna.example.transport.slow",
                   "slow",
                   "0.1.0",
                   "Makes another transport as slow as a network would be.",
                   LUNA_KIND_TRANSPORT,
                   kTable)
