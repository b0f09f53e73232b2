/* Kind "backend": devices, their memory and weights, and op programs compiled for them.
 *
 * Core opens devices, hands over weights in the canonical layout (abi/quant.h), compiles programs,
 * and then calls submit once a device and step. A device owns its threads or streams. */
#ifndef LUNA_ABI_BACKEND_H
#define LUNA_ABI_BACKEND_H

#include <luna/abi/op_program.h>
#include <luna/abi/plugin.h>
#include <luna/abi/quant.h>
#include <luna/abi/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luna_device_info {
  uint32_t struct_size;
  uint32_t index;
  uint64_t memory_bytes_total;
  uint64_t memory_bytes_free;
  uint32_t n_threads_max;  /* CPU: usable hardware threads; others 0 */
  uint32_t numerics;       /* bit 1 << LUNA_NUMERICS_x for each class it computes */
  uint32_t kv_dtypes;      /* bit 1 << LUNA_DTYPE_x for each KV type */
  uint32_t pad;
  char name[64];           /* "AMD EPYC ..." */
  char detail[128];        /* "avx512-vnni, 2 threads" */
} luna_device_info;

typedef struct luna_device_open {
  uint32_t struct_size;
  uint32_t index;          /* a number per backend; CPU devices may be opened any number of times */
  uint64_t memory_bytes;   /* budget; allocations beyond it are LUNA_EXHAUSTED */
  uint32_t n_threads;      /* CPU: worker threads; 0: one per usable hardware thread */
  uint32_t first_cpu;      /* CPU: position in the process's affinity mask of the first thread's
                              core; positions wrap around */
} luna_device_open;

/* One whole KV block (all layers of the program), copied before the step reads it. */
typedef struct luna_kv_copy {
  uint32_t from_block;
  uint32_t to_block;
} luna_kv_copy;

/* A sequence whose KV has been pruned or will be (see kv_prune). Position p lies in slot
 * p - n_pruned: block (p - n_pruned) / block_tokens of its table. */
typedef struct luna_seq_prune {
  uint32_t n_pruned;       /* positions pruned in earlier steps */
  uint32_t n_observed;     /* the last rows of the sequence in this step whose attention counts */
  uint32_t n_keep;         /* 0, or: slots that are left after this step */
  uint32_t pad;
} luna_seq_prune;

/* Partitions [first_partition, first_partition + n_partitions) of a sequence, whose KV lies on
 * another device. They are closed: they end at the sequence's first row of the step or before. Its
 * block table holds nothing for them. */
typedef struct luna_slice {
  uint32_t seq;            /* of the step */
  uint32_t peer;           /* of the luna_slice_peers: who has them */
  uint32_t first_partition;
  uint32_t n_partitions;
  const uint32_t* blocks;  /* [n_partitions * LUNA_PARTITION_TOKENS / block_tokens]: the peer's */
} luna_slice;

#define LUNA_OUT_LOGITS 1u      /* out_flags: this row's full logits must reach host memory */
#define LUNA_OUT_CANDIDATES 2u  /* out_flags: this row's candidates must reach host memory */

typedef struct luna_bind {
  uint32_t slot;
  uint32_t pad;
  uint64_t buffer;         /* handle from alloc(); COMM: 0 */
  const void* comm;        /* COMM: the luna_comm; SLICES: the luna_slice_peers */
} luna_bind;

typedef struct luna_step_result {
  uint32_t struct_size;
  luna_status status;
  uint64_t busy_ns;        /* inside ops, waits for peers excluded */
  uint64_t wait_ns;        /* waiting for peers */
  const char* message;     /* what failed, or "" ; valid during the callback */
} luna_step_result;

