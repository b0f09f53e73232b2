// The shared kernels, compiled for avx2.
#include "kernels/cpu/avx2/lanes.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <algorithm>
#include <type_traits>

LUNA_ISA_BEGIN(LUNA_ISA_AVX2)
namespace luna::kernels::avx2 {
namespace {
// clang-format off
#include "kernels/cpu/shared/vector_math.inl"
#include "kernels/cpu/shared/lines.inl"
#include "kernels/cpu/shared/chain_fma.inl"
#include "kernels/cpu/shared/kernels.inl"
// clang-format on
}  // namespace

constinit const KernelSet kSet = make_set(Isa::avx2, "avx2");

}  // namespace luna::kernels::avx2
LUNA_ISA_END
