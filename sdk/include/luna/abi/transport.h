/* Kind "transport": moves bytes between devices, in this process or others.
 *
 * Core exchanges the address blobs. Where processes of one cluster meet, core sets the parameters
 * `run` (a name that they share), `token_file` (their secret) and `host` (where others reach this
 * one) of a transport that declares them and whose table in the TOML does not. connect never blocks (LUNA_AGAIN: call again); post takes a
 * batch; poll never blocks. Communication inside a step goes through the optional extension
 * "luna.ext.collective/1", whose communicators are bound to op programs and called by the devices'
 * executors, never by core. */
#ifndef LUNA_ABI_TRANSPORT_H
#define LUNA_ABI_TRANSPORT_H

#include <luna/abi/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LUNA_MEM_HOST 1u
#define LUNA_MEM_PINNED 2u
#define LUNA_MEM_DEVICE 4u

typedef struct luna_mem {
  uint32_t kind;        /* LUNA_MEM_* */
  uint32_t device;
  void* ptr;
  uint64_t n_bytes;
  int32_t dmabuf_fd;    /* -1: none */
  uint32_t pad;
} luna_mem;

/* How far apart two endpoints that meet may be. */
#define LUNA_REACH_PROCESS 1u /* in one process */
#define LUNA_REACH_HOST 2u    /* in processes of one user on one host */
#define LUNA_REACH_NETWORK 3u /* anywhere */

typedef struct luna_transport_caps {
  uint32_t struct_size;
  uint32_t mem_kinds;   /* LUNA_MEM_* it can move, or-ed */
  uint64_t message_bytes_max;
  uint64_t latency_ns;
  double bytes_per_ns;
  uint32_t reach;       /* LUNA_REACH_*; 0: it does not say, core takes it for PROCESS */
  uint32_t pad;
} luna_transport_caps;

#define LUNA_XFER_SEND 1u   /* from registered memory to a peer's matching RECV of the same tag */
#define LUNA_XFER_RECV 2u

typedef struct luna_xfer {
  uint32_t verb;
  uint32_t peer;
  uint32_t tag;
  uint32_t flags;
  uint64_t key;         /* registered memory */
  uint64_t offset;
  uint64_t n_bytes;
  uint64_t cookie;      /* comes back in luna_xfer_done */
} luna_xfer;

typedef struct luna_xfer_done {
  uint64_t cookie;
  luna_status status;
  uint32_t pad;
  uint64_t n_bytes;
} luna_xfer_done;

#define LUNA_ADDRESS_BYTES_MAX 256u

typedef struct luna_transport_if {
  luna_if head;
  /* Writes struct_size bytes at most. [any] */
  luna_status (*caps)(void* self, luna_transport_caps*);
  /* This endpoint's address, at most LUNA_ADDRESS_BYTES_MAX bytes. [main] */
  luna_status (*address)(void* self, uint8_t* blob, uint32_t* n_bytes);
  /* LUNA_AGAIN until the peer is there; then *peer is its number. [io] */
  luna_status (*connect)(void* self, const uint8_t* blob, uint32_t n_bytes, uint32_t* peer,
                         luna_err*);
  luna_status (*register_memory)(void* self, const luna_mem*, uint64_t* key, luna_err*); /* [io] */
  void (*deregister_memory)(void* self, uint64_t key);                          /* [io] */
  /* Expected time of a transfer; pure. [any] */
  uint64_t (*estimate_ns)(void* self, uint32_t peer, uint64_t n_bytes);
  /* Starts n transfers; LUNA_EXHAUSTED: none was started, poll first. [io] */
  luna_status (*post)(void* self, const luna_xfer*, uint32_t n, luna_err*);
  /* Up to n_max finished transfers. [io] */
  luna_status (*poll)(void* self, luna_xfer_done*, uint32_t n_max, uint32_t* n);
  void (*drop_peer)(void* self, uint32_t peer);                                 /* [io] */
} luna_transport_if;

/* ---- extension: communication inside a step -------------------------------------------------- */
#define LUNA_EXT_COLLECTIVE "luna.ext.collective/1"

#define LUNA_REDUCE_SUM_F32 1u

/* One rank's end of a communicator. Calls are made by one device's executor, one at a time; they
 * wait for the peer and return LUNA_CANCELLED once the communicator is aborted. [step] */
typedef struct luna_comm {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t n_ranks;
  uint32_t pad;
  void* self;
  luna_status (*send)(void* self, uint32_t peer, uint32_t tag, const void* data, uint64_t n_bytes);
  luna_status (*recv)(void* self, uint32_t peer, uint32_t tag, void* data, uint64_t n_bytes);
  luna_status (*all_reduce)(void* self, const void* in, void* out, uint64_t n, uint32_t op);
} luna_comm;

/* What a rank's programs receive: messages of one peer and tag. */
typedef struct luna_comm_lane {
  uint32_t peer;
  uint32_t tag;
} luna_comm_lane;

typedef struct luna_comm_open {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t n_ranks;
  uint32_t n_lanes;
  uint64_t message_bytes_max;
  luna_str group;       /* ranks that name the same group meet */
  /* [n_lanes]: memory for their messages is made by open, that of any other lane at its first use. */
  const luna_comm_lane* lanes;
  /* [n_ranks] address blobs of the endpoints where the ranks open; an empty one, or NULL in all:
   * at this endpoint. Transports of one host may do without. */
  const luna_str* addresses;
  /* Messages of a lane that may be on their way at once, 1..64: so many send calls return without
   * waiting for the receiver. Core asks for one a step in flight. 0: as the transport likes. */
  uint32_t n_messages_max;
  /* Threads of this process that may wait in such communicators at once, where they are more than
   * the ranks: none of them then keeps a core for longer than all have one. 0: n_ranks. */
  uint32_t n_waiters_max;
} luna_comm_open;

typedef struct luna_collective_if {
  uint32_t struct_size;
  uint32_t pad;
  luna_status (*open)(void* self, const luna_comm_open*, const luna_comm** comm, luna_err*); /* [main] */
  /* Wakes every rank of the communicator's group with LUNA_CANCELLED, now and later. [any] */
  void (*abort)(void* self, const luna_comm* comm);
  void (*close)(void* self, const luna_comm* comm);                            /* [main] */
  /* Host memory that open takes for this rank and its lanes, so that core can plan before it
   * allocates. Pure. [any] */
  luna_status (*comm_bytes)(void* self, const luna_comm_open*, uint64_t* bytes, luna_err*);
} luna_collective_if;

#ifdef __cplusplus
}
#endif
#endif
