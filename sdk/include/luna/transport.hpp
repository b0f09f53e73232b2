// The C++ side of a transport: derive from luna::Transport (or luna::CollectiveTransport), and make
// the table with luna::transport_table<T>(). The thunks fence every call.
#pragma once

#include <luna/plugin.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace luna {

/// Moves bytes between endpoints. An interface; one object per instance, owned by the host.
/// Thread tags as in abi/transport.h. A subclass also has
/// `static Result<std::unique_ptr<T>> create(Host, const Settings&)`.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual luna_transport_caps caps() const = 0;
  /// Writes the endpoint's address; `blob` has LUNA_ADDRESS_BYTES_MAX bytes. Returns its length.
  virtual std::uint32_t address(std::span<std::uint8_t> blob) const = 0;
  /// LUNA_AGAIN until the peer is there; then LUNA_OK and its number in `peer`.
  virtual luna_status connect(std::span<const std::uint8_t> blob,
                              std::uint32_t& peer,
                              luna_err* err) = 0;
  virtual Result<std::uint64_t> register_memory(const luna_mem& memory) = 0;
  virtual void deregister_memory(std::uint64_t key) = 0;
  [[nodiscard]] virtual std::uint64_t estimate_ns(std::uint32_t peer,
                                                  std::uint64_t n_bytes) const = 0;
  /// All or none: exhausted when there is no room for the whole batch.
  virtual Result<void> post(std::span<const luna_xfer> transfers) = 0;
  /// Fills `done` from the front. Returns how many.
  virtual std::uint32_t poll(std::span<luna_xfer_done> done) = 0;
  virtual void drop_peer(std::uint32_t peer) = 0;
};

/// Whether a transfer stays within the memory that its key names.
///
/// size    bytes registered under the key; null: none are
/// Errors  invalid_argument, with the key or the bytes
inline Result<void> check_range(const luna_xfer& transfer, const std::uint64_t* size) {
  if (size == nullptr) {
    return Error{Code::invalid_argument,
                 "memory key " + std::to_string(transfer.key) + " is not registered here"};
  }
  if (transfer.offset > *size || transfer.n_bytes > *size - transfer.offset) {
    return Error{Code::invalid_argument,
                 "bytes " + std::to_string(transfer.offset) + " and " +
                     std::to_string(transfer.n_bytes) + " after it leave a registered range of " +
                     std::to_string(*size)};
  }
  return {};
}

/// One rank's end of a communicator. The calls wait for their peer, so they answer with a bare
/// status: nothing is allocated inside a step.
class Communicator {
 public:
  Communicator(std::uint32_t rank, std::uint32_t n_ranks)
      : abi_{sizeof(luna_comm), rank, n_ranks, 0, this, send_thunk, recv_thunk, reduce_thunk} {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual luna_status send(std::uint32_t peer,
                           std::uint32_t tag,
                           std::span<const std::byte> data) = 0;
  virtual luna_status recv(std::uint32_t peer, std::uint32_t tag, std::span<std::byte> data) = 0;
  /// in, out   [n] elements of the operation's type; the same array or disjoint
  virtual luna_status all_reduce(const void* in,
                                 void* out,
                                 std::uint64_t n,
                                 std::uint32_t operation) = 0;

  [[nodiscard]] std::uint32_t rank() const { return abi_.rank; }
  [[nodiscard]] std::uint32_t n_ranks() const { return abi_.n_ranks; }
  [[nodiscard]] const luna_comm* abi() const { return &abi_; }
  static Communicator* from_abi(const luna_comm* comm) {
    return static_cast<Communicator*>(comm->self);
  }

 private:
  static luna_status send_thunk(void* self,
                                std::uint32_t peer,
                                std::uint32_t tag,
                                const void* data,
                                std::uint64_t n_bytes) noexcept {
    return fenced(nullptr, [&] {
      return static_cast<Communicator*>(self)->send(
          peer, tag, {static_cast<const std::byte*>(data), n_bytes});
    });
  }
  static luna_status recv_thunk(void* self,
                                std::uint32_t peer,
                                std::uint32_t tag,
                                void* data,
                                std::uint64_t n_bytes) noexcept {
    return fenced(nullptr, [&] {
      return static_cast<Communicator*>(self)->recv(
          peer, tag, {static_cast<std::byte*>(data), n_bytes});
    });
  }
  static luna_status reduce_thunk(
      void* self, const void* in, void* out, std::uint64_t n, std::uint32_t operation) noexcept {
    return fenced(nullptr, [&] {
      return static_cast<Communicator*>(self)->all_reduce(in, out, n, operation);
    });
  }

  luna_comm abi_;
};

/// What a rank asks for when it joins a communicator.
struct CommunicatorOptions {
  std::string_view group;  ///< ranks that name the same group meet
  std::uint32_t rank = 0;
  std::uint32_t n_ranks = 0;
  std::uint64_t message_bytes_max = 0;
  std::span<const luna_comm_lane> lanes;  ///< on which the rank receives
  /// [n_ranks] of the ranks' endpoints, an empty one: of this; or none at all.
  std::span<const luna_str> addresses;
  std::uint32_t n_messages_max = 0;  ///< of a lane, on their way; 0: as the transport likes
  std::uint32_t n_waiters_max = 0;   ///< threads that may wait at once; 0: n_ranks
};

/// A transport with the extension luna.ext.collective/1.
class CollectiveTransport : public Transport {
 public:
  /// The communicator is the transport's, until close_communicator(). [main]
  virtual Result<Communicator*> open_communicator(const CommunicatorOptions& options) = 0;
  /// Ends all waiting in the communicator's group, now and later. [any]
  virtual void abort_communicator(Communicator& communicator) = 0;
  virtual void close_communicator(Communicator& communicator) = 0;
  /// Memory that open_communicator() will take. [any]
  [[nodiscard]] virtual Result<std::uint64_t> communicator_bytes(
      const CommunicatorOptions& options) const = 0;
};

namespace detail {

template <typename T>
struct CollectiveThunks {
  static luna_status open(void* self,
                          const luna_comm_open* options,
                          const luna_comm** comm,
                          luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      LUNA_TRY(Communicator * opened,
               static_cast<T*>(self)->open_communicator(options_of(options)));
      *comm = opened->abi();
      return {};
    });
  }
  static void abort(void* self, const luna_comm* comm) noexcept {
    static_cast<T*>(self)->abort_communicator(*Communicator::from_abi(comm));
  }
  static void close(void* self, const luna_comm* comm) noexcept {
    static_cast<T*>(self)->close_communicator(*Communicator::from_abi(comm));
  }
  static luna_status comm_bytes(void* self,
                                const luna_comm_open* options,
                                std::uint64_t* bytes,
                                luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      LUNA_TRY(*bytes, static_cast<T*>(self)->communicator_bytes(options_of(options)));
      return {};
    });
  }
  static constexpr luna_collective_if kTable = {
      sizeof(luna_collective_if), 0, open, abort, close, comm_bytes};

 private:
  static CommunicatorOptions options_of(const luna_comm_open* options) {
    CommunicatorOptions own{view(options->group),
                            options->rank,
                            options->n_ranks,
                            options->message_bytes_max,
                            {},
                            {},
                            0,
                            0};
    if (LUNA_HAS(options, luna_comm_open, lanes)) own.lanes = {options->lanes, options->n_lanes};
    if (LUNA_HAS(options, luna_comm_open, addresses) && options->addresses != nullptr)
      own.addresses = {options->addresses, options->n_ranks};
    if (LUNA_HAS(options, luna_comm_open, n_messages_max))
      own.n_messages_max = options->n_messages_max;
    if (LUNA_HAS(options, luna_comm_open, n_waiters_max))
      own.n_waiters_max = options->n_waiters_max;
    return own;
  }
};

