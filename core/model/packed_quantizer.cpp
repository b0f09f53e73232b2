#include "core/model/packed_quantizer.hpp"

#include <luna/float16.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace luna::model {
namespace {

constexpr std::uint32_t kPerWord = 8;  // codes of 4 bits
constexpr std::uint32_t kAwqOrder[kPerWord] = {0, 2, 4, 6, 1, 3, 5, 7};

template <typename T>
PackedPart part_of(std::string name,
                   std::string_view dtype,
                   std::vector<std::uint64_t> shape,
                   const std::vector<T>& values) {
  PackedPart part{std::move(name), dtype, std::move(shape), {}};
  const auto bytes = std::as_bytes(std::span(values));
  part.bytes.assign(bytes.begin(), bytes.end());
  return part;
}

/// Codes, scales and zeros of a weight, before they are packed.
struct Rounded {
  std::uint64_t n_rows = 0;
  std::uint64_t n_cols = 0;
  std::uint64_t group = 0;
  std::uint64_t n_groups = 0;
  std::vector<std::uint8_t> codes;    // [n_rows, n_cols]
  std::vector<std::uint16_t> scales;  // [n_rows, n_groups] FP16
  std::vector<std::uint8_t> zeros;    // [n_rows, n_groups]
};

/// One group of a row to 4 bits.
void round_4_bits(std::span<const float> x,
                  std::uint8_t* codes,
                  std::uint16_t& scale,
                  std::uint8_t& zero) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  // 0 is between them, or the zero could not be a code.
  const float from = std::min(*low, 0.0F);
  const float to = std::max(*high, 0.0F);
  scale = f32_to_f16((to - from) / 15.0F);
  if (scale == 0) scale = f32_to_f16(1.0F);  // all are 0, or too small for FP16
  const float step = f16_to_f32(scale);
  const float at = std::clamp(std::nearbyint(-from / step), 1.0F, 15.0F);
  zero = static_cast<std::uint8_t>(at);
  for (std::size_t i = 0; i < x.size(); ++i)
    codes[i] = static_cast<std::uint8_t>(std::clamp(std::nearbyint(x[i] / step) + at, 0.0F, 15.0F));
}

/// One group of a row to signed bytes, as they stand in the file.
void round_8_bits(std::span<const float> x, std::uint8_t* codes, std::uint16_t& scale) {
  float largest = 0.0F;
  for (const float value : x)
    largest = std::max(largest, std::abs(value));
  scale = f32_to_f16(largest / 127.0F);
  if (scale == 0) scale = f32_to_f16(1.0F);
  const float step = f16_to_f32(scale);
  for (std::size_t i = 0; i < x.size(); ++i)
    codes[i] = static_cast<std::uint8_t>(
        static_cast<std::int8_t>(std::clamp(std::nearbyint(x[i] / step), -128.0F, 127.0F)));
}

Rounded round_weight(const PackedOptions& options,
                     std::span<const float> values,
                     std::uint64_t n_rows,
                     std::uint64_t n_cols) {
  Rounded r;
  r.n_rows = n_rows;
  r.n_cols = n_cols;
  r.group = options.group == 0 ? n_cols : options.group;
  r.n_groups = (n_cols + r.group - 1) / r.group;
  r.codes.resize(n_rows * n_cols);
  r.scales.resize(n_rows * r.n_groups);
  r.zeros.resize(n_rows * r.n_groups);
  for (std::uint64_t row = 0; row < n_rows; ++row) {
    for (std::uint64_t g = 0; g < r.n_groups; ++g) {
      const std::uint64_t first = row * n_cols + g * r.group;
      const auto group = values.subspan(first, std::min(r.group, n_cols - g * r.group));
      const std::uint64_t at = row * r.n_groups + g;
      if (options.form == PackedForm::int8)
        round_8_bits(group, r.codes.data() + first, r.scales[at]);
      else
        round_4_bits(group, r.codes.data() + first, r.scales[at], r.zeros[at]);
    }
  }
  return r;
}

/// [n_groups, n_rows]
PackedPart scales_by_group(const Rounded& r) {
  std::vector<std::uint16_t> scales(r.scales.size());
  for (std::uint64_t row = 0; row < r.n_rows; ++row)
    for (std::uint64_t g = 0; g < r.n_groups; ++g)
      scales[g * r.n_rows + row] = r.scales[row * r.n_groups + g];
  return part_of("scales", "F16", {r.n_groups, r.n_rows}, scales);
}

std::vector<PackedPart> pack_awq(const Rounded& r) {
  const std::uint64_t n_words = r.n_rows / kPerWord;
  const auto pack = [&](const std::vector<std::uint8_t>& numbers, std::uint64_t n_lines) {
    std::vector<std::uint32_t> words(n_lines * n_words);
    for (std::uint64_t line = 0; line < n_lines; ++line)
      for (std::uint64_t w = 0; w < n_words; ++w)
        for (std::uint32_t i = 0; i < kPerWord; ++i)
          words[line * n_words + w] |=
              std::uint32_t{numbers[(w * kPerWord + kAwqOrder[i]) * n_lines + line]} << 4 * i;
    return words;
  };
  return {part_of("qweight", "I32", {r.n_cols, n_words}, pack(r.codes, r.n_cols)),
          part_of("qzeros", "I32", {r.n_groups, n_words}, pack(r.zeros, r.n_groups)),
          scales_by_group(r)};
}