/* The inputs of one step. Everything stays valid and unchanged until `done` is called. */
typedef struct luna_step {
  uint32_t struct_size;
  uint32_t n_rows;         /* token rows, >= 1 */
  uint32_t n_seqs;
  uint32_t n_out_rows;
  const uint32_t* token_ids;    /* [n_rows] */
  const uint32_t* positions;    /* [n_rows] */
  const uint32_t* seq_first_row; /* [n_seqs + 1]: rows of sequence s are [s] .. [s + 1] */
  const uint32_t* block_tables; /* [n_seqs, block_table_stride]: KV block of position p is p / block_tokens */
  uint32_t block_table_stride;
  uint32_t n_kv_copies;
  const luna_kv_copy* kv_copies;
  const uint32_t* out_rows;     /* [n_out_rows], ascending */
  const uint32_t* out_flags;    /* [n_out_rows]: LUNA_OUT_* */
  const luna_bind* binds;
  uint32_t n_binds;
  uint32_t pad;
  /* Called once, from any thread, after the last op (or the failure). */
  void (*done)(void* context, const luna_step_result*);
  void* done_context;
  const luna_seq_prune* seq_prunes; /* [n_seqs], or null: nothing is pruned */
  /* [n_slices], ascending by sequence, then by partition; only for programs with a slot SLICES and
   * without kv_prune. When a peer fails, the step runs to its end, so that the device's other
   * communication stays in order, and `done` is told. */
  const luna_slice* slices;
  uint32_t n_slices;
  uint32_t pad2;
  /* [n_slices], or null: what the last row of a slice's sequence pays the slice. For each head of
   * each attend the device adds the share of the row's attention that fell on the slice's positions,
   * exp(their log-sum-exp - that of all), in units of 2^-32: the sum is the same in any order. Added
   * atomically, because the devices of a group share the array. */
  uint64_t* slice_masses;
} luna_step;

#define LUNA_BUFFER_KV 1u     /* device memory, zeroed */
#define LUNA_BUFFER_OUT 2u    /* host memory the device can write; *host is its address */

typedef struct luna_backend_if {
  luna_if head;
  /* Device i; LUNA_END past the last. Writes struct_size bytes at most. [main] */
  luna_status (*device_info)(void* self, uint32_t i, luna_device_info*);
  luna_status (*open)(void* self, const luna_device_open*, void** device, luna_err*);   /* [main] */
  /* Stops the device's threads; no step is running. [main] */
  void (*close)(void* device);

  /* Bytes the device will use, so that core can plan before it allocates. Pure. [any] */
  luna_status (*weight_bytes)(void* device, const luna_weight_desc*, uint32_t numerics,
                              uint64_t* bytes, luna_err*);
  luna_status (*scratch_bytes)(void* device, const luna_program*, uint64_t* bytes, luna_err*);
  luna_status (*kv_block_bytes)(void* device, const luna_kv_layout*, uint64_t* bytes, luna_err*);

  /* per_op[i] = 1 if op i of the program can run here; err names the first that cannot. [any] */
  luna_status (*supports)(void* device, const luna_program*, uint8_t* per_op, luna_err*);

  /* A weight: begin, rows in ranges whose first row is a multiple of 64 (in parallel), end.
   * The planes are not read after the call. */
  luna_status (*weight_begin)(void* device, const luna_weight_desc*, uint32_t numerics,
                              uint64_t* weight, luna_err*);                             /* [main] */
  luna_status (*weight_rows)(void* device, uint64_t weight, const luna_weight_rows*, luna_err*); /* [load] */
  luna_status (*weight_end)(void* device, uint64_t weight, luna_err*);                  /* [main] */
  void (*weight_free)(void* device, uint64_t weight);                                  /* [main] */

  luna_status (*alloc)(void* device, uint32_t kind, uint64_t bytes, uint64_t* buffer, void** host,
                       luna_err*);                                                     /* [main] */
  void (*free_buffer)(void* device, uint64_t buffer);                                  /* [main] */

  /* weights[slot.index] is the handle behind a WEIGHT slot. The program may go after the call. [main] */
  luna_status (*compile)(void* device, const luna_program*, const uint64_t* weights,
                         uint32_t n_weights, void** executable, luna_err*);
  void (*release)(void* executable);                                                   /* [main] */

  /* Starts one step and returns at once; one step at a time per device (further ones queue behind
   * it, in order: up to eight of a program in all). An error here means that `done` will not be
   * called. [step] */
  luna_status (*submit)(void* executable, const luna_step*, luna_err*);
} luna_backend_if;

