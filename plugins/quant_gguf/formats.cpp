#include "formats.hpp"

#include "block_decode.hpp"
#include "block_values.hpp"

#include <string>

namespace luna::gguf {
namespace {

constexpr Format dense(std::uint32_t type,
                       std::string_view name,
                       std::uint32_t dtype,
                       std::uint32_t bytes,
                       BlockValues values) {
  return {.type = type, .name = name, .block_bytes = bytes, .dtype = dtype, .values = values};
}

// clang-format off
constexpr Format kFormats[] = {
    dense(0, "F32", LUNA_DTYPE_F32, 4, values_f32),
    dense(1, "F16", LUNA_DTYPE_F16, 2, values_f16),
    dense(30, "BF16", LUNA_DTYPE_BF16, 2, values_bf16),
    {.type = 2, .name = "Q4_0", .block_values = 32, .block_bytes = 18, .klass = LUNA_WEIGHT_AFFINE,
     .bits = 4, .group = 32, .zero = 8.0F, .decode = decode_q4_0, .values = values_q4_0},
    {.type = 3, .name = "Q4_1", .block_values = 32, .block_bytes = 20, .klass = LUNA_WEIGHT_AFFINE,
     .bits = 4, .group = 32, .has_offset = true, .decode = decode_q4_1, .values = values_q4_1},
    {.type = 6, .name = "Q5_0", .block_values = 32, .block_bytes = 22, .klass = LUNA_WEIGHT_AFFINE,
     .bits = 5, .group = 32, .zero = 16.0F, .decode = decode_q5_0, .values = values_q5_0},
    {.type = 7, .name = "Q5_1", .block_values = 32, .block_bytes = 24, .klass = LUNA_WEIGHT_AFFINE,
     .bits = 5, .group = 32, .has_offset = true, .decode = decode_q5_1, .values = values_q5_1},
    {.type = 8, .name = "Q8_0", .block_values = 32, .block_bytes = 34, .klass = LUNA_WEIGHT_AFFINE,
     .bits = 8, .group = 32, .zero = 128.0F, .decode = decode_q8_0, .values = values_q8_0},
    {.type = 10, .name = "Q2_K", .block_values = 256, .block_bytes = 84,
     .klass = LUNA_WEIGHT_AFFINE, .bits = 2, .group = 16, .super = 256, .has_offset = true,
     .decode = decode_q2_k, .values = values_q2_k},
    {.type = 11, .name = "Q3_K", .block_values = 256, .block_bytes = 110,
     .klass = LUNA_WEIGHT_AFFINE, .bits = 3, .group = 16, .super = 256, .zero = 4.0F,
     .decode = decode_q3_k, .values = values_q3_k},
    {.type = 12, .name = "Q4_K", .block_values = 256, .block_bytes = 144,
     .klass = LUNA_WEIGHT_AFFINE, .bits = 4, .group = 32, .super = 256, .has_offset = true,
     .decode = decode_q4_k, .values = values_q4_k},
    {.type = 13, .name = "Q5_K", .block_values = 256, .block_bytes = 176,
     .klass = LUNA_WEIGHT_AFFINE, .bits = 5, .group = 32, .super = 256, .has_offset = true,
     .decode = decode_q5_k, .values = values_q5_k},
    {.type = 14, .name = "Q6_K", .block_values = 256, .block_bytes = 210,
     .klass = LUNA_WEIGHT_AFFINE, .bits = 6, .group = 16, .super = 256, .zero = 32.0F,
     .decode = decode_q6_k, .values = values_q6_k},
    {.type = 20, .name = "IQ4_NL", .block_values = 32, .block_bytes = 18, .klass = LUNA_WEIGHT_LUT,
     .bits = 4, .group = 32, .decode = decode_iq4_nl, .values = values_iq4_nl},
};
// clang-format on

struct NamedType {
  std::uint32_t type;
  std::string_view name;
};
constexpr NamedType kUndecoded[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},
    {25, "I16"},   {26, "I32"},   {27, "I64"},     {28, "F64"},    {29, "IQ1_M"},
    {34, "TQ1_0"}, {35, "TQ2_0"}, {39, "MXFP4"},   {40, "NVFP4"},  {41, "Q1_0"},
};

}  // namespace

const Format* format_by_type(std::uint32_t type) {
  for (const Format& format : kFormats)
    if (format.type == type) return &format;
  return nullptr;
}

std::string_view undecoded_name(std::uint32_t type) {
  for (const NamedType& named : kUndecoded)
    if (named.type == type) return named.name;
  return "unknown";
}

std::string known_formats() {
  std::string names;
  for (const Format& format : kFormats)
    names += (names.empty() ? "" : " ") + std::string(format.name);
  return names;
}

}  // namespace luna::gguf