template <typename T>
const void* transport_extension(void* /*self*/, const char* id) noexcept {
  if constexpr (std::is_base_of_v<CollectiveTransport, T>) {
    if (std::string_view(id) == LUNA_EXT_COLLECTIVE) return &CollectiveThunks<T>::kTable;
  }
  return nullptr;
}

template <typename T>
struct TransportThunks {
  static luna_status caps(void* self, luna_transport_caps* caps) noexcept {
    return fenced(nullptr, [&] {
      if (!LUNA_HAS(caps, luna_transport_caps, bytes_per_ns)) return LUNA_INVALID_ARGUMENT;
      fill_record(caps, static_cast<T*>(self)->caps());
      return LUNA_OK;
    });
  }
  static luna_status address(void* self, std::uint8_t* blob, std::uint32_t* n_bytes) noexcept {
    return fenced(nullptr, [&] {
      *n_bytes = static_cast<T*>(self)->address({blob, LUNA_ADDRESS_BYTES_MAX});
      return LUNA_OK;
    });
  }
  static luna_status connect(void* self,
                             const std::uint8_t* blob,
                             std::uint32_t n_bytes,
                             std::uint32_t* peer,
                             luna_err* err) noexcept {
    return fenced(err, [&] { return static_cast<T*>(self)->connect({blob, n_bytes}, *peer, err); });
  }
  static luna_status register_memory(void* self,
                                     const luna_mem* memory,
                                     std::uint64_t* key,
                                     luna_err* err) noexcept {
    return fenced(err, [&]() -> Result<void> {
      LUNA_TRY(*key, static_cast<T*>(self)->register_memory(*memory));
      return {};
    });
  }
  static void deregister_memory(void* self, std::uint64_t key) noexcept {
    static_cast<T*>(self)->deregister_memory(key);
  }
  static std::uint64_t estimate_ns(void* self, std::uint32_t peer, std::uint64_t n_bytes) noexcept {
    return static_cast<T*>(self)->estimate_ns(peer, n_bytes);
  }
  static luna_status post(void* self,
                          const luna_xfer* transfers,
                          std::uint32_t n,
                          luna_err* err) noexcept {
    return fenced(err, [&] { return static_cast<T*>(self)->post({transfers, n}); });
  }
  static luna_status poll(void* self,
                          luna_xfer_done* done,
                          std::uint32_t n_max,
                          std::uint32_t* n) noexcept {
    return fenced(nullptr, [&] {
      *n = static_cast<T*>(self)->poll({done, n_max});
      return LUNA_OK;
    });
  }
  static void drop_peer(void* self, std::uint32_t peer) noexcept {
    static_cast<T*>(self)->drop_peer(peer);
  }
};

}  // namespace detail

/// The C table of transport T, for LUNA_DEFINE_PLUGIN(..., LUNA_KIND_TRANSPORT, table).
template <typename T>
constexpr luna_transport_if transport_table(std::span<const luna_param> params = {}) {
  static_assert(std::is_base_of_v<Transport, T>, "a transport derives from luna::Transport");
  using Thunks = detail::TransportThunks<T>;
  luna_if head = make_head<T, luna_transport_if>(params);
  head.ext = detail::transport_extension<T>;
  return {head,
          Thunks::caps,
          Thunks::address,
          Thunks::connect,
          Thunks::register_memory,
          Thunks::deregister_memory,
          Thunks::estimate_ns,
          Thunks::post,
          Thunks::poll,
          Thunks::drop_peer};
}

}  // namespace luna
