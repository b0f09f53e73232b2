#include "core/cluster/remote_kv.hpp"

#include "core/base/assert.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace luna::cluster {
namespace {

// A worker copies a message in well under a millisecond. One that pings and does not answer for so
// many looks in a row is stuck, and nobody may use blocks that it could still touch while it is one
// of us. Looks, so that a process that was stopped itself blames nobody.
constexpr std::chrono::seconds kLook{1};
constexpr int kLooksMax = 10;

}  // namespace

void RemoteKv::open(std::uint64_t shard_id,
                    const luna_kv_layout& layout,
                    std::uint64_t block_bytes) {
  LUNA_VERIFY(layout.n_layers > 0);
  shard_id_ = shard_id;
  layer_bytes_ = block_bytes / layout.n_layers;
  LUNA_VERIFY(layer_bytes_ > 0 && layer_bytes_ <= kKvLayerBytesMax);
}

Result<void> RemoteKv::copy_out(const luna_kv_part& part, std::byte* bytes) {
  return run({part, FrameType::kv_export, FrameType::kv_given, {bytes, part.n_bytes}, {}});
}

Result<void> RemoteKv::copy_in(const luna_kv_part& part, const std::byte* bytes) {
  return run({part, FrameType::kv_import, FrameType::kv_taken, {}, {bytes, part.n_bytes}});
}

std::optional<RemoteKv::Flight>* RemoteKv::find_flight(std::uint64_t number) {
  const auto found = std::ranges::find_if(flights_, [number](const std::optional<Flight>& flight) {
    return flight && flight->number == number;
  });
  return found == flights_.end() ? nullptr : &*found;
}

Result<void> RemoteKv::run(const Call& call) {
  LUNA_ASSERT(call.part.n_bytes ==
              std::uint64_t{call.part.n_blocks} * call.part.n_layers * layer_bytes_);
  const std::lock_guard turn(turn_mutex_);
  KvPieces pieces(call.part.n_blocks, call.part.n_layers, layer_bytes_);
  std::optional<KvPiece> piece = pieces.next();
  std::unique_lock lock(mutex_);
  failed_.reset();
  awaited_ = call.answers;
  const auto is_free = [](const std::optional<Flight>& flight) { return !flight; };
  int n_looks = 0;  // without an answer
  while (!lost_) {
    const auto free = std::ranges::find_if(flights_, is_free);
    if (piece && !failed_ && free != flights_.end()) {
      const std::uint64_t number = next_number_++;
      const bool is_out = !call.into.empty();
      *free = Flight{number, is_out ? call.into.subspan(piece->offset, piece->n_bytes) : call.into};
      lock.unlock();
      send(call, *piece, number);
      piece = pieces.next();
      lock.lock();
      continue;
    }
    if (std::ranges::all_of(flights_, is_free)) break;
    const std::uint64_t n_seen = n_answers_;
    answered_.wait_for(lock, kLook, [&] { return lost_ || n_answers_ != n_seen; });
    n_looks = n_answers_ == n_seen ? n_looks + 1 : 0;
    // lose() follows, from the I/O thread.
    if (n_looks == kLooksMax) link_.close({Code::timeout, "a copy of KV blocks was not answered"});
  }
  if (lost_) return *lost_;
  if (failed_) return *std::exchange(failed_, std::nullopt);
  return {};
}

void RemoteKv::send(const Call& call, const KvPiece& piece, std::uint64_t number) {
  const std::span blocks(call.part.blocks, call.part.n_blocks);
  const auto some = blocks.subspan(piece.first_block, piece.n_blocks);
  KvOrder order;
  order.number = number;
  order.first_layer = call.part.first_layer + piece.first_layer;
  order.n_layers = piece.n_layers;
  order.blocks.assign(some.begin(), some.end());
  const bool is_in = !call.from.empty();
  // Where it cannot be sent, the loss of the connection ends the copy.
  link_.send(call.asks,
             shard_id_,
             encode_kv_order(order),
             is_in ? call.from.subspan(piece.offset, piece.n_bytes) : call.from);
}

Result<void> RemoteKv::take(const Frame& frame) {
  LUNA_TRY(const KvAnswer answer, parse_kv_answer(frame.payload));
  const std::lock_guard lock(mutex_);
  std::optional<Flight>* const flight = find_flight(answer.number);
  if (flight == nullptr || frame.type != awaited_)
    return Error{Code::corrupt, "KV blocks that nobody asked for"};
  const std::span<std::byte> into = (*flight)->into;
  if (answer.result && answer.bytes.size() != into.size()) {
    return Error{Code::corrupt,
                 std::to_string(answer.bytes.size()) + " bytes of KV blocks, " +
                     std::to_string(into.size()) + " were asked for"};
  }
  if (answer.result)
    std::ranges::copy(answer.bytes, into.begin());
  else if (!failed_)
    failed_ = answer.result.error();
  flight->reset();
  ++n_answers_;
  answered_.notify_all();
  return {};
}

void RemoteKv::lose(const Error& why) {
  const std::lock_guard lock(mutex_);
  lost_ = why;
  answered_.notify_all();
}

}  // namespace luna::cluster
