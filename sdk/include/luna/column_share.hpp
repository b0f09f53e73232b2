// The columns of an activation that each rank of a tensor split computes, and how ranks bring them
// together: the arithmetic of LUNA_OP_ALL_GATHER.
#pragma once

#include <luna/abi/transport.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace luna {

/// A contiguous range of columns (or of a weight's rows, which make them).
struct ColumnShare {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  [[nodiscard]] constexpr std::uint32_t end() const { return first + count; }
  friend constexpr bool operator==(const ColumnShare&, const ColumnShare&) = default;
};

/// Columns are dealt out in units (a KV head's, say), of which the last may be short: as many to
/// each rank, in rank order, the first ranks one more where they do not divide.
///
/// unit, n_ranks   at least 1; rank below n_ranks
constexpr ColumnShare column_share(std::uint32_t n_columns,
                                   std::uint32_t unit,
                                   std::uint32_t rank,
                                   std::uint32_t n_ranks) {
  const std::uint32_t n_units = n_columns / unit + (n_columns % unit != 0 ? 1 : 0);
  const auto column = [&](std::uint32_t r) {
    const std::uint64_t unit_idx =
        std::uint64_t{n_units / n_ranks} * r + std::min(r, n_units % n_ranks);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(unit_idx * unit, n_columns));
  };
  return {column(rank), column(rank + 1) - column(rank)};
}

/// An all_gather as its op states it.
struct ColumnGather {
  std::uint32_t n_rows = 0;
  std::uint32_t n_columns = 0;  ///< of all ranks together
  std::uint32_t unit = 1;
  std::uint32_t rank = 0;
  std::uint32_t n_ranks = 1;
  std::uint32_t tag = 0;

  [[nodiscard]] constexpr ColumnShare share(std::uint32_t of_rank) const {
    return column_share(n_columns, unit, of_rank, n_ranks);
  }
};

/// Sends this rank's columns to all others and receives theirs, in rank order. Everything is sent
/// before anything is awaited, so no wait closes a circle; a rank is at most two messages ahead of
/// another. [step]
///
/// own       [n_rows, own share] floats, contiguous
/// received  room for [n_rows, largest share] floats
/// store     called with a rank's share and its rows, contiguous; for the other ranks only
template <typename Store>
luna_status gather_columns(const luna_comm& comm,
                           const ColumnGather& gather,
                           std::span<const float> own,
                           std::span<float> received,
                           const Store& store) {
  for (std::uint32_t peer = 0; peer < gather.n_ranks; ++peer) {
    if (peer == gather.rank) continue;
    const luna_status sent = comm.send(comm.self, peer, gather.tag, own.data(), own.size_bytes());
    if (sent != LUNA_OK) return sent;
  }
  for (std::uint32_t peer = 0; peer < gather.n_ranks; ++peer) {
    if (peer == gather.rank) continue;
    const ColumnShare share = gather.share(peer);
    const std::uint64_t n_bytes = std::uint64_t{gather.n_rows} * share.count * sizeof(float);
    const luna_status got = comm.recv(comm.self, peer, gather.tag, received.data(), n_bytes);
    if (got != LUNA_OK) return got;
    store(share, received.data());
  }
  return LUNA_OK;
}

}  // namespace luna
