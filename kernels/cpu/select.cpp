// This CPU to its kernel set, once; and the float mode the contract needs.
#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <cpuid.h>
#include <cstdlib>
#include <cstring>
#include <xmmintrin.h>

namespace luna::kernels {
namespace {

// FTZ, all exceptions masked, DAZ; rounding bits 00: nearest even. Status flags are not compared.
constexpr unsigned kFloatMode = 0x8000U | 0x1F80U | 0x0040U;
constexpr unsigned kStatusFlags = 0x003FU;

bool has_avx2() {
  // Every CPU with AVX2 has F16C.
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
}
/// CPUID leaf 7: AMX-BF16, AMX-TILE, AMX-INT8; and XCR0: the system saves tiles.
bool has_amx() {
  constexpr unsigned kFeatures = 1U << 22 | 1U << 24 | 1U << 25;
  constexpr unsigned kSavesExtended = 1U << 27;  // OSXSAVE: XGETBV may be used
  constexpr unsigned kTileState = 1U << 17 | 1U << 18;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kFeatures) != kFeatures ||
      __get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSavesExtended) == 0) {
    return false;
  }
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

/// Why this CPU or system cannot run a set; null if it can.
const char* refusal(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::portable:
      return nullptr;
    case Isa::avx2:
      return has_avx2() ? nullptr : "this CPU lacks AVX2 or FMA";
    case Isa::avx512:
      return has_avx512() ? nullptr : "this CPU lacks AVX-512 (F, BW, VL, DQ, VNNI)";
    case Isa::avx512_bf16:
      if (!has_avx512() || __builtin_cpu_supports("avx512bf16") == 0) {
        return "this CPU lacks AVX-512 (F, BW, VL, DQ, VNNI, BF16)";
      }
      return avx512_bf16::has_chained_pairs() ? nullptr
                                              : "this CPU adds BF16 pairs in another order";
    case Isa::amx:
      if (!has_avx512() || !has_amx()) {
        return "this CPU or system lacks AMX (TILE, INT8, BF16) or AVX-512";
      }
      return amx::is_permitted() ? nullptr : "the system refuses the use of tile registers";
  }
  return "not an instruction set";
}

const KernelSet* set_of(Isa isa) {
  static const KernelSet amx_set = amx::make_set();
  switch (isa) {
    case Isa::portable:
      return &portable::kSet;
    case Isa::avx2:
      return &avx2::kSet;
    case Isa::avx512:
      return &avx512::kSet;
    case Isa::avx512_bf16:
      return &avx512_bf16::kSet;
    case Isa::amx:
      return &amx_set;
  }
  return nullptr;
}

const KernelSet& choose() {
  const char* why = nullptr;
  if (const char* wanted = std::getenv("LUNA_ISA")) {
    if (const KernelSet* set = find_kernels(wanted, &why)) {
      return *set;
    }
  }
  const KernelSet* best = &portable::kSet;
  for (const Isa isa : kIsas) {
    const KernelSet* set = kernel_set(isa);
    best = set != nullptr ? set : best;
  }
  return *best;
}

}  // namespace

const KernelSet* kernel_set(Isa isa) {
  return refusal(isa) == nullptr ? set_of(isa) : nullptr;
}

const KernelSet* find_kernels(const char* name, const char** why) {
  for (const Isa isa : kIsas) {
    if (std::strcmp(set_of(isa)->name, name) == 0) {
      *why = refusal(isa);
      return *why == nullptr ? set_of(isa) : nullptr;
    }
  }
  *why = "must be portable, avx2, avx512, avx512_bf16 or amx";
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
