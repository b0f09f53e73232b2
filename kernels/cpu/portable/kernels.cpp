// The shared kernels, compiled for portable.
#include "kernels/cpu/portable/lanes.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <algorithm>
#include <type_traits>

namespace luna::kernels::portable {
namespace {
// clang-format off
#include "kernels/cpu/shared/vector_math.inl"
#include "kernels/cpu/shared/lines.inl"
#include "kernels/cpu/shared/chain_fma.inl"
#include "kernels/cpu/shared/kernels.inl"
// clang-format on
}  // namespace

constinit const KernelSet kSet = make_set(Isa::portable, "portable");

}  // namespace luna::kernels::portable
