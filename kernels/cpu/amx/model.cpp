// The AMX kernels on a model of the tiles, over portable lanes: for tests, on any CPU.
#include "kernels/cpu/amx/tiles.hpp"
#include "kernels/cpu/portable/lanes.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <algorithm>
#include <type_traits>

namespace luna::kernels::amx_model {
namespace {
using namespace portable;  // the lanes; not its table
using amx::product_config;
using amx::SoftwareTiles;
// clang-format off
#include "kernels/cpu/shared/vector_math.inl"
#include "kernels/cpu/shared/codes.inl"
#include "kernels/cpu/shared/linear.inl"
#include "kernels/cpu/amx/linear_tiles.inl"
// clang-format on

void linear(const LinearArgs& args) {
  if (is_for_tiles(args)) {
    linear_by_tiles<SoftwareTiles>(args);
  } else {
    portable::kSet.linear(args);
  }
}
}  // namespace

KernelSet make_set() {
  KernelSet set = portable::kSet;
  set.name = "amx, modelled";
  set.linear = linear;
  return set;
}

}  // namespace luna::kernels::amx_model
