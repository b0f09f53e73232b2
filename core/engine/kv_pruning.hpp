// How much of a prompt's KV is pruned.
#pragma once

#include "core/base/units.hpp"

#include <luna/abi/op_program.h>

#include <algorithm>
#include <cstdint>

namespace luna::engine {

/// A value, fixed by configuration.
struct KvPruning {
  std::uint32_t keep_percent = 100;
  std::uint32_t block_tokens = 0;

  /// Positions that a prompt loses: whole blocks, so that what is left keeps its place in a block.
  /// 0 where it is too short.
  [[nodiscard]] std::uint32_t n_pruned(std::uint32_t n_prompt) const {
    const auto wanted = static_cast<std::uint32_t>(
        div_ceil(std::uint64_t{n_prompt} * keep_percent, std::uint64_t{100}));
    const std::uint32_t n_keep = std::max(wanted, LUNA_PRUNE_FIRST + LUNA_PRUNE_RECENT);
    return n_keep >= n_prompt ? 0 : (n_prompt - n_keep) / block_tokens * block_tokens;
  }
};

}  // namespace luna::engine
