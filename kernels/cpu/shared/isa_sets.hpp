// The tables of the instruction sets and what their kernels share that is compiled once.
#pragma once

#include "kernels/cpu/kernel_set.hpp"

namespace luna::kernels {

/// max + ln(sum) in double precision: compiled once, so every set has the same bits.
float log_of_sum(float max, float sum);

namespace portable {
extern const KernelSet kSet;
}
namespace avx2 {
extern const KernelSet kSet;
}
namespace avx512 {
extern const KernelSet kSet;
}
namespace avx512_bf16 {
extern const KernelSet kSet;
/// Whether this CPU's VDPBF16PS is two fused multiply-adds, high halves first, each rounded to
/// nearest even with denormals as zero: a few thousand products, cancelling, overflowing and
/// denormal ones among them. The instruction's manual does not promise it; AMD Zen 5 does it.
bool has_chained_pairs();
}  // namespace avx512_bf16

namespace amx {
KernelSet make_set();  // of a CPU with AMX
/// Asks the system for the tile registers, for the whole process; asking again does no harm.
bool is_permitted();
}  // namespace amx
namespace amx_model {
/// The AMX kernels on tiles in memory: the bits of amx::make_set() on any CPU, for tests.
KernelSet make_set();
}  // namespace amx_model

}  // namespace luna::kernels
