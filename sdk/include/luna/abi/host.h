/* What the host lends to a plugin. The table outlives every instance; no host call is legal from
 * a static constructor or destructor.
 *
 * Thread tags, on every function of the contract:
 *   [main]  the thread that starts and stops the program
 *   [load]  any host worker while models load; calls work on disjoint data
 *   [step]  one at a time per instance, on any thread
 *   [io]    the transport's poller; one at a time per instance
 *   [any]   any thread, at any time between create and destroy */
#ifndef LUNA_ABI_HOST_H
#define LUNA_ABI_HOST_H

#include <luna/abi/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LUNA_LOG_DEBUG 1
#define LUNA_LOG_INFO 2
#define LUNA_LOG_WARN 3
#define LUNA_LOG_ERROR 4

typedef struct luna_host luna_host;

struct luna_host {
  uint32_t struct_size;
  uint32_t abi_minor;      /* the host's; a plugin built against an older one is fine */
  const char* product;     /* "luna" */
  const char* version;     /* "0.1.0" */

  /* Logs one line under the plugin's name. Never from a [step] call that succeeded. [any] */
  void (*log)(const luna_host*, int32_t level, luna_str text);

  /* Nanoseconds of the host's clock: real, or virtual in the simulator. Frozen during plan(). [any] */
  uint64_t (*now_ns)(const luna_host*);

  /* The next number of a seeded, replayable stream. [step] */
  uint64_t (*rand_u64)(const luna_host*, uint64_t stream);

  /* Runs fn(arg, 0..n-1) on the host's loading threads and waits for all. fn must not throw. [load] */
  luna_status (*parallel_for)(const luna_host*, uint32_t n, void (*fn)(void* arg, uint32_t i),
                              void* arg);

  /* A table of further services by id ("luna.svc.x/1"), or NULL. [any] */
  const void* (*service)(const luna_host*, const char* id);
};

#ifdef __cplusplus
}
#endif
#endif
