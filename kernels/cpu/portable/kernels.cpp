// The shared kernels, compiled for portable.
#include "kernels/cpu/portable/lanes.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <algorithm>
#include <type_traits>

namespace luna::kernels::portable {
namespace {
#include "kernels/cpu/shared/kernels.inl"
}  // namespace

constinit const KernelSet kSet = make_set(Isa::portable, "portable");

}  // namespace luna::kernels::portable
