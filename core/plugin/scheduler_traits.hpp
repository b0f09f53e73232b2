// What an instance of a scheduler does, by its settings or by its table.
#pragma once

#include "core/plugin/instance.hpp"

#include <luna/abi/scheduler.h>

#include <cstdint>

namespace luna::plugin {

/// Whether it lays requests over several groups of devices, so that one larger than any may be let
/// in. The extension luna.ext.scheduler_traits/1 speaks for the instance, else the table's flags
/// do.
inline bool does_slice(const Instance<luna_scheduler_if>& scheduler) {
  std::uint32_t flags = scheduler->head.flags;
  if (const auto ext = scheduler->head.ext; ext != nullptr) {
    const auto* const traits =
        static_cast<const luna_scheduler_traits*>(ext(scheduler.self(), LUNA_EXT_SCHEDULER_TRAITS));
    if (LUNA_HAS(traits, luna_scheduler_traits, flags)) flags = traits->flags;
  }
  return (flags & LUNA_SCHEDULER_SLICES) != 0;
}

}  // namespace luna::plugin
