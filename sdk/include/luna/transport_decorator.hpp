// A transport in front of another one: derive from luna::TransportDecorator and override what shall
// be different. Header-only; link ${CMAKE_DL_LIBS}.
//
//   class Counting final : public luna::TransportDecorator {
//    public:
//     using TransportDecorator::TransportDecorator;
//     luna::Result<void> post(std::span<const luna_xfer> transfers) override {
//       n_ += transfers.size();
//       return TransportDecorator::post(transfers);
//     }
//   };
//   static constexpr auto kParams = luna::decorator_params();
//   static constexpr luna_transport_if kTable =
//       luna::transport_table<luna::Decorated<Counting>>(kParams);
#pragma once

#include <luna/inner_plugin.hpp>
#include <luna/transport.hpp>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace luna {

/// Hands every call over to the inner transport. Its host calls it as it calls any transport; what
/// the inner one calls is the same host.
class TransportDecorator : public CollectiveTransport {
 public:
  TransportDecorator(Host host, InnerPlugin inner)
      : host_(host),
        inner_(std::move(inner)),
        table_(reinterpret_cast<const luna_transport_if*>(inner_.head())),
        collective_(static_cast<const luna_collective_if*>(
            inner_.head()->ext(inner_.self(), LUNA_EXT_COLLECTIVE))) {}

  [[nodiscard]] luna_transport_caps caps() const override {
    luna_transport_caps caps{};
    caps.struct_size = sizeof(caps);
    table_->caps(inner_.self(), &caps);
    return caps;
  }
  std::uint32_t address(std::span<std::uint8_t> blob) const override {
    std::uint32_t n = 0;
    table_->address(inner_.self(), blob.data(), &n);
    return n;
  }
  luna_status connect(std::span<const std::uint8_t> blob,
                      std::uint32_t& peer,
                      luna_err* err) override {
    return table_->connect(
        inner_.self(), blob.data(), static_cast<std::uint32_t>(blob.size()), &peer, err);
  }
  Result<std::uint64_t> register_memory(const luna_mem& memory) override {
    luna_err err = make_err();
    std::uint64_t key = 0;
    LUNA_TRY(checked(table_->register_memory(inner_.self(), &memory, &key, &err), err));
    return key;
  }
  void deregister_memory(std::uint64_t key) override {
    table_->deregister_memory(inner_.self(), key);
  }
  [[nodiscard]] std::uint64_t estimate_ns(std::uint32_t peer,
                                          std::uint64_t n_bytes) const override {
    return table_->estimate_ns(inner_.self(), peer, n_bytes);
  }
  Result<void> post(std::span<const luna_xfer> transfers) override {
    luna_err err = make_err();
    return checked(
        table_->post(
            inner_.self(), transfers.data(), static_cast<std::uint32_t>(transfers.size()), &err),
        err);
  }
  std::uint32_t poll(std::span<luna_xfer_done> done) override {
    std::uint32_t n = 0;
    table_->poll(inner_.self(), done.data(), static_cast<std::uint32_t>(done.size()), &n);
    return n;
  }
  void drop_peer(std::uint32_t peer) override { table_->drop_peer(inner_.self(), peer); }

  /// One rank's end of the inner transport. Override send, recv and all_reduce, and make yours in
  /// make_communicator(). Called inside of a step: no log, no allocation.
  class Link : public Communicator {
   public:
    explicit Link(const luna_comm* inner)
        : Communicator(inner->rank, inner->n_ranks), inner_(inner) {}
    luna_status send(std::uint32_t peer,
                     std::uint32_t tag,
                     std::span<const std::byte> data) override {
      return inner_->send(inner_->self, peer, tag, data.data(), data.size());
    }
    luna_status recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) override {
      return inner_->recv(inner_->self, peer, tag, data.data(), data.size());
    }
    luna_status all_reduce(const void* in,
                           void* out,
                           std::uint64_t n,
                           std::uint32_t operation) override {
      return inner_->all_reduce(inner_->self, in, out, n, operation);
    }
    [[nodiscard]] const luna_comm* inner() const { return inner_; }

