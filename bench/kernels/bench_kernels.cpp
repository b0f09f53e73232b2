// What the CPU kernels reach on this machine, beside what the machine can do: one core, medians.
//
//   bench_kernels [portable|avx2|avx512]
//
// A block is 16 columns by 32 inputs of a weight. Weights of the decode rows exceed the caches, as
// a model's do; those of the prefill rows are one layer's.
#include "kernels/cpu/kernel_set.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

namespace luna::kernels {
namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
/// Median time of one call, over at least 9 calls and 0.2 s.
template <class Op>
double median_seconds(Op op) {
  op();
  std::vector<double> times;
  const double start = seconds();
  while (times.size() < 9 || (seconds() - start < 0.2 && times.size() < 2000)) {
    const double t = seconds();
    op();
    times.push_back(seconds() - t);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

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

std::vector<float> normals(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) {
    x = normal(engine);
  }
  return v;
}

// ---- The machine
// ---------------------------------------------------------------------------------

struct Peaks {
  double read_bytes_per_s = 0.0;  // one core, from memory
  double dots_per_s = 0.0;        // multiply-adds of 16-bit integers
  double fmas_per_s = 0.0;
};

double read_peak() {
  const Memory memory(std::size_t{256} << 20);
  volatile std::uint64_t sink = 0;
  const double t = median_seconds([&] {
    const auto* p = reinterpret_cast<const __m128i*>(memory.bytes);
    __m128i sum[8] = {};
    for (std::size_t i = 0; i < memory.size / 16; i += 8) {
      for (std::size_t j = 0; j < 8; ++j) {
        sum[j] = _mm_or_si128(sum[j], _mm_load_si128(p + i + j));
      }
    }
    for (const __m128i& s : sum) {
      sink = sink + static_cast<std::uint64_t>(_mm_cvtsi128_si64(s));
    }
  });
  return static_cast<double>(memory.size) / t;
}

/// 12 independent chains of VPDPWSSD (or FMA), no memory: what the execution units can do.
__attribute__((target("avx512f,avx512vnni"), noinline)) void dot_turns(int n_turns) {
  asm volatile(
      "1:\n"
      "vpdpwssd %%zmm15, %%zmm15, %%zmm0\n vpdpwssd %%zmm15, %%zmm15, %%zmm1\n"
      "vpdpwssd %%zmm15, %%zmm15, %%zmm2\n vpdpwssd %%zmm15, %%zmm15, %%zmm3\n"
      "vpdpwssd %%zmm15, %%zmm15, %%zmm4\n vpdpwssd %%zmm15, %%zmm15, %%zmm5\n"
      "vpdpwssd %%zmm15, %%zmm15, %%zmm6\n vpdpwssd %%zmm15, %%zmm15, %%zmm7\n"
      "vpdpwssd %%zmm15, %%zmm15, %%zmm8\n vpdpwssd %%zmm15, %%zmm15, %%zmm9\n"
      "vpdpwssd %%zmm15, %%zmm15, %%zmm10\n vpdpwssd %%zmm15, %%zmm15, %%zmm11\n"
      "dec %0\n jnz 1b\n"
      : "+r"(n_turns)
      :
      : "xmm0",
        "xmm1",
        "xmm2",
        "xmm3",
        "xmm4",
        "xmm5",
        "xmm6",
        "xmm7",
        "xmm8",
        "xmm9",
        "xmm10",
        "xmm11",
        "cc");
}
__attribute__((target("avx512f"), noinline)) void fma_turns(int n_turns) {
  asm volatile(
      "vxorps %%zmm15, %%zmm15, %%zmm15\n"
      "1:\n"
      "vfmadd231ps %%zmm15, %%zmm15, %%zmm0\n vfmadd231ps %%zmm15, %%zmm15, %%zmm1\n"
      "vfmadd231ps %%zmm15, %%zmm15, %%zmm2\n vfmadd231ps %%zmm15, %%zmm15, %%zmm3\n"
      "vfmadd231ps %%zmm15, %%zmm15, %%zmm4\n vfmadd231ps %%zmm15, %%zmm15, %%zmm5\n"
      "vfmadd231ps %%zmm15, %%zmm15, %%zmm6\n vfmadd231ps %%zmm15, %%zmm15, %%zmm7\n"
      "vfmadd231ps %%zmm15, %%zmm15, %%zmm8\n vfmadd231ps %%zmm15, %%zmm15, %%zmm9\n"
      "vfmadd231ps %%zmm15, %%zmm15, %%zmm10\n vfmadd231ps %%zmm15, %%zmm15, %%zmm11\n"
      "dec %0\n jnz 1b\n"
      : "+r"(n_turns)
      :
      : "xmm0",
        "xmm1",
        "xmm2",
        "xmm3",
        "xmm4",
        "xmm5",
        "xmm6",
        "xmm7",
        "xmm8",
        "xmm9",
        "xmm10",
        "xmm11",
        "xmm15",
        "cc");
}
constexpr int kPeakTurns = 100000;

Peaks measure_peaks() {
  Peaks p;
  p.read_bytes_per_s = read_peak();
  if (kernel_set(Isa::avx512) != nullptr) {
    p.dots_per_s = kPeakTurns * 12.0 * 32.0 / median_seconds([] { dot_turns(kPeakTurns); });
    p.fmas_per_s = kPeakTurns * 12.0 * 16.0 / median_seconds([] { fma_turns(kPeakTurns); });
  }
  return p;
}

// ---- linear
// --------------------------------------------------------------------------------------

/// One matrix of a 135M model: rows and columns, and how many blocks a token takes in all layers.
struct Shape {
  const char* name;
  std::int64_t n;
  std::int64_t k;
};

WeightForm form_of(int bits, const Shape& shape) {
  WeightForm f;
  f.klass = WeightClass::affine;
  f.bits = bits;
  f.group = 32;
  f.has_offset = bits == 4;
  f.zero = bits == 4 ? 0 : 128;
  f.n_rows = shape.n;
  f.n_cols = shape.k;
  f.segment = segment_length(shape.n, shape.k, 32, 0);
  return f;
}

/// Times linear on a random weight, `copies` of it in turn; returns ns per block and row.
double time_linear(
    const KernelSet& set, int bits, const Shape& shape, std::int64_t n_rows, std::size_t copies) {
  PackedForm form;
  if (!plan_packing(form_of(bits, shape), ScaleStorage::f16, &form)) {
    std::abort();
  }
  const std::size_t bytes = (packed_bytes(form) + 63) / 64 * 64;
  const Memory weights(bytes * copies);
  std::mt19937_64 engine(3);
  for (std::size_t i = 0; i < bytes * copies; i += 8) {
    // FP16 exponents stay small, codes are random.
    const std::uint64_t word = engine() & 0x3FFF3FFF3FFF3FFFU;
    std::memcpy(weights.bytes + i, &word, 8);
  }
  const Memory rows_memory(quantized_rows_bytes(n_rows, shape.k, 32, 12));
  const QuantizedRows rows = place_quantized_rows(rows_memory.bytes, n_rows, shape.k, 32, 12);
  const auto x = normals(static_cast<std::size_t>(n_rows * shape.k), 5);
  set.quantize_rows(x.data(), shape.k, 0, n_rows, &rows);
  const Memory y(static_cast<std::size_t>(n_rows * shape.n) * 4);
  const Memory scratch(linear_scratch_bytes(form));
  LinearArgs args;
  args.form = &form;
  args.quantized = &rows;
  args.n_rows = n_rows;
  args.n_strips = form.n_strips;
  args.y = reinterpret_cast<float*>(y.bytes);
  args.y_stride = shape.n;
  args.scratch = scratch.bytes;
  const double t = median_seconds([&] {
    for (std::size_t c = 0; c < copies; ++c) {
      args.packed = weights.bytes + c * bytes;
      set.linear(args);
    }
  });
  const double blocks = static_cast<double>(form.n_strips * (shape.k / 32)) *
                        static_cast<double>(copies) * static_cast<double>(n_rows);
  return t * 1e9 / blocks;
}

void bench_linear(const KernelSet& set, const Peaks& peaks) {
  constexpr Shape kQkv{"qkv", 960, 576};
  constexpr Shape kOut{"o", 576, 576};
  constexpr Shape kGateUp{"gate_up", 3072, 576};
  constexpr Shape kDown{"down", 576, 1536};
  constexpr Shape kHead{"head", 49152, 576};
  std::printf("linear, one row: ns a block, GB/s, share of the read peak\n");
  for (const auto& [bits, shape, copies] : {std::tuple{4, kQkv, std::size_t{200}},
                                            {4, kGateUp, std::size_t{60}},
                                            {4, kDown, std::size_t{120}},
                                            {8, kHead, std::size_t{3}}}) {
    const double ns = time_linear(set, bits, shape, 1, copies);
    const double bytes = bits == 4 ? 320.0 : 544.0;
    std::printf("  %-8s %d bit            %7.2f  %6.1f  %3.0f %%\n",
                shape.name,
                bits,
                ns,
                bytes / ns,
                100e9 * bytes / ns / peaks.read_bytes_per_s);
  }
  std::printf("linear, rows from cache: ns a block and row, Gdot/s, share of the dot peak\n");
  for (const Shape& shape : {kQkv, kOut, kGateUp, kDown}) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 8, 16, 64, 512}) {
      if (rows != 512 && std::strcmp(shape.name, "gate_up") != 0) {
        continue;
      }
      const double ns = time_linear(set, 4, shape, rows, 1);
      std::printf("  %-8s 4 bit  %4lld rows %7.2f  %6.1f  %3.0f %%\n",
                  shape.name,
                  static_cast<long long>(rows),
                  ns,
                  512.0 / ns,
                  100.0 * 512e9 / ns / std::max(1.0, peaks.dots_per_s));
    }
  }
  const double ns8 = time_linear(set, 8, {"head", 4096, 576}, 64, 1);
  std::printf("  head     8 bit    64 rows %7.2f  %6.1f\n", ns8, 512.0 / ns8);
}

