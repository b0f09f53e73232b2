// What the kernel tests share: seeded inputs, canonical weights of every format, aligned memory.
#pragma once

#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cpu/shared/isa_sets.hpp"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace luna::kernels {

/// LUNA_TEST_SEED, or a fixed seed. Failures print it.
inline std::uint64_t test_seed() {
  const char* text = std::getenv("LUNA_TEST_SEED");
  return text == nullptr ? 20260117U : std::strtoull(text, nullptr, 10);
}

/// The instruction sets of this CPU, the portable one first; and the AMX kernels on modelled tiles.
inline std::vector<const KernelSet*> kernel_sets() {
  static const KernelSet kModel = amx_model::make_set();
  std::vector<const KernelSet*> sets;
  for (const Isa isa : kIsas) {
    if (const KernelSet* set = kernel_set(isa)) {
      sets.push_back(set);
    }
  }
  sets.push_back(&kModel);
  return sets;
}

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};
/// 64-byte aligned memory, filled with 0xFF bytes (NaN) so that what was never written shows.
struct AlignedBytes {
  explicit AlignedBytes(std::size_t n)
      : memory(static_cast<std::byte*>(std::aligned_alloc(64, (n + 63) / 64 * 64 + 64))), size(n) {
    std::memset(memory.get(), 0xFF, n);
  }
  std::byte* get() const { return memory.get(); }
  std::unique_ptr<std::byte, AlignedFree> memory;
  std::size_t size;
};

