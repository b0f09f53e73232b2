// The machine that kernels are measured on: timing, the state of the core, its peaks.
#pragma once

#include "kernels/cpu/kernel_set.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <string>
#include <vector>

namespace luna::kernels {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// 12 independent chains of one instruction, no memory: what the execution units can do.
#define LUNA_TURNS(name, features, op)                                              \
  __attribute__((target(features), noinline)) inline void name(int n_turns) {       \
    asm volatile(                                                                   \
        "vxorps %%zmm15, %%zmm15, %%zmm15\n"                                        \
        "1:\n" op " %%zmm15, %%zmm15, %%zmm0\n" op " %%zmm15, %%zmm15, %%zmm1\n" op \
        " %%zmm15, %%zmm15, %%zmm2\n" op " %%zmm15, %%zmm15, %%zmm3\n" op           \
        " %%zmm15, %%zmm15, %%zmm4\n" op " %%zmm15, %%zmm15, %%zmm5\n" op           \
        " %%zmm15, %%zmm15, %%zmm6\n" op " %%zmm15, %%zmm15, %%zmm7\n" op           \
        " %%zmm15, %%zmm15, %%zmm8\n" op " %%zmm15, %%zmm15, %%zmm9\n" op           \
        " %%zmm15, %%zmm15, %%zmm10\n" op                                           \
        " %%zmm15, %%zmm15, %%zmm11\n"                                              \
        "dec %0\n jnz 1b\n"                                                         \
        : "+r"(n_turns)                                                             \
        :                                                                           \
        : "xmm0",                                                                   \
          "xmm1",                                                                   \
          "xmm2",                                                                   \
          "xmm3",                                                                   \
          "xmm4",                                                                   \
          "xmm5",                                                                   \
          "xmm6",                                                                   \
          "xmm7",                                                                   \
          "xmm8",                                                                   \
          "xmm9",                                                                   \
          "xmm10",                                                                  \
          "xmm11",                                                                  \
          "xmm15",                                                                  \
          "cc");                                                                    \
  }
LUNA_TURNS(dot_turns, "avx512f,avx512vnni", "vpdpwssd")
LUNA_TURNS(byte_turns, "avx512f,avx512vnni", "vpdpbusd")
LUNA_TURNS(pair_turns, "avx512f,avx512bf16", "vdpbf16ps")
LUNA_TURNS(fma_turns, "avx512f", "vfmadd231ps")
#undef LUNA_TURNS

/// Whether this core's other half works for somebody else: multiplications without memory then take
/// up to twice their best time. Without AVX-512 the two states cannot be told apart.
class StateProbe {
 public:
  StateProbe() {
    for (int i = 0; i < 4000; ++i) {
      best_ = std::min(best_, turn());
    }
  }
  static bool can_tell() { return kernel_set(Isa::avx512) != nullptr; }
  [[nodiscard]] bool is_alone() const { return turn() < 1.2 * best_; }

 private:
  static double turn() {
    if (!can_tell()) {
      return 0.0;
    }
    const double start = seconds();
    dot_turns(400);
    return seconds() - start;
  }
  double best_ = 1.0;
};

/// Medians by state; the busy class is used, and named, where fewer than 5 samples were alone.
struct Timing {
  double seconds = 0.0;
  const char* state = "";
};
/// Median time of one call, over at least 9 calls and 0.2 s.
template <class Op>
Timing time_calls(Op op) {
  static const StateProbe probe;
  op();
  std::vector<double> alone;
  std::vector<double> all;
  const double start = seconds();
  while (all.size() < 9 || (seconds() - start < 0.2 && all.size() < 2000)) {
    const bool before = probe.is_alone();
    const double t = seconds();
    op();
    all.push_back(seconds() - t);
    if (before && probe.is_alone()) {
      alone.push_back(all.back());
    }
  }
  std::vector<double>& used = alone.size() >= 5 ? alone : all;
  std::sort(used.begin(), used.end());
  const char* const state = !StateProbe::can_tell() ? "unknown"
                            : alone.size() >= 5     ? "alone"
                                                    : "busy";
  return {used[used.size() / 2], state};
}
/// What was measured, printed as a table and, on demand, as JSON.
class Report {
 public:
  /// value in `unit`; of which the machine does `peak` at most (0: not known).
  void add(const std::string& name, const Timing& t, double value, const char* unit, double peak) {
    std::printf("  %-34s %10.3f us %9.1f %-7s", name.c_str(), t.seconds * 1e6, value, unit);
    if (peak > 0.0) {
      std::printf(" %4.0f %%", 100.0 * value / peak);
    }
    std::printf("  %s\n", t.state);
    rows_ += std::string(rows_.empty() ? "" : ",\n  ") + "{\"name\": \"" + name +
             "\", \"us\": " + std::to_string(t.seconds * 1e6) +
             ", \"value\": " + std::to_string(value) + ", \"unit\": \"" + unit +
             "\", \"share\": " + (peak > 0.0 ? std::to_string(value / peak) : "null") +
             ", \"state\": \"" + t.state + "\"}";
  }
  [[nodiscard]] bool write(const char* path, const char* set) const {
    std::FILE* file = std::fopen(path, "w");
    if (file == nullptr) {
      return false;
    }
    std::fprintf(file, "{\"set\": \"%s\", \"rows\": [\n  %s]}\n", set, rows_.c_str());
    return std::fclose(file) == 0;
  }

