// Regions of code compiled for one instruction set. Features are named, never `arch=`: with that,
// always_inline intrinsics in templates fail to inline. Standard headers go before a region.
#pragma once

#define LUNA_ISA_AVX2 "avx2,fma,f16c"
#define LUNA_ISA_AVX512 "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
#define LUNA_ISA_AVX512_BF16 \
  "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c"
#define LUNA_ISA_AMX \
  "amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"

// Twice, so that the features are expanded before they become text.
#define LUNA_ISA_PRAGMA(...) LUNA_ISA_PRAGMA_TEXT(__VA_ARGS__)
#define LUNA_ISA_PRAGMA_TEXT(...) _Pragma(#__VA_ARGS__)

#if defined(__clang__)
#define LUNA_ISA_BEGIN(features) \
  LUNA_ISA_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define LUNA_ISA_END LUNA_ISA_PRAGMA(clang attribute pop)
#else
#define LUNA_ISA_BEGIN(features) \
  LUNA_ISA_PRAGMA(GCC push_options) LUNA_ISA_PRAGMA(GCC target(features))
#define LUNA_ISA_END LUNA_ISA_PRAGMA(GCC pop_options)
#endif

/// Small functions of a region: they must become part of their caller's loop. Not so under the
/// sanitizers, whose checks would make minutes of compilation out of it.
#if defined(__has_feature)  // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LUNA_ISA_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LUNA_ISA_SANITIZED
#endif
#ifdef LUNA_ISA_SANITIZED
#define LUNA_ISA_INLINE [[maybe_unused]] static inline
#define LUNA_MEMBER_INLINE inline
#define LUNA_LAMBDA_INLINE
#else
#define LUNA_ISA_INLINE static inline __attribute__((always_inline))
#define LUNA_MEMBER_INLINE inline __attribute__((always_inline))
#define LUNA_LAMBDA_INLINE __attribute__((always_inline))
#endif
