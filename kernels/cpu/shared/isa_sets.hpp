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

}  // namespace luna::kernels
