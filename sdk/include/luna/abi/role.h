/* Kind "role": one role of a request's pipeline (intent, generate, postprocess, anybody's own).
 *
 * A stage of the pipeline is a role with its settings and a model. Core calls run() with the batch
 * of items that wait for the stage, on a pipeline thread, one call at a time per instance. The
 * items of one request arrive in order; a role that streams must give the same result for every
 * split of the same stream into items.
 *
 * Flow of one request through a stage: first a REQUEST item (JSON: the settled request as it enters
 * the stage), then what the stage before made of it as TEXT items, then END; the first stage gets
 * REQUEST and END. The role answers with items of its own: MODEL_REQUEST to run its stage's model
 * (the results come back as MODEL_TEXT and MODEL_END in later calls), UPDATE to change the request
 * for the stages after it (before its first TEXT or END), TEXT for its output, END when it has
 * finished, ERROR to end the request. The JSON is described in <luna/role.hpp>.
 *
 * A request with n > 1 choices is one request until a role runs the model on the client's own
 * prompt: then each further choice gets an identity of its own, whose first item is MODEL_TEXT or
 * MODEL_END in that stage, and REQUEST in the stages after it. */
#ifndef LUNA_ABI_ROLE_H
#define LUNA_ABI_ROLE_H

#include <luna/abi/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of item; in: core to role, out: role to core. `text` holds what the comment names. */
#define LUNA_ITEM_REQUEST 1u       /* in: JSON object, see <luna/role.hpp> */
#define LUNA_ITEM_TEXT 2u          /* in, out: bytes of the stream, whole characters */
#define LUNA_ITEM_END 3u           /* in, out: finish reason ("stop", "length") */
#define LUNA_ITEM_MODEL_REQUEST 4u /* out: JSON object: what to change for the model run, {} for none */
#define LUNA_ITEM_MODEL_TEXT 5u    /* in: bytes that the model made, whole characters */
#define LUNA_ITEM_MODEL_END 6u     /* in: "stop", "length", "cancelled", "failed: why" */
#define LUNA_ITEM_UPDATE 7u        /* out: JSON object merged into the request for later stages */
#define LUNA_ITEM_ERROR 8u         /* out: message for the client */

/* Flags of an item. */
#define LUNA_ITEM_STREAMING 1u     /* REQUEST: the client reads token by token */

typedef struct luna_item {
  uint64_t request;   /* identity of the request's choice, chosen by core */
  uint32_t kind;      /* LUNA_ITEM_* */
  uint32_t flags;
  luna_str text;      /* borrowed: in items until run returns, out items from the sink's caller */
  const uint32_t* ids; /* MODEL_TEXT: token ids, may be NULL */
  uint32_t n_ids;
  uint32_t pad;
} luna_item;

/* Where a role puts its output: emit() copies the item. */
typedef struct luna_item_sink {
  uint32_t struct_size;
  uint32_t pad;
  void* context;
  luna_status (*emit)(void* context, const luna_item*);
} luna_item_sink;

typedef struct luna_role_if {
  luna_if head;
  /* A batch of items in, items out. [step] */
  luna_status (*run)(void* self, const luna_item* items, uint32_t n_items, const luna_item_sink*,
                     luna_err*);
  /* These requests ended or were cancelled: forget them. [step] */
  void (*drop)(void* self, const uint64_t* requests, uint32_t n);
} luna_role_if;

/* ---- extension: the texts that a role chooses among ------------------------------------------ */
#define LUNA_EXT_ROLE_CHOICES "luna.ext.role_choices/1"

/* A role that names allowed_text in its model requests lists all its texts here, so that core can
 * check, when the pipeline is made, that the stage's model tells them apart by their first token. */
typedef struct luna_role_choices_if {
  uint32_t struct_size;
  uint32_t pad;
  /* The texts, each followed by one zero byte; valid as long as the instance. Empty: the role asks
   * no model. [main] */
  luna_str (*choices)(void* self);
} luna_role_choices_if;

#ifdef __cplusplus
}
#endif
#endif
