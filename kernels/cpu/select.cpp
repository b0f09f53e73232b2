// This CPU to its kernel set, once; and the float mode the contract needs.
#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <cstdlib>
#include <cstring>
#include <xmmintrin.h>

namespace luna::kernels {
namespace {

// FTZ, all exceptions masked, DAZ; rounding bits 00: nearest even. Status flags are not compared.
constexpr unsigned kFloatMode = 0x8000U | 0x1F80U | 0x0040U;
constexpr unsigned kStatusFlags = 0x003FU;

/// Asks the CPU and, for wide registers, whether the operating system saves them.
bool has_isa(Isa isa) {
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return has_avx2;  // every CPU with AVX2 has F16C
    case Isa::avx512:
    case Isa::avx512_bf16:
      return has_avx2 && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vnni") != 0 &&
             (isa == Isa::avx512 ||
              (__builtin_cpu_supports("avx512bf16") != 0 && avx512_bf16::has_chained_pairs()));
  }
  return false;
}

const KernelSet& choose() {
  const char* const wanted = std::getenv("LUNA_ISA");
  const KernelSet* best = &portable::kSet;
  for (const Isa isa : kIsas) {
    const KernelSet* set = kernel_set(isa);
    if (set == nullptr) {
      continue;
    }
    best = set;
    if (wanted != nullptr && std::strcmp(set->name, wanted) == 0) {
      return *set;
    }
  }
  return *best;
}

}  // namespace

const KernelSet* kernel_set(Isa isa) {
  if (!has_isa(isa)) {
    return nullptr;
  }
  switch (isa) {
    case Isa::portable:
      return &portable::kSet;
    case Isa::avx2:
      return &avx2::kSet;
    case Isa::avx512:
      return &avx512::kSet;
    case Isa::avx512_bf16:
      return &avx512_bf16::kSet;
  }
  return nullptr;
}

const KernelSet& select_kernels() {
  static const KernelSet& chosen = choose();
  return chosen;
}

void set_thread_float_mode() {
  _mm_setcsr(kFloatMode);
}

bool float_mode_is_right() {
  return (_mm_getcsr() & ~kStatusFlags) == kFloatMode;
}

}  // namespace luna::kernels
