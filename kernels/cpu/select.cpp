// This CPU to its kernel set, once; and the float mode the contract needs.
#include "kernels/cpu/kernel_set.hpp"

#include <xmmintrin.h>

namespace luna::kernels {
namespace {
// FTZ, all exceptions masked, DAZ; rounding bits 00: nearest even. Status flags are not compared.
constexpr unsigned kFloatMode = 0x8000U | 0x1F80U | 0x0040U;
constexpr unsigned kStatusFlags = 0x003FU;
}  // namespace

void set_thread_float_mode() {
  _mm_setcsr(kFloatMode);
}

bool float_mode_is_right() {
  return (_mm_getcsr() & ~kStatusFlags) == kFloatMode;
}

}  // namespace luna::kernels
