/* Plain data that every kind of plugin shares. C11 and C++20; fixed-width integers only, so that
 * the layout is the same for every compiler.
 *
 * This is ABI 1.0 and frozen. Within major version 1 nothing moves, goes or changes its meaning; what
 * begins with its size, and rows that are walked with a stride, may grow at their end, and values may
 * be added to sets, with a new minor version. tests/golden/abi-1.0/layout.txt has every size, offset
 * and value, and says which records grow; docs/plugin-rules.md says how. */
#ifndef LUNA_ABI_TYPES_H
#define LUNA_ABI_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LUNA_ABI_MAJOR 1u
#define LUNA_ABI_MINOR 0u

/* Bytes of T up to the field f and with it: the size of T in the minor version whose last field f is. */
#define LUNA_SIZE_THROUGH(T, f) (offsetof(T, f) + sizeof(((T*)0)->f))

/* True when the producer of *p knew the field f: structs grow at the end only, in both directions.
 * Compare with >=, never with ==; never with sizeof(T), which grows with the minor version. Who fills
 * a record of the other side writes struct_size bytes of it at most. */
#define LUNA_HAS(p, T, f) ((p) && (p)->struct_size >= LUNA_SIZE_THROUGH(T, f))

/* 0 is success, above 0 a benign answer, below 0 an error. */
typedef int32_t luna_status;
#define LUNA_OK 0
#define LUNA_AGAIN 1               /* not finished: call again later */
#define LUNA_END 2                 /* past the last element */
#define LUNA_INVALID_ARGUMENT (-1) /* the caller's value is wrong */
#define LUNA_NOT_FOUND (-2)        /* the named thing is not there */
#define LUNA_CORRUPT (-3)          /* data from outside breaks its format */
#define LUNA_UNSUPPORTED (-4)      /* understood, but not built */
#define LUNA_EXHAUSTED (-5)        /* no room: memory, blocks, queue */
#define LUNA_UNAVAILABLE (-6)      /* not now: loading, draining, peer lost */
#define LUNA_CANCELLED (-7)        /* the asker went away */
#define LUNA_TIMEOUT (-8)          /* a deadline passed */
#define LUNA_IO (-9)               /* the operating system refused */
#define LUNA_INTERNAL (-10)        /* a bug */

/* UTF-8 bytes, borrowed from the caller until the call returns. Not zero-terminated. */
typedef struct luna_str {
  const char* p;
  uint64_t n;
} luna_str;

/* Error text in the caller's memory; nobody frees anything. */
typedef struct luna_err {
  uint32_t struct_size;
  luna_status code;
  char text[504]; /* zero-terminated, cut if longer */
} luna_err;

/* Types of settings and of metadata values. */
#define LUNA_TYPE_BOOL 0u   /* luna_kv.i, 0 or 1 */
#define LUNA_TYPE_INT 1u    /* luna_kv.i */
#define LUNA_TYPE_FLOAT 2u  /* luna_kv.f */
#define LUNA_TYPE_STRING 3u /* luna_kv.s */
#define LUNA_TYPE_STRING_LIST 4u /* luna_kv.s: the elements, each followed by one zero byte */
#define LUNA_TYPE_STRING_MAP 5u  /* luna_kv.s: key, zero, value, zero, ... */

/* One typed setting. */
typedef struct luna_kv {
  luna_str key;
  uint32_t type; /* LUNA_TYPE_* */
  uint32_t pad;
  int64_t i;
  double f;
  luna_str s;
} luna_kv;

/* Declaration of one setting of a plugin, in static storage. Absent strings are NULL.
 * Numbers are written as text ("0.60"), so that one struct serves every type. */
typedef struct luna_param {
  uint32_t struct_size;
  uint32_t type;       /* LUNA_TYPE_* */
  const char* key;     /* snake_case with its unit: "interval_ms" */
  /* NULL: the setting is required. Elements of a list are separated by "|"; a map is written
   * "key=value|key=value". */
  const char* dflt;
  const char* min;     /* inclusive; NULL: no bound */
  const char* max;     /* inclusive; NULL: no bound */
  const char* choices; /* "a|b|c"; NULL: anything */
  const char* help;    /* one sentence */
} luna_param;

/* Element types of tensors. */
#define LUNA_DTYPE_F32 0u
#define LUNA_DTYPE_F16 1u
#define LUNA_DTYPE_BF16 2u
#define LUNA_DTYPE_I8 3u
#define LUNA_DTYPE_U8 4u
#define LUNA_DTYPE_I32 5u
#define LUNA_DTYPE_U32 6u
#define LUNA_DTYPE_F8_E4M3 7u
#define LUNA_DTYPE_F8_E5M2 8u
#define LUNA_DTYPE_F64 9u

/* Attention is computed over partitions of so many positions: the grain of slices. */
#define LUNA_PARTITION_TOKENS 256u

#ifdef __cplusplus
}
#endif
#endif
