// What the CPU kernels reach on this machine, beside what the machine can do: one core, medians.
//
//   bench_kernels [portable|avx2|avx512|avx512_bf16|amx] [--only linear|attend|small] [--json FILE]
//
// A block is 16 columns by 32 inputs of a weight. Weights of the decode rows exceed the caches, as
// a model's do; those of the prefill rows are one layer's.
#include "bench/kernels/machine.hpp"
#include "kernels/cpu/kernel_set.hpp"

#include <random>
#include <utility>

namespace luna::kernels {
namespace {

std::vector<float> normals(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) {
    x = normal(engine);
  }
  return v;
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

enum class Numerics { i12, i8, bf16 };

/// One product: a weight's bits and shape, the class of arithmetic, rows, and copies of the weight
/// taken in turn.
struct LinearCase {
  Shape shape;
  int bits = 4;
  Numerics numerics = Numerics::i12;
  std::int64_t n_rows = 1;
  std::size_t copies = 1;
};

struct LinearTiming {
  Timing timing;  // of one product
  double bytes = 0.0;
  double macs = 0.0;
};

LinearTiming time_linear(const KernelSet& set, const LinearCase& c) {
  WeightForm plain = form_of(c.bits, c.shape);
  plain.activation_bits_max = c.numerics == Numerics::i8 ? kShortActivationBits : 12;
  plain.is_dequantized = c.numerics == Numerics::bf16;
  PackedForm form;
  if (!plan_packing(plain, ScaleStorage::f16, &form)) {
    std::abort();
  }
  const std::size_t bytes = (packed_bytes(form) + 63) / 64 * 64;
  const Memory weights(bytes * c.copies);
  std::mt19937_64 engine(3);
  for (std::size_t i = 0; i < bytes * c.copies; i += 8) {
    // FP16 and BF16 exponents stay small, codes are random.
    const std::uint64_t word = engine() & 0x3FFF3FFF3FFF3FFFU;
    std::memcpy(weights.bytes + i, &word, 8);
  }
  const auto x = normals(static_cast<std::size_t>(c.n_rows * c.shape.k), 5);
  const Memory memory(std::max(quantized_rows_bytes(c.n_rows, c.shape.k, 32, 12),
                               dense_rows_bytes(c.n_rows, c.shape.k)));
  const QuantizedRows quantized = place_quantized_rows(
      memory.bytes, c.n_rows, c.shape.k, 32, std::max(8, form.activation_bits));
  const DenseRows dense = place_dense_rows(memory.bytes, c.n_rows, c.shape.k);
  if (form.is_dense()) {
    set.round_rows(x.data(), c.shape.k, 0, c.n_rows, &dense);
  } else {
    set.quantize_rows(x.data(), c.shape.k, 0, c.n_rows, &quantized);
  }
  const Memory y(static_cast<std::size_t>(c.n_rows * c.shape.n) * 4);
  const Memory scratch(linear_scratch_bytes(form));
  LinearArgs args;
  args.form = &form;
  args.quantized = form.is_dense() ? nullptr : &quantized;
  args.dense = form.is_dense() ? &dense : nullptr;
  args.n_rows = c.n_rows;
  args.n_strips = form.n_strips;
  args.y = reinterpret_cast<float*>(y.bytes);
  args.y_stride = c.shape.n;
  args.scratch = scratch.bytes;
  LinearTiming t;
  t.timing = time_calls([&] {
    for (std::size_t i = 0; i < c.copies; ++i) {
      args.packed = weights.bytes + i * bytes;
      set.linear(args);
    }
  });
  t.timing.seconds /= static_cast<double>(c.copies);
  t.bytes = static_cast<double>(packed_bytes(form));
  t.macs = static_cast<double>(c.shape.n * c.shape.k * c.n_rows);
  return t;
}

void bench_linear(const KernelSet& set, const Peaks& peaks, Report* report) {
  constexpr Shape kQkv{"qkv", 960, 576};
  constexpr Shape kOut{"o", 576, 576};
  constexpr Shape kGateUp{"gate_up", 3072, 576};
  constexpr Shape kDown{"down", 576, 1536};
  constexpr Shape kHead{"head", 49152, 576};
  const struct {
    Numerics numerics;
    const char* name;
    double peak;
  } classes[] = {
      {Numerics::i12, "i12", peaks.pairs_per_s},
      {Numerics::i8, "i8", peaks.bytes_per_s},
      {Numerics::bf16, "bf16", peaks.bf16_per_s > 0 ? peaks.bf16_per_s : peaks.fmas_per_s}};
  for (const auto& one : classes) {
    std::printf("linear, class %s: one and some rows from memory, then rows from cache\n",
                one.name);
    for (const LinearCase& c : {LinearCase{kQkv, 4, one.numerics, 1, 200},
                                LinearCase{kGateUp, 4, one.numerics, 1, 60},
                                LinearCase{kDown, 4, one.numerics, 1, 120},
                                LinearCase{kHead, 8, one.numerics, 1, 3}}) {
      const LinearTiming t = time_linear(set, c);
      report->add(std::string(one.name) + " " + c.shape.name + ", 1 row",
                  t.timing,
                  t.bytes / t.timing.seconds / 1e9,
                  "GB/s",
                  peaks.read_bytes_per_s / 1e9);
    }
    for (const LinearCase& c : {LinearCase{kGateUp, 4, one.numerics, 8, 60},
                                LinearCase{kGateUp, 4, one.numerics, 32, 60},
                                LinearCase{kHead, 8, one.numerics, 32, 3}}) {
      const LinearTiming t = time_linear(set, c);
      report->add(std::string(one.name) + " " + c.shape.name + ", " + std::to_string(c.n_rows) +
                      " rows, memory",
                  t.timing,
                  t.macs / t.timing.seconds / 1e9,
                  "GMAC/s",
                  one.peak / 1e9);
    }
    for (const Shape& shape : {kQkv, kOut, kGateUp, kDown}) {
      for (const std::int64_t rows : {1, 2, 4, 8, 16, 32, 64, 512}) {
        if (rows != 512 && std::strcmp(shape.name, "gate_up") != 0) {
          continue;
        }
        const LinearTiming t = time_linear(set, {shape, 4, one.numerics, rows, 1});
        report->add(
            std::string(one.name) + " " + shape.name + ", " + std::to_string(rows) + " rows",
            t.timing,
            t.macs / t.timing.seconds / 1e9,
            "GMAC/s",
            one.peak / 1e9);
      }
    }
  }
}

// ---- attention and small operations
// --------------------------------------------------------------

/// Whose attention is timed: the last rows of each of several sequences, one after the other.
struct AttendCase {
  std::int64_t context;
  std::int64_t n_rows;
  std::int64_t n_sequences;
  KvType type = KvType::bf16;
};

Timing time_attend(const KernelSet& set, const AttendCase& what) {
  const KvShape shape{1, 64, 32, what.type};
  const std::int64_t n_blocks = (what.context + 31) / 32;
  const Memory pool(static_cast<std::size_t>(n_blocks * what.n_sequences) * kv_block_bytes(shape));
  const auto k = normals(static_cast<std::size_t>(what.context) * 64, 7);
  const auto q = normals(static_cast<std::size_t>(what.n_rows) * 192, 9);
  std::vector<float> out(q.size());
  const Memory scratch(attend_scratch_bytes(64));
  std::vector<std::vector<std::uint32_t>> tables(static_cast<std::size_t>(what.n_sequences));
  std::vector<AttendArgs> calls;
  for (auto& table : tables) {
    const auto sequence = static_cast<std::int64_t>(calls.size());
    for (std::int64_t i = 0; i < n_blocks; ++i) {  // neighbours are another sequence's
      table.push_back(static_cast<std::uint32_t>(i * what.n_sequences + sequence));
    }
    AttendArgs args;
    args.kv = {shape, pool.bytes, kv_block_bytes(shape), table.data(), 0};
    for (std::int64_t t = 0; t < what.context; ++t) {
      set.kv_write({args.kv, t, k.data() + t * 64, k.data() + t * 64});
    }
    args.group_heads = 3;
    args.first_position = what.context - what.n_rows;
    args.n_rows = what.n_rows;
    args.scale = 0.125F;
    args.q = q.data();
    args.q_stride = 192;
    args.out = out.data();
    args.out_stride = 192;
    args.scratch = scratch.bytes;
    calls.push_back(args);
  }
  for (std::size_t i = 0; i + 1 < calls.size(); ++i) {
    calls[i].next = &calls[i + 1];
  }
  return time_calls([&] {
    for (const AttendArgs& args : calls) {
      set.attend(args);
    }
  });
}

void bench_attend(const KernelSet& set, const Peaks& peaks, Report* report) {
  std::printf("attend, 3 query heads of 64 a KV head\n");
  const double peak = set.isa == Isa::avx512_bf16 ? peaks.bf16_per_s : peaks.fmas_per_s;
  for (const AttendCase& what : {AttendCase{128, 1, 1},
                                 {512, 1, 1},
                                 {2048, 1, 1},
                                 {128, 1, 2048},
                                 {2048, 1, 128},
                                 {512, 512, 1},
                                 {2048, 512, 1},
                                 {2048, 1, 128, KvType::int8},
                                 {2048, 512, 1, KvType::int8}}) {
    Timing t = time_attend(set, what);
    t.seconds /= static_cast<double>(what.n_rows * what.n_sequences);
    const double mean =
        static_cast<double>(what.context) - static_cast<double>(what.n_rows - 1) / 2.0;
    const double products = mean * 3.0 * 64.0 * (kQueryTerms + kProbabilityTerms);
    std::string name =
        "context " + std::to_string(what.context) + ", a row of " + std::to_string(what.n_rows);
    name += what.n_sequences == 1 ? "" : ", from memory";
    name += what.type == KvType::int8 ? ", INT8" : "";
    report->add(name, t, products / t.seconds / 1e9, "GMAC/s", peak / 1e9);
  }
}

void bench_small(const KernelSet& set, Report* report) {
  constexpr std::int64_t kHidden = 576;
  constexpr int kTimes = 200;
  const auto x = normals(1536, 11);
  const auto w = normals(1536, 13);
  std::vector<float> y(1536);
  const Memory memory(quantized_rows_bytes(1, 1536, 32, 12));
  const QuantizedRows rows = place_quantized_rows(memory.bytes, 1, 1536, 32, 12);
  const auto logits = normals(49152, 17);
  std::vector<LogitsState> states(12);
  const auto add = [&](const char* name, double n, auto op) {
    Timing t = time_calls([&] {
      for (int i = 0; i < kTimes; ++i) {
        op();
      }
    });
    t.seconds /= kTimes;
    report->add(name, t, n / t.seconds / 1e9, "Gnum/s", 0.0);
  };
  std::printf("small operations, a row\n");
  add("rms_norm", 576, [&] { set.rms_norm(x.data(), w.data(), kHidden, 1e-5F, y.data()); });
  add("quantize", 1536, [&] { set.quantize_rows(x.data(), 1536, 0, 1, &rows); });
  add("act_mul", 1536, [&] { set.act_mul(Activation::silu, x.data(), w.data(), 1536, y.data()); });
  add("exp", 1536, [&] { set.exp(x.data(), 1536, y.data()); });
  add("top 40 of 49152 logits", 49152, [&] {
    set.logits_chunks({logits.data(), 0, 49152, 40, states.data()});
  });
}

int run(int argc, char** argv) {
  const KernelSet* set = &select_kernels();
  const char* json = nullptr;
  const char* only = nullptr;
  for (int i = 1; i < argc; ++i) {
    const char* why = nullptr;
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if ((set = find_kernels(argv[i], &why)) == nullptr) {
      std::fprintf(stderr, "bench_kernels: instruction set '%s': %s\n", argv[i], why);
      return 2;
    }
  }
  set_thread_float_mode();
  Report report;
  std::printf("set %s; value, share of the machine's peak, and whether the core was alone\n",
              set->name);
  const Peaks peaks = measure_peaks(&report);
  const auto is_wanted = [&](const char* name) {
    return only == nullptr || std::strcmp(only, name) == 0;
  };
  if (is_wanted("linear")) {
    bench_linear(*set, peaks, &report);
  }
  if (is_wanted("attend")) {
    bench_attend(*set, peaks, &report);
  }
  if (is_wanted("small")) {
    bench_small(*set, &report);
  }
  if (json != nullptr && !report.write(json, set->name)) {
    std::fprintf(stderr, "bench_kernels: %s: could not be written\n", json);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace luna::kernels

int main(int argc, char** argv) {
  return luna::kernels::run(argc, argv);
}
