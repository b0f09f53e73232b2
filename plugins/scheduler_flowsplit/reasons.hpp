// Why this policy acts, beside the common reasons of the contract.
#pragma once

#include <luna/abi/scheduler.h>

#include <cstdint>

namespace luna::scheduler_flowsplit {

/// Reason codes of its own begin at 256. What they mean stands in docs/scheduling.md too.
enum Reason : std::uint16_t {
  kMemoryLow = LUNA_REASON_MEMORY_LOW,  ///< ASSIGN: its memory is low and nobody waits there
  kLeastTime = 256,                     ///< ASSIGN: predicted to end there first
  kPrefix = 257,                        ///< ASSIGN: likewise, for what its prefix cache has
  kTurn = 258,                          ///< ASSIGN: of equal groups it is this one's turn
  kStreaming = 259,                     ///< ASSIGN: streaming_mode holds nothing back
  kBalance = 260,      ///< MOVE: its group is pressed, another is idle, and it pays
  kDrain = 261,        ///< MOVE: its group leaves
  kSliceMemory = 262,  ///< SLICE: its group is pressed by its memory
  kHome = 263,         ///< SLICE: its group is relaxed: it comes back
};

}  // namespace luna::scheduler_flowsplit