std::vector<PackedPart> pack_gptq(const Rounded& r) {
  std::vector<std::uint32_t> codes(r.n_cols / kPerWord * r.n_rows);
  for (std::uint64_t row = 0; row < r.n_rows; ++row)
    for (std::uint64_t col = 0; col < r.n_cols; ++col)
      codes[col / kPerWord * r.n_rows + row] |= std::uint32_t{r.codes[row * r.n_cols + col]}
                                                << 4 * (col % kPerWord);
  const std::uint64_t n_words = r.n_rows / kPerWord;
  std::vector<std::uint32_t> zeros(r.n_groups * n_words);
  for (std::uint64_t row = 0; row < r.n_rows; ++row)
    for (std::uint64_t g = 0; g < r.n_groups; ++g)
      zeros[g * n_words + row / kPerWord] |= (r.zeros[row * r.n_groups + g] - 1U)
                                             << 4 * (row % kPerWord);
  std::vector<std::int32_t> groups(r.n_cols);
  for (std::uint64_t col = 0; col < r.n_cols; ++col)
    groups[col] = static_cast<std::int32_t>(col / r.group);
  return {part_of("qweight", "I32", {r.n_cols / kPerWord, r.n_rows}, codes),
          part_of("qzeros", "I32", {r.n_groups, n_words}, zeros),
          scales_by_group(r),
          part_of("g_idx", "I32", {r.n_cols}, groups)};
}

std::vector<PackedPart> pack_int8(const Rounded& r) {
  return {part_of("weight", "I8", {r.n_rows, r.n_cols}, r.codes),
          part_of("weight_scale", "F16", {r.n_rows, r.n_groups}, r.scales)};
}

}  // namespace

std::vector<float> rounded_values(const PackedOptions& options,
                                  std::span<const float> values,
                                  std::uint64_t n_rows,
                                  std::uint64_t n_cols) {
  const Rounded r = round_weight(options, values, n_rows, n_cols);
  const bool is_int8 = options.form == PackedForm::int8;
  std::vector<float> worth(values.size());
  for (std::uint64_t i = 0; i < worth.size(); ++i) {
    const std::uint64_t g = i / n_cols * r.n_groups + i % n_cols / r.group;
    const int code = is_int8 ? static_cast<std::int8_t>(r.codes[i]) : r.codes[i] - r.zeros[g];
    worth[i] = f16_to_f32(r.scales[g]) * static_cast<float>(code);
  }
  return worth;
}

std::string quantization_config(const PackedOptions& options) {
  const std::string group = options.group == 0 ? std::string("-1") : std::to_string(options.group);
  switch (options.form) {
    case PackedForm::awq:
      return R"({"quant_method":"awq","version":"gemm","bits":4,"group_size":)" + group +
             R"(,"zero_point":true})";
    case PackedForm::gptq:
      return R"({"quant_method":"gptq","bits":4,"group_size":)" + group +
             R"(,"desc_act":false,"sym":false,"checkpoint_format":"gptq"})";
    case PackedForm::int8: {
      const std::string strategy = options.group == 0
                                       ? R"("strategy":"channel")"
                                       : R"("strategy":"group","group_size":)" + group;
      return R"({"quant_method":"compressed-tensors","format":"int-quantized","config_groups":)"
             R"({"group_0":{"targets":["Linear"],"weights":{"num_bits":8,"type":"int",)"
             R"("symmetric":true,)" +
             strategy + R"(}}},"ignore":["lm_head"]})";
    }
  }
  return {};
}

Result<std::vector<PackedPart>> pack_weight(const PackedOptions& options,
                                            std::span<const float> values,
                                            std::uint64_t n_rows,
                                            std::uint64_t n_cols) {
  const std::uint64_t group = options.group == 0 ? n_cols : options.group;
  const bool is_whole = n_cols % group == 0;
  const std::string shape = std::to_string(n_rows) + " x " + std::to_string(n_cols);
  if (options.form != PackedForm::int8 && (n_rows % kPerWord != 0 || n_cols % kPerWord != 0))
    return Error{Code::unsupported, shape + ": rows and columns must be multiples of 8"};
  if (options.form != PackedForm::gptq && !is_whole) {
    return Error{Code::unsupported,
                 shape + ": the columns are no whole groups of " + std::to_string(group) +
                     "; choose another group, or gptq, whose last group may be shorter"};
  }
  const Rounded rounded = round_weight(options, values, n_rows, n_cols);
  switch (options.form) {
    case PackedForm::awq:
      return pack_awq(rounded);
    case PackedForm::gptq:
      return pack_gptq(rounded);
    case PackedForm::int8:
      return pack_int8(rounded);
  }
  return Error{Code::internal, "no such form"};
}

}  // namespace luna::model
