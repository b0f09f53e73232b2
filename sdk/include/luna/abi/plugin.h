/* What every kind of plugin shares: the entry symbol, the descriptor, the life cycle.
 *
 * A plugin is a shared library that exports one function, luna_plugin_query, and carries an ELF
 * note (section .note.luna) that the host reads before it loads the library. Everything else is
 * reached by string id ("luna.scheduler/1"). Ids are matched exactly. What stands behind an id of
 * this version is frozen; a kind or an extension that must change gets the next number, and the host
 * goes on taking the old one.
 *
 * Life cycle: found, note read, loaded (RTLD_NOW | RTLD_LOCAL), queried, accepted, init, create ...
 * destroy, fini. init and fini are called once each. The library stays loaded until the process
 * ends. Nothing may be thrown across the border; the C++ side (plugin.hpp) fences every function. */
#ifndef LUNA_ABI_PLUGIN_H
#define LUNA_ABI_PLUGIN_H

#include <luna/abi/host.h>
#include <luna/abi/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ids of the kinds. */
#define LUNA_KIND_SCHEDULER "luna.scheduler/1"
#define LUNA_KIND_ROLE "luna.role/1"
#define LUNA_KIND_QUANT "luna.quant/1"
#define LUNA_KIND_TRANSPORT "luna.transport/1"
#define LUNA_KIND_BACKEND "luna.backend/1"

/* Flags of a plugin. */
#define LUNA_PLUGIN_DETERMINISTIC 1u /* outputs depend on inputs and rand_u64 streams alone */

/* Head of every kind's table. A table is static storage in the plugin. */
typedef struct luna_if {
  uint32_t struct_size; /* of the kind's whole table */
  uint32_t flags;
  uint32_t n_params;
  uint32_t reserved;
  const luna_param* params; /* [n_params], the settings this kind of instance takes */

  /* Makes an instance from settings that the host has checked against params and completed with
   * their defaults. On failure: *self untouched, err filled. [main] */
  luna_status (*create)(const luna_host*, const luna_kv* settings, uint32_t n_settings, void** self,
                        luna_err* err);
  /* Cannot fail. [main] */
  void (*destroy)(void* self);
  /* An optional capability of one instance by id, or NULL for ids it does not know. [main] */
  const void* (*ext)(void* self, const char* id);
} luna_if;

/* Describes the plugin: static storage, never freed. */
typedef struct luna_plugin {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor_built;  /* information only */
  uint32_t abi_minor_needed; /* the host's minor must be at least this */
  const char* id;            /* reverse DNS: "org.luna.scheduler.static" */
  const char* name;          /* short name used in TOML: "static" */
  const char* version;
  const char* vendor;
  const char* licence;
  const char* summary;       /* one sentence */
  uint64_t flags;
  /* The table of a kind, or NULL for ids the plugin does not offer. The same pointer each time. */
  const void* (*table)(const char* kind_id);
  luna_status (*init)(const luna_host*, luna_err*); /* optional (NULL), paired with fini. [main] */
  void (*fini)(void);                               /* optional. [main] */
} luna_plugin;

/* Payload of the ELF note: owner "Luna", type 1. Fixed size, readable without running code. */
typedef struct luna_note {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor_built;
  uint32_t abi_minor_needed;
  char id[96];     /* zero-terminated */
  char name[32];   /* zero-terminated */
  char kinds[128]; /* kind ids separated by one blank, zero-terminated */
} luna_note;

#define LUNA_NOTE_OWNER "Luna"
#define LUNA_NOTE_TYPE 1u

#if defined(__GNUC__)
#define LUNA_EXPORT __attribute__((visibility("default")))
#else
#define LUNA_EXPORT
#endif

/* The one export. No side effects; the same pointer each time. NULL: the plugin cannot serve a host
 * of this version. */
LUNA_EXPORT const luna_plugin* luna_plugin_query(uint32_t host_major, uint32_t host_minor);

#ifdef __cplusplus
}
#endif

#endif
