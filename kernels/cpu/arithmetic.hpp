// The arithmetic contract of linear layers and attention: the constants and formulas that fix which
// numbers are added in which order. Everything that computes includes this header and nothing else
// decides any of it: two kernels that follow it give the same bits.
//
// The numeric classes of quantized weights: `i12` and `i8` quantize activations a row and group and
// sum exact integer products; `bf16` rounds weights and activations to BF16 and sums in the order
// of the AMX tile instruction.
#pragma once

#include <algorithm>
#include <cstdint>

namespace luna::kernels {

// ---- Linear layers
// -------------------------------------------------------------------------------

/// Columns of a segment of K. Groups are summed upward from +0 within a segment, then the segments'
/// sums upward from +0. Depends on the weight alone, so every backend and row count agrees.
///
/// n_rows_total  rows of the op's weight in the whole model, before any split over devices
/// k             columns of the weight
/// group         columns that share a scale
/// super_block   columns of a super-block; 0: one level of scales
constexpr std::int64_t segment_length(std::int64_t n_rows_total,
                                      std::int64_t k,
                                      std::int64_t group,
                                      std::int64_t super_block) {
  const std::int64_t quantum = std::max<std::int64_t>(64, std::max(group, super_block));
  std::int64_t n_segments = 1;
  while (n_segments < 16 && (n_rows_total + 63) / 64 * n_segments < 1024) {
    n_segments *= 2;
  }
  while (n_segments > 1 && k / n_segments < 256) {
    n_segments /= 2;
  }
  return (k + n_segments * quantum - 1) / (n_segments * quantum) * quantum;
}
static_assert(segment_length(576, 576, 32, 0) == 320);
static_assert(segment_length(576, 1536, 32, 0) == 384);
static_assert(segment_length(49152, 576, 32, 0) == 320);
static_assert(segment_length(4096, 4096, 32, 0) == 256);

/// Bits of an activation beside codes of `code_bits`; code books hold 8-bit integers.
constexpr int activation_bits(int code_bits) {
  return code_bits == 5 ? 11 : code_bits == 6 || code_bits == 7 ? 10 : 12;
}
/// Columns that share an activation's scale.
constexpr std::int64_t activation_group(std::int64_t weight_group, std::int64_t super_block) {
  return super_block != 0 ? super_block : std::clamp<std::int64_t>(weight_group, 32, 128);
}
/// Bits of an activation of class `i8`, beside codes of any width.
inline constexpr int kShortActivationBits = 8;
/// Largest magnitude of a quantized activation: 2047, 1023, 511 or 127.
constexpr int activation_limit(int bits) {
  return (1 << (bits - 1)) - 1;
}

/// Groups whose largest magnitude is below this are zero.
inline constexpr float kActivationFloor = 0x1p-100F;

/// BF16 terms an activation is carried in beside dense weights.
inline constexpr int kDenseTerms = 1;

/// Columns of one step of a BF16 chain: products 0, 2, 4, .. and 1, 3, 5, .. of a step form two FMA
/// chains from +0; their sum is added to the accumulator.
inline constexpr int kChainStep = 32;

// ---- Attention
// -----------------------------------------------------------------------------------

/// Positions of a partition, aligned to absolute position. The states of partitions are merged by
/// the binary tree over partition numbers: node (level, index) joins (level - 1, 2 * index) and its
/// sibling; an absent child passes the other one through untouched.
inline constexpr int kPartitionTokens = 256;

/// BF16 terms of Q and P. Term 0 is bf16(x), term 1 bf16(x - term 0). Within each chain step the
/// accumulator takes the step's sum of term 0 first, then that of term 1. Q's second term is nearly
/// all of what two terms gain; P's makes no difference that could be measured (bench/numerics).
inline constexpr int kQueryTerms = 2;
inline constexpr int kProbabilityTerms = 1;

/// INT8 KV: the largest code. A score is (chain * (s_k * scale)), the chain over the codes of K;
/// the weight of a code of V is p * s_v, rounded to terms after that product.
inline constexpr float kKvCodeLimit = 127.0F;

// ---- Sums, exp
// ------------------------------------------------------------------------------------

/// Sums of norms and softmax: element i goes to lane i mod 16, ascending; then lane i takes lane
/// i + 8, i + 4, i + 2, i + 1.
inline constexpr int kSumLanes = 16;

/// exp2(x): x clamped to [-126, 127]; n = rint(x), f = x - n; 1 + f * (c0 + f * (c1 + ..)) by FMA
/// from the last coefficient down; n added to the exponent. exp(x) is exp2(x * kLog2E).
/// Minimax of the relative error over [-0.5, 0.5]: 7.9e-8 in FP32.
inline constexpr float kExp2Coefficients[6] = {0x1.62e430p-1F,
                                               0x1.ebfbdcp-3F,
                                               0x1.c6aee8p-5F,
                                               0x1.3b2d4ep-7F,
                                               0x1.5f3ec4p-10F,
                                               0x1.41fb70p-13F};
inline constexpr float kExp2Min = -126.0F;
inline constexpr float kExp2Max = 127.0F;
inline constexpr float kLog2E = 0x1.715476p+0F;

/// tanh form of GELU: x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x^3)).
inline constexpr float kGeluInner = 0x1.988454p+0F;  // 2 * sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715F;

/// Columns of a logits row whose candidates and exponential sum form one state. States are joined
/// upward, so the result does not depend on who computed which.
inline constexpr int kLogitsChunk = 4096;

}  // namespace luna::kernels
