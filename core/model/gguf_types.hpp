// The element types of GGUF tensors: how many values a block holds and how many bytes it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace luna::model {

struct GgufType {
  std::uint32_t number;  // ggml_type
  std::string_view name;
  std::uint32_t block_values;
  std::uint32_t block_bytes;
};

/// Source  ggml.h and ggml-common.h of ggml-org/llama.cpp
inline constexpr GgufType kGgufTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},
};

/// The type of a number, or nullptr for one that is not known.
constexpr const GgufType* gguf_type_by_number(std::uint32_t number) {
  for (const GgufType& type : kGgufTypes)
    if (type.number == number) return &type;
  return nullptr;
}

/// The type of a name, or nullptr for one that is not known.
constexpr const GgufType* gguf_type_by_name(std::string_view name) {
  for (const GgufType& type : kGgufTypes)
    if (type.name == name) return &type;
  return nullptr;
}

/// Bytes of a tensor, or nothing where its rows are no whole blocks or the size exceeds 64 bits.
///
/// dims  slowest first, none of them 0; empty: one value
constexpr std::optional<std::uint64_t> gguf_tensor_bytes(const GgufType& type,
                                                         std::span<const std::uint64_t> dims) {
  const std::uint64_t n_cols = dims.empty() ? 1 : dims.back();
  if (n_cols % type.block_values != 0) return std::nullopt;
  std::uint64_t n_bytes = type.block_bytes;
  bool overflows = __builtin_mul_overflow(n_bytes, n_cols / type.block_values, &n_bytes);
  for (std::size_t i = 0; i + 1 < dims.size(); ++i)
    overflows = __builtin_mul_overflow(n_bytes, dims[i], &n_bytes) || overflows;
  return overflows ? std::nullopt : std::optional<std::uint64_t>(n_bytes);
}

}  // namespace luna::model
