// Why this policy acts, beside the common reasons of the contract.
#pragma once

#include <luna/abi/scheduler.h>

#include <cstdint>

namespace luna::scheduler_flowsplit {

/// Reason codes of its own begin at 256. What they mean: kReasons.
enum Reason : std::uint16_t {
  kMemoryLow = LUNA_REASON_MEMORY_LOW,
  kLeastTime = 256,
  kPrefix = 257,
  kTurn = 258,
  kStreaming = 259,
  kBalance = 260,
  kDrain = 261,
  kSliceMemory = 262,
  kHome = 263,
  kSpread = 264,
  kWide = 265,
};

/// As `luna plugins info flowsplit` lists them, and docs/scheduling.md.
inline constexpr luna_reason kReasons[] = {
    {kMemoryLow, LUNA_VERB_ASSIGN, "memory_low", "its memory is low and nobody waits there"},
    {kLeastTime, LUNA_VERB_ASSIGN, "least_time", "predicted to end there first"},
    {kPrefix, LUNA_VERB_ASSIGN, "prefix", "likewise, for what its prefix cache has"},
    {kTurn, LUNA_VERB_ASSIGN, "turn", "of equal groups it is this one's turn"},
    {kStreaming, LUNA_VERB_ASSIGN, "streaming", "streaming_mode holds nothing back"},
    {kSpread,
     LUNA_VERB_ASSIGN,
     "spread",
     "no group holds it alone; with others there is room for all of it"},
    {kBalance, LUNA_VERB_MOVE, "balance", "its group is pressed, another is idle, and it pays"},
    {kDrain, LUNA_VERB_MOVE, "drain", "its group leaves"},
    {kSliceMemory, LUNA_VERB_SLICE, "slice_memory", "its group is pressed by its memory"},
    {kHome, LUNA_VERB_SLICE, "home", "its group is relaxed: it comes back"},
    {kWide, LUNA_VERB_SLICE, "wide", "it is larger than its group and goes on there"},
};

}  // namespace luna::scheduler_flowsplit