   private:
    const luna_comm* inner_;
  };
  virtual std::unique_ptr<Link> make_communicator(const luna_comm* inner) {
    return std::make_unique<Link>(inner);
  }

  Result<Communicator*> open_communicator(const CommunicatorOptions& options) override {
    LUNA_TRY(check_collective());
    const luna_comm_open request = request_of(options);
    const luna_comm* comm = nullptr;
    luna_err err = make_err();
    LUNA_TRY(checked(collective_->open(inner_.self(), &request, &comm, &err), err));
    links_.push_back(make_communicator(comm));
    return links_.back().get();
  }
  void abort_communicator(Communicator& communicator) override {
    collective_->abort(inner_.self(), static_cast<Link&>(communicator).inner());
  }
  void close_communicator(Communicator& communicator) override {
    collective_->close(inner_.self(), static_cast<Link&>(communicator).inner());
    std::erase_if(links_, [&](const auto& link) { return link.get() == &communicator; });
  }
  [[nodiscard]] Result<std::uint64_t> communicator_bytes(
      const CommunicatorOptions& options) const override {
    LUNA_TRY(check_collective());
    if (!LUNA_HAS(collective_, luna_collective_if, comm_bytes)) return std::uint64_t{0};
    const luna_comm_open request = request_of(options);
    std::uint64_t bytes = 0;
    luna_err err = make_err();
    LUNA_TRY(checked(collective_->comm_bytes(inner_.self(), &request, &bytes, &err), err));
    return bytes;
  }

 protected:
  [[nodiscard]] const Host& host() const { return host_; }

 private:
  /// The inner transport's answer, with its own words.
  static Result<void> checked(luna_status status, const luna_err& err) {
    if (status >= 0) return {};
    return Error{status >= LUNA_INTERNAL ? static_cast<Code>(status) : Code::internal,
                 std::string(text_of(err))};
  }
  [[nodiscard]] Result<void> check_collective() const {
    if (LUNA_HAS(collective_, luna_collective_if, close)) return {};
    return Error{Code::unsupported, "the inner transport cannot be used inside of a step"};
  }
  static luna_comm_open request_of(const CommunicatorOptions& o) {
    return {sizeof(luna_comm_open),
            o.rank,
            o.n_ranks,
            static_cast<std::uint32_t>(o.lanes.size()),
            o.message_bytes_max,
            to_abi(o.group),
            o.lanes.data(),
            o.addresses.empty() ? nullptr : o.addresses.data(),
            o.n_messages_max,
            o.n_waiters_max};
  }

  Host host_;
  InnerPlugin inner_;
  const luna_transport_if* table_;
  const luna_collective_if* collective_;
  std::vector<std::unique_ptr<Link>> links_;
};

/// The settings of every decorator, and those of its own. `run`, `host` and `token_file` are set by
/// the host where processes of one cluster meet, and go to the inner transport.
template <typename... Own>
constexpr std::array<luna_param, 5 + sizeof...(Own)> decorator_params(Own... own) {
  const auto text = [](const char* key, const char* dflt, const char* help) {
    return param(LUNA_TYPE_STRING, key, dflt, nullptr, nullptr, nullptr, help);
  };
  return {text("inner", "inproc", "the transport behind: its name, or its file (with a '/')"),
          param(LUNA_TYPE_STRING_MAP,
                "inner_settings",
                "",
                nullptr,
                nullptr,
                nullptr,
                "settings of the transport behind"),
          text("run", "", "of the inner transport: a name that the processes share"),
          text("host", "127.0.0.1", "of the inner transport: where others reach this process"),
          text("token_file", "", "of the inner transport: the file with the secret that all share"),
          own...};
}

/// What transport_table() takes: decorator T, made with an inner transport. T's constructor takes
/// (Host, InnerPlugin), or (Host, InnerPlugin, const Settings&).
template <typename T>
class Decorated final : public T {
 public:
  using T::T;
  static Result<std::unique_ptr<Decorated>> create(Host host, const Settings& settings) {
    std::vector<std::pair<std::string, std::string>> texts;
    for (const char* key : {"run", "host", "token_file"})
      texts.emplace_back(key, settings.text(key));
    const std::vector<std::string> given = settings.list("inner_settings");
    for (std::size_t i = 0; i + 1 < given.size(); i += 2)
      texts.insert(texts.begin(), {given[i], given[i + 1]});
    LUNA_TRY(
        InnerPlugin inner,
        InnerPlugin::open(host,
                          "transport",
                          {LUNA_KIND_TRANSPORT, LUNA_SIZE_THROUGH(luna_transport_if, drop_peer)},
                          settings.text("inner"),
                          texts));
    if constexpr (std::is_constructible_v<T, Host, InnerPlugin, const Settings&>)
      return std::make_unique<Decorated>(host, std::move(inner), settings);
    else
      return std::make_unique<Decorated>(host, std::move(inner));
  }
};

}  // namespace luna
