// Regions of code compiled for one instruction set. Features are named, never `arch=`: with that,
// always_inline intrinsics in templates fail to inline. Standard headers go before a region.
#pragma once

#if defined(__clang__)
#define LUNA_ISA_BEGIN_AVX2 \
  _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c\"))), apply_to = function)")
#define LUNA_ISA_BEGIN_AVX512                                                            \
  _Pragma(                                                                               \
      "clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512vl,avx512dq," \
      "avx512vnni,avx2,fma,f16c\"))), apply_to = function)")
#define LUNA_ISA_END _Pragma("clang attribute pop")
#else
#define LUNA_ISA_BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c\")")
#define LUNA_ISA_BEGIN_AVX512 \
  _Pragma("GCC push_options") \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c\")")
#define LUNA_ISA_END _Pragma("GCC pop_options")
#endif

/// Small functions of a region: they must become part of their caller's loop.
#define LUNA_ISA_INLINE static inline __attribute__((always_inline))
#define LUNA_MEMBER_INLINE inline __attribute__((always_inline))
#define LUNA_LAMBDA_INLINE __attribute__((always_inline))