// ---- attention and small operations
// --------------------------------------------------------------

double time_attend(const KernelSet& set, std::int64_t context, std::int64_t n_rows) {
  const KvShape shape{1, 64, 32};
  const auto n_blocks = static_cast<std::size_t>((context + 31) / 32);
  const Memory pool(n_blocks * kv_block_bytes(shape));
  std::vector<std::uint32_t> table;
  for (std::size_t i = 0; i < n_blocks; ++i) {
    table.push_back(static_cast<std::uint32_t>(i));
  }
  const KvView kv{shape, pool.bytes, kv_block_bytes(shape), table.data(), 0};
  const auto k = normals(static_cast<std::size_t>(context) * 64, 7);
  for (std::int64_t t = 0; t < context; ++t) {
    set.kv_write({kv, t, k.data() + t * 64, k.data() + t * 64});
  }
  const auto q = normals(static_cast<std::size_t>(n_rows) * 192, 9);
  std::vector<float> out(q.size());
  const Memory scratch(attend_scratch_bytes(64));
  AttendArgs args;
  args.kv = kv;
  args.group_heads = 3;
  args.first_position = context - n_rows;
  args.n_rows = n_rows;
  args.scale = 0.125F;
  args.q = q.data();
  args.q_stride = 192;
  args.out = out.data();
  args.out_stride = 192;
  args.scratch = scratch.bytes;
  return median_seconds([&] { set.attend(args); });
}