/* ---- extension: KV blocks in and out of a device ----------------------------------------------- */
/* What head.ext() of a backend answers for this id: a luna_kv_blocks_if, or NULL where blocks cannot
 * leave its devices. */
#define LUNA_EXT_KV_BLOCKS "luna.ext.kv_blocks/1"

/* Layers [first_layer, first_layer + n_layers) of some blocks of a KV buffer. Outside, they lie as
 * [n_blocks][n_layers] of equal size: n_blocks times the kv_block_bytes of such a layout with
 * n_layers. What these bytes say is the backend's own affair; devices of one backend whose layouts
 * differ in n_layers at most write and read the same. */
typedef struct luna_kv_part {
  uint32_t struct_size;
  uint32_t n_blocks;
  uint64_t buffer;              /* handle from alloc(), of kind KV */
  const luna_kv_layout* layout; /* of the buffer's blocks */
  const uint32_t* blocks;       /* [n_blocks] */
  uint32_t first_layer;
  uint32_t n_layers;
  uint64_t n_bytes;             /* of the memory outside: exactly what the part takes */
} luna_kv_part;

/* Both copy on the calling thread, allocate nothing, and may run beside steps and each other as long
 * as nobody writes the blocks that are read, or reads or writes those that are written. */
typedef struct luna_kv_blocks_if {
  uint32_t struct_size;
  uint32_t pad;
  luna_status (*kv_export)(void* device, const luna_kv_part*, void* bytes, luna_err*);       /* [any] */
  luna_status (*kv_import)(void* device, const luna_kv_part*, const void* bytes, luna_err*); /* [any] */
} luna_kv_blocks_if;

/* ---- extension: attention where the KV lies ----------------------------------------------------- */
/* What head.ext() of a backend answers for this id: a luna_slices_if, or NULL where its attention
 * reads its own KV alone. */
#define LUNA_EXT_SLICES "luna.ext.slices/1"

/* Between the owner of sequences and a device that holds slices of them there is one communicator of
 * two ranks (luna.ext.collective/1) with room for two messages of message_bytes each way. Rank 0 is
 * the owner: its attend posts queries, goes on with what lies at home, then waits for the states.
 * Rank 1 is the guest: a service answers as queries come and waits for nothing else, so that devices
 * may serve each other. Devices of equal numbers `attention` (abi/scheduler.h) alone are paired. */
#define LUNA_SLICE_OWNER 0u
#define LUNA_SLICE_GUEST 1u
#define LUNA_SLICE_TAG_QUERIES 1u
#define LUNA_SLICE_TAG_STATES 2u

/* Bound to a slot SLICES: the owner's ends. luna_slice.peer is an index; null: nobody is there. */
typedef struct luna_slice_peers {
  uint32_t struct_size;
  uint32_t n_peers;              /* at most LUNA_SLICE_PEERS_MAX */
  const luna_comm* const* comms; /* [n_peers] */
} luna_slice_peers;
#define LUNA_SLICE_PEERS_MAX 64u

typedef struct luna_slices_if {
  uint32_t struct_size;
  uint32_t pad;
  /* Of the largest message between two devices with this program. Pure. [any] */
  luna_status (*message_bytes)(void* device, const luna_program*, uint64_t* bytes, luna_err*);
  /* Bytes that one service takes of the device's memory. Pure. [any] */
  luna_status (*service_bytes)(void* device, const luna_program*, uint64_t* bytes, luna_err*);
  /* Starts a service for one owner, with a thread or queue of its own. It reads the blocks of
   * `buffer` that queries name, beside steps that write others; a message that is out of bounds is
   * refused, and the owner's step told. It ends with its communicator. [main] */
  luna_status (*serve)(void* executable, uint64_t buffer, const luna_comm*, void** service, luna_err*);
  /* Waits for the end, so the communicator was aborted or its owner has closed it. [main] */
  void (*end_service)(void* service);
} luna_slices_if;

#ifdef __cplusplus
}
#endif
#endif