 private:
  std::string rows_;
};

/// Memory as an arena of a backend has it: 2 MiB pages where the system gives them, all touched.
struct Memory {
  explicit Memory(std::size_t n) : size((n + kHuge - 1) / kHuge * kHuge) {
    bytes = static_cast<std::byte*>(std::aligned_alloc(kHuge, size));
    madvise(bytes, size, MADV_HUGEPAGE);
    std::memset(bytes, 1, size);
  }
  ~Memory() { std::free(bytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  static constexpr std::size_t kHuge = std::size_t{2} << 20;
  std::size_t size;
  std::byte* bytes;
};

// ---- The machine
// ---------------------------------------------------------------------------------

struct Peaks {
  double read_bytes_per_s = 0.0;  // one core, from memory
  double pairs_per_s = 0.0;       // multiply-adds of 16-bit integers (VPDPWSSD), class i12
  double bytes_per_s = 0.0;       // of 8-bit integers (VPDPBUSD), class i8
  double bf16_per_s = 0.0;        // of BF16 pairs (VDPBF16PS), class bf16
  double fmas_per_s = 0.0;
};

/// Bytes a second that one core reads of `size` bytes again and again.
inline Timing time_reads(const Memory& memory, std::size_t size) {
  volatile std::uint64_t sink = 0;
  const std::size_t n_passes = std::max<std::size_t>(1, (std::size_t{4} << 20) / size);
  Timing t = time_calls([&] {
    __m128i sum[8] = {};
    for (std::size_t pass = 0; pass < n_passes; ++pass) {
      const auto* p = reinterpret_cast<const __m128i*>(memory.bytes);
      for (std::size_t i = 0; i < size / 16; i += 8) {
#pragma GCC unroll 8
        for (std::size_t j = 0; j < 8; ++j) {
          sum[j] = _mm_or_si128(sum[j], _mm_load_si128(p + i + j));
        }
      }
    }
    for (const __m128i& one : sum) {
      sink = sink + static_cast<std::uint64_t>(_mm_cvtsi128_si64(one));
    }
  });
  t.seconds /= static_cast<double>(n_passes);
  return t;
}

inline constexpr int kPeakTurns = 100000;

inline Peaks measure_peaks(Report* report) {
  std::printf("the machine, one core\n");
  Peaks p;
  const Memory memory(std::size_t{256} << 20);
  for (const std::size_t kib : {32, 512, 8192, 65536, 262144}) {
    const Timing t = time_reads(memory, kib << 10);
    p.read_bytes_per_s = static_cast<double>(kib << 10) / t.seconds;
    report->add("read " + std::to_string(kib) + " KiB", t, p.read_bytes_per_s / 1e9, "GB/s", 0.0);
  }
  const auto units = [&](const char* name, void (*turns)(int), double each) {
    const Timing t = time_calls([&] { turns(kPeakTurns); });
    const double per_s = kPeakTurns * 12.0 * each / t.seconds;
    report->add(name, t, per_s / 1e9, "GMAC/s", 0.0);
    return per_s;
  };
  if (kernel_set(Isa::avx512) != nullptr) {
    p.pairs_per_s = units("VPDPWSSD", dot_turns, 32.0);
    p.bytes_per_s = units("VPDPBUSD", byte_turns, 64.0);
    p.fmas_per_s = units("VFMADD231PS", fma_turns, 16.0);
  }
  if (kernel_set(Isa::avx512_bf16) != nullptr) {
    p.bf16_per_s = units("VDPBF16PS", pair_turns, 32.0);
  }
  return p;
}

}  // namespace luna::kernels
