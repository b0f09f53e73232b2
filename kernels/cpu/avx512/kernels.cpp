// The shared kernels, compiled for avx512.
#include "kernels/cpu/avx512/lanes.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <algorithm>
#include <type_traits>

LUNA_ISA_BEGIN(LUNA_ISA_AVX512)
namespace luna::kernels::avx512 {
namespace {
// clang-format off
#include "kernels/cpu/shared/vector_math.inl"
#include "kernels/cpu/shared/lines.inl"
#include "kernels/cpu/shared/chain_fma.inl"
#include "kernels/cpu/shared/kernels.inl"
// clang-format on
}  // namespace

constinit const KernelSet kSet = make_set(Isa::avx512, "avx512");

}  // namespace luna::kernels::avx512
LUNA_ISA_END