void bench_attend(const KernelSet& set, const Peaks& peaks) {
  std::printf(
      "attend, 3 query heads of 64 a KV head: us a row and KV head, GFMA/s, share of the FMA "
      "peak\n");
  for (const auto& [context, rows] : {std::pair<std::int64_t, std::int64_t>{128, 1},
                                      {512, 1},
                                      {2048, 1},
                                      {512, 512},
                                      {2048, 512}}) {
    const double t = time_attend(set, context, rows) / static_cast<double>(rows);
    const double mean = rows == 1 ? static_cast<double>(context)
                                  : static_cast<double>(context) - static_cast<double>(rows) / 2.0;
    const double fmas = mean * 3.0 * 64.0 * (kQueryTerms + kProbabilityTerms);
    std::printf("  context %5lld %4lld rows %8.2f  %6.1f  %3.0f %%\n",
                static_cast<long long>(context),
                static_cast<long long>(rows),
                t * 1e6,
                fmas / t / 1e9,
                100.0 * fmas / t / std::max(1.0, peaks.fmas_per_s));
  }
}

void bench_small(const KernelSet& set) {
  constexpr std::int64_t kHidden = 576;
  auto x = normals(1536, 11);
  std::vector<float> y(1536);
  const auto w = normals(1536, 13);
  const Memory memory(quantized_rows_bytes(1, 1536, 32, 12));
  const QuantizedRows rows = place_quantized_rows(memory.bytes, 1, 1536, 32, 12);
  const auto print = [](const char* name, double t) {
    std::printf("  %-24s %8.3f us\n", name, t * 1e6);
  };
  const auto many = [](auto op) {
    return median_seconds([&] {
             for (int i = 0; i < 200; ++i) {
               op();
             }
           }) /
           200.0;
  };
  std::printf("small operations, a row\n");
  print("rms_norm 576", many([&] { set.rms_norm(x.data(), w.data(), kHidden, 1e-5F, y.data()); }));
  print("quantize 1536", many([&] { set.quantize_rows(x.data(), 1536, 0, 1, &rows); }));
  print("act_mul 1536",
        many([&] { set.act_mul(Activation::silu, x.data(), w.data(), 1536, y.data()); }));
  print("exp 1536", many([&] { set.exp(x.data(), 1536, y.data()); }));
  const auto logits = normals(49152, 17);
  std::vector<LogitsState> states(12);
  print("top 40 of 49152", many([&] {
          for (std::size_t c = 0; c < 12; ++c) {
            set.logits_chunk(logits.data(),
                             static_cast<std::uint32_t>(c * kLogitsChunk),
                             kLogitsChunk,
                             40,
                             &states[c]);
          }
        }));
}

int run(int argc, char** argv) {
  const KernelSet* set = &select_kernels();
  if (argc > 1) {
    set = nullptr;
    for (const Isa isa : kIsas) {
      const KernelSet* one = kernel_set(isa);
      set = one != nullptr && std::strcmp(one->name, argv[1]) == 0 ? one : set;
    }
    if (set == nullptr) {
      std::fprintf(
          stderr, "instruction set '%s': not one of portable, avx2, avx512 of this CPU\n", argv[1]);
      return 2;
    }
  }
  set_thread_float_mode();
  const Peaks peaks = measure_peaks();
  std::printf("set %s; one core: read %.1f GB/s, dots %.0f G/s, FMA %.0f G/s\n",
              set->name,
              peaks.read_bytes_per_s / 1e9,
              peaks.dots_per_s / 1e9,
              peaks.fmas_per_s / 1e9);
  bench_linear(*set, peaks);
  bench_attend(*set, peaks);
  bench_small(*set);
  return 0;
}

}  // namespace
}  // namespace luna::kernels

int main(int argc, char** argv) {
  return luna::kernels::run(argc, argv);
}