class Random {
 public:
  explicit Random(std::uint64_t salt) : engine_(test_seed() * 1000003U + salt) {}
  float normal() { return normal_(engine_); }
  int integer(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  std::vector<float> normals(std::size_t n) {
    std::vector<float> v(n);
    for (float& x : v) {
      x = normal();
    }
    return v;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

/// A format by the name GGUF gives it, as the canonical layout describes it.
struct NamedForm {
  std::string name;
  WeightForm form;
};
inline void PrintTo(const NamedForm& form, std::ostream* out) {
  *out << form.name;
}

inline WeightForm affine(
    int bits, std::int64_t group, std::int64_t super_block, bool has_offset, int zero) {
  WeightForm f;
  f.klass = WeightClass::affine;
  f.bits = bits;
  f.group = group;
  f.super_block = super_block;
  f.has_offset = has_offset;
  f.zero = zero;
  return f;
}
inline std::vector<NamedForm> quantized_forms() {
  WeightForm book = affine(4, 32, 0, false, 0);
  book.klass = WeightClass::code_book;
  const std::int8_t values[16] = {
      -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  std::memcpy(book.code_book, values, sizeof values);
  return {{"Q4_0", affine(4, 32, 0, false, 8)},
          {"Q4_1", affine(4, 32, 0, true, 0)},
          {"Q5_0", affine(5, 32, 0, false, 16)},
          {"Q5_1", affine(5, 32, 0, true, 0)},
          {"Q8_0", affine(8, 32, 0, false, 128)},
          {"IQ4_NL", book},
          {"Q2_K", affine(2, 16, 256, true, 0)},
          {"Q3_K", affine(3, 16, 256, false, 4)},
          {"Q4_K", affine(4, 32, 256, true, 0)},
          {"Q5_K", affine(5, 32, 256, true, 0)},
          {"Q6_K", affine(6, 16, 256, false, 32)},
          {"int8_g128", affine(8, 128, 0, true, 0)},
          {"int4_g64", affine(4, 64, 0, true, 0)},
          {"int4_g128", affine(4, 128, 0, false, 8)}};
}

/// The same formats beside 8-bit activations.
inline std::vector<NamedForm> short_activation_forms() {
  std::vector<NamedForm> forms = quantized_forms();
  for (NamedForm& one : forms) {
    one.form.activation_bits_max = kShortActivationBits;
  }
  return forms;
}

/// Canonical planes with random contents, and the value of each weight.
struct CanonicalWeight {
  CanonicalWeight(WeightForm f, std::int64_t n, std::int64_t k, std::uint64_t salt) : form(f) {
    form.n_rows = n;
    form.n_cols = k;
    form.segment = segment_length(n, k, std::min<std::int64_t>(f.group, 128), f.super_block);
    Random random(salt);
    codes.resize(static_cast<std::size_t>(n * k));
    for (auto& q : codes) {
      q = static_cast<std::uint8_t>(random.integer(0, (1 << f.bits) - 1));
    }
    n_groups = (k + f.group - 1) / f.group;
    n_supers = f.super_block == 0 ? n_groups : k / f.super_block;
    // FP16 values: an integer below 2^11 times a power of two.
    const auto f16 = [&](int low) {
      return std::ldexp(static_cast<float>(random.integer(low, 2047)), -16);
    };
    for (std::int64_t i = 0; i < n * n_supers; ++i) {
      scale.push_back(f16(64));
      offset.push_back(-f16(-2047));
    }
    for (std::int64_t i = 0; i < n * n_groups; ++i) {
      const bool is_signed = f.super_block != 0 && !f.has_offset;
      const int top = f.bits == 6 ? 127 : f.bits == 2 ? 15 : f.bits == 3 ? 31 : 63;
      sub_scale.push_back(static_cast<std::int8_t>(random.integer(is_signed ? -top : 0, top)));
      sub_offset.push_back(static_cast<std::int8_t>(random.integer(0, f.bits == 2 ? 15 : 63)));
    }
  }
  WeightRows rows(std::int64_t first) const {
    WeightRows r;
    const auto at = static_cast<std::size_t>(first);
    const auto supers = static_cast<std::size_t>(n_supers);
    const auto groups = static_cast<std::size_t>(n_groups);
    r.codes = codes.data() + at * static_cast<std::size_t>(form.n_cols);
    r.codes_stride_bytes = static_cast<std::size_t>(form.n_cols);
    if (form.super_block == 0) {
      r.scale = scale.data() + at * groups;
      r.scale_stride_bytes = groups * 4;
      r.offset = form.has_offset ? offset.data() + at * groups : nullptr;
      r.offset_stride_bytes = groups * 4;
    } else {
      r.super_scale = scale.data() + at * supers;
      r.super_scale_stride_bytes = supers * 4;
      r.super_offset = form.has_offset ? offset.data() + at * supers : nullptr;
      r.super_offset_stride_bytes = supers * 4;
      r.sub_scale = sub_scale.data() + at * groups;
      r.sub_scale_stride_bytes = groups;
      r.sub_offset = form.has_offset ? sub_offset.data() + at * groups : nullptr;
      r.sub_offset_stride_bytes = groups;
    }
    return r;
  }
  /// Code of a weight with the code book applied.
  int code(std::int64_t row, std::int64_t k) const {
    const std::uint8_t q = codes[static_cast<std::size_t>(row * form.n_cols + k)];
    return form.klass == WeightClass::code_book ? form.code_book[q] : q;
  }
  std::size_t group_at(std::int64_t row, std::int64_t k) const {
    return static_cast<std::size_t>(row * n_groups + k / form.group);
  }
  std::size_t super_at(std::int64_t row, std::int64_t k) const {
    return static_cast<std::size_t>(row * n_supers +
                                    k / (form.super_block == 0 ? form.group : form.super_block));
  }
  double value(std::int64_t row, std::int64_t k) const {
    const double d = static_cast<double>(scale[super_at(row, k)]) *
                     (form.super_block == 0 ? 1.0 : sub_scale[group_at(row, k)]);
    const double m = !form.has_offset
                         ? -form.zero * d
                         : static_cast<double>(offset[super_at(row, k)]) *
                               (form.super_block == 0 ? 1.0 : sub_offset[group_at(row, k)]);
    return d * code(row, k) + m;
  }

  WeightForm form;
  std::int64_t n_groups = 0;
  std::int64_t n_supers = 0;
  std::vector<std::uint8_t> codes;
  std::vector<float> scale;  // of groups, or of super-blocks
  std::vector<float> offset;
  std::vector<std::int8_t> sub_scale;
  std::vector<std::int8_t> sub_offset;
};

/// A weight in packed form.
struct Packed {
  explicit Packed(const CanonicalWeight& w) : form(plan(w)), bytes(packed_bytes(form)) {
    is_exact = pack_rows(form, w.rows(0), 0, w.form.n_rows, bytes.get());
  }
  static PackedForm plan(const CanonicalWeight& w) {
    PackedForm form;
    if (!plan_packing(w.form, ScaleStorage::f16, &form)) {
      std::abort();
    }
    return form;
  }
  PackedForm form;
  AlignedBytes bytes;
  bool is_exact = false;
};

}  // namespace luna::kernels
