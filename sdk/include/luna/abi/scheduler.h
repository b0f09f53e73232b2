/* Kind "scheduler": chooses one step's work from a snapshot of the engine's own tables.
 *
 * The engine owns queues, KV blocks, token accounting and cancellation; a policy orders and sizes
 * work. Every action is checked before it is carried out; an illegal plan is reported with its row.
 *
 * Several steps may be in flight, so that every device of a pipeline works: a plan is asked for
 * whenever there is room for one more and a row that it could run. Steps end in the order in which
 * they began. A decoding row is in one step at most; a prompt may be in several, the next part of it
 * behind the last. While a row is in one, it is neither pre-empted nor ended. A policy that puts all
 * rows into one step is legal, and leaves all devices but one idle: with room for L steps, one should
 * take about an L-th of the work.
 *
 * Groups: devices that hold one copy of a model together. Where there are several, a waiting row is
 * given to one of them by ASSIGN, and stays there until it waits again or is moved. Each group runs
 * steps of its own: a plan starts one in every group of whose rows it RUNs some; n_rows_max and
 * n_seqs_max bound each of these steps. RUN is legal for rows of groups with room for one more step.
 * Where there is one group, rows stand in it from the beginning.
 *
 * Determinism (LUNA_PLUGIN_DETERMINISTIC): a plan is a function of the instance's state, the
 * snapshot and the host's seeded streams; no clocks, threads, addresses or hash order. */
#ifndef LUNA_ABI_SCHEDULER_H
#define LUNA_ABI_SCHEDULER_H

#include <luna/abi/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* States of a request's row. */
#define LUNA_REQ_WAITING 0u   /* not started, or pre-empted: holds no KV */
#define LUNA_REQ_PREFILL 1u   /* holds KV, prompt not finished */
#define LUNA_REQ_DECODE 2u    /* one token a step, and those of its draft */

#define LUNA_NO_DEVICE 0xFFFFFFFFu

/* One request (one sequence of it). Rows stand in order of arrival; index = row. */
typedef struct luna_req_row {
  uint64_t id;             /* stable, increasing with arrival */
  uint64_t arrival_ns;
  uint64_t deadline_ns;    /* 0: none */
  uint32_t state;          /* LUNA_REQ_* */
  int32_t priority;        /* higher runs first */
  uint32_t tenant;         /* small number of the API key; 0: none */
  uint32_t stage;          /* index into the pipeline */
  uint32_t device;         /* first device of its group; LUNA_NO_DEVICE: waits to be ASSIGNed */
  uint32_t n_prompt;       /* tokens to prefill: prompt, and after a pre-emption the tokens so far */
  uint32_t n_computed;     /* tokens whose KV is there, or will be when the steps in flight have ended;
                              waiting: those the prefix cache would give */
  uint32_t n_cached;       /* of these, the ones that came from the prefix cache */
  uint32_t n_generated;
  uint32_t n_generated_max;
  uint32_t n_kv_blocks;    /* held now */
  uint32_t n_preempted;    /* times pre-empted */
  uint32_t n_kv_blocks_freed;  /* blocks that PREEMPT would free: those shared with no other row */
  uint32_t n_kv_blocks_copied; /* 1: its last block is shared, so that running it takes a new one */
  uint32_t n_kv_blocks_shared; /* waiting: blocks that the prefix cache would give and that other rows
                                  hold, so that starting it does not take them from the free ones */
  uint32_t n_draft;            /* decoding: tokens that may be verified beside its next one */
  uint32_t n_steps;            /* in flight that compute it: while there are any, PREEMPT and REJECT are
                                  illegal, and RUN but for what n_computed leaves of n_prompt */
  uint32_t moving_to;          /* first device of the group that its KV is being copied to; otherwise
                                  LUNA_NO_DEVICE */
  uint64_t last_step_ns;       /* when its last step ended; 0: none has */
  /* What SLICE may name of it: tokens from first to end, multiples of LUNA_PARTITION_TOKENS. Before
   * them lies what it shares with other rows or is being copied at the beginning, behind them what
   * is not finished. Equal: nothing. */
  uint32_t slice_first_token;
  uint32_t slice_end_token;
} luna_req_row;

/* One device. What is said of its group stands in the rows of all devices of the group, which stand
 * together, in layer order. Numbers of devices are never given twice, also where groups come and go:
 * then a device's number is not its index. The number of a group that has left is given again. */
typedef struct luna_device_row {
  uint32_t device;
  uint32_t group;              /* pipeline group: devices that hold one copy of a model together */
  uint64_t kv_bytes_free;
  uint64_t kv_bytes_total;
  uint32_t n_kv_blocks_free;   /* of the tightest device of the group; cached ones are free */
  uint32_t n_kv_blocks_total;
  float busy_ratio;            /* share of the last interval inside op programs */
  uint32_t n_queued;           /* requests waiting for this group */
  uint64_t latency_ns_p95;     /* moving, over its last 10 requests; 0: none yet */
  /* Cost of a step of the group, fitted to those that ran; 0: none has. A step takes
   * fixed + rows * per_row + KV tokens * per_kv_token. A run of n tokens of a row with n_computed c
   * has n rows and n * c + n * (n + 1) / 2 KV tokens: of each token those that it attends to.
   * It is the time from a row's plan to its tokens: with several steps in flight, when all of them
   * are such steps. They pass the devices one behind the other, so that then a step ends every
   * n_steps_in_flight_max-th part of it. */
  float step_ns_fixed;
  float step_ns_per_row;
  float step_ns_per_kv_token;
  uint32_t n_kv_blocks_reserve; /* for rows that hold KV to grow: while any does, a waiting row starts
                                   only where so many stay free */
  uint32_t n_steps_in_flight;      /* of the group, before this plan's */
  uint32_t n_steps_in_flight_max;
  uint32_t n_running;              /* rows of the group that hold KV */
  uint32_t attention;              /* devices of equal numbers attend with equal bits over KV of equal
                                      layout: SLICE and MOVE are legal between these */
  uint32_t is_leaving;             /* 1: its group takes no further rows */
  uint32_t slice_set;              /* groups of equal numbers hold partitions of each other's rows: SLICE
                                      is legal between these; 0: the group has no part in it */
} luna_device_row;

typedef struct luna_link_row {
  uint32_t from, to;
  uint64_t latency_ns;
  double bytes_per_ns;
} luna_link_row;

/* A part of a sequence's KV that lies on a device of another group: whole partitions of
 * LUNA_PARTITION_TOKENS. */
typedef struct luna_slice_row {
  uint32_t row;
  uint32_t device;
  uint32_t first_token;
  uint32_t n_tokens;
  uint32_t is_copying;     /* 1: on its way there: what it is copied from is still held, until nobody
                              reads it; when the copy is there, the part stands in a row of its own too */
  float mass;              /* share of the attention of the sequence's latest row that fell on the part,
                              the mean of all heads and layers; 0: not known (yet) */
} luna_slice_row;

/* What the prefix cache of a group would give a waiting row that is not assigned yet; where it would
 * give nothing there is no row. Rows stand in order of `row`. */
typedef struct luna_prefix_row {
  uint32_t row;
  uint32_t device;             /* first device of the group */
  uint32_t n_tokens;
  uint32_t n_kv_blocks_shared; /* of these blocks, those that other rows hold */
} luna_prefix_row;

/* The engine's own tables, for the duration of the call. Rows are read with their stride. */
typedef struct luna_snapshot {
  uint32_t struct_size;
  uint32_t req_stride, device_stride, link_stride, slice_stride;
  uint32_t n_reqs, n_devices, n_links, n_slices;
  uint32_t n_rows_max;       /* tokens that one step may compute, all requests together */
  uint32_t n_seqs_max;       /* requests that one step may run */
  uint32_t kv_block_tokens;
  uint64_t step;             /* number of this step */
  uint64_t now_ns;
  const luna_req_row* reqs;
  const luna_device_row* devices;
  const luna_link_row* links;
  const luna_slice_row* slices;
  uint32_t n_steps_in_flight;      /* before this plan's; below the next */
  uint32_t n_steps_in_flight_max;  /* 1: a step is planned when the one before has ended. Both of all
                                      groups together */
  uint32_t prefix_stride;
  uint32_t n_prefixes;
  const luna_prefix_row* prefixes;
  uint32_t verbs;            /* that core carries out: bit 1 << LUNA_VERB_*; a plan with another one is
                                refused */
  uint32_t reserved;
} luna_snapshot;

/* What to do with a row. */
#define LUNA_VERB_RUN 1u      /* compute n_tokens of it in this step: 1..1 + n_draft of a decoding row */
/* Give a waiting row to the group of `device`, before it is RUN for the first time. */
#define LUNA_VERB_ASSIGN 2u
/* Put tokens [first_token, +n_tokens) of its KV on the group of `device`, another one or its own, to
 * bring them back: whole partitions between slice_first_token and slice_end_token, all in one group
 * now, none of them being copied. It takes as many blocks there at once, and gives those here back
 * when the copy is there and no step in flight reads them; the row runs on meanwhile. What leaves its
 * own group, and what lies behind that, is found by nobody in the prefix cache any more. At most
 * LUNA_SLICES_COPYING_MAX are under way at once, until nobody reads the old blocks any more: a further
 * one is passed over. */
#define LUNA_VERB_SLICE 3u
#define LUNA_SLICES_COPYING_MAX 64u
/* Move it (arg 0) with its KV to the group of `device`, or its stage `arg`. It takes all blocks there
 * at once; the row runs on until what is finished has been copied, then waits for the rest. Devices
 * of both groups hold the same layers in pairs. Up to 16 rows move at a time; one that cannot yet is
 * passed over. Where it costs less to compute the KV anew there, that is done. Illegal for a row that
 * the table of slices names: what lies in other groups comes home first. */
#define LUNA_VERB_MOVE 4u
#define LUNA_VERB_PREEMPT 5u  /* free its KV; it waits and is recomputed */
#define LUNA_VERB_REJECT 6u   /* end it with an error */
#define LUNA_VERB_ROLE 7u     /* weight of role `row` on `device` is arg / 1000 */

/* Why. Codes below 256 are common; a policy may use its own from 256 on. */
#define LUNA_REASON_ORDER 0u        /* its turn */
#define LUNA_REASON_MEMORY_HIGH 1u
#define LUNA_REASON_MEMORY_LOW 2u
#define LUNA_REASON_QUEUE_LONG 3u
#define LUNA_REASON_IDLE 4u
#define LUNA_REASON_DEADLINE 5u
#define LUNA_REASON_PRIORITY 6u

typedef struct luna_action {
  uint32_t row;
  uint16_t verb;
  uint16_t reason;
  uint32_t device;
  uint32_t first_token;
  union {
    uint32_t n_tokens;
    uint32_t wait_ms_max; /* REJECT for LUNA_REASON_QUEUE_LONG: the wait that is allowed */
  };
  union {
    uint32_t arg;
    uint32_t wait_ms;     /* likewise: the wait it would have had, by estimate; 0: not told */
  };
} luna_action;

/* The answer: core's memory. PREEMPT and REJECT are carried out first, then the others in their
 * order; a row has one RUN, PREEMPT or REJECT at most. A plan with an illegal action is refused
 * whole, and so is one that changes nothing while rows wait, unless it names wake_at_ns or a step is
 * in flight: its end brings the next plan. */
typedef struct luna_plan {
  uint32_t struct_size;
  uint32_t n_actions_max;
  uint32_t n_actions;
  uint32_t reserved;
  luna_action* actions;  /* [n_actions_max] */
  uint64_t wake_at_ns;   /* plan again then even if nothing happens; 0: no need */
} luna_plan;

/* luna_if.flags: the policy SLICEs what has no room in its own group, so that requests which no group
 * could hold alone are let in: those with room in all groups that may slice together. */
#define LUNA_SCHEDULER_SLICES 1u
/* luna_if.flags: head.ext() answers LUNA_EXT_REASONS, and does so without an instance too. */
#define LUNA_SCHEDULER_REASONS 2u

typedef struct luna_scheduler_if {
  luna_if head;
  /* Once a step. Allocates nothing after its first calls. [step] */
  luna_status (*plan)(void* self, const luna_snapshot*, luna_plan*, luna_err*);
} luna_scheduler_if;

/* ---- extension: what an instance does by its settings ---------------------------------------- */
/* What head.ext() of a scheduler answers for this id: a luna_scheduler_traits that lives as long as
 * the instance, or NULL where the table's flags hold for every instance. */
#define LUNA_EXT_SCHEDULER_TRAITS "luna.ext.scheduler_traits/1"

typedef struct luna_scheduler_traits {
  uint32_t struct_size;
  uint32_t flags; /* LUNA_SCHEDULER_*, in place of the table's */
} luna_scheduler_traits;

/* ---- extension: what the policy's reason codes mean ------------------------------------------ */
/* What head.ext() of a scheduler answers for this id: a luna_reasons in static storage. Asked for
 * where LUNA_SCHEDULER_REASONS is set, then also with NULL for the instance. */
#define LUNA_EXT_REASONS "luna.ext.reasons/1"

typedef struct luna_reason {
  uint32_t code;       /* of an action; below 256: a common one that the policy gives */
  uint32_t verb;       /* LUNA_VERB_*: of which actions */
  const char* name;    /* snake_case: "least_time" */
  const char* meaning; /* one sentence */
} luna_reason;

typedef struct luna_reasons {
  uint32_t struct_size;
  uint32_t n_reasons;
  const luna_reason* reasons; /* [n_reasons] */
} luna_reasons;

/* ---- extension: weights of roles -------------------------------------------------------------- */
#define LUNA_EXT_ROLE_WEIGHTS "luna.ext.role_weights/1"

typedef struct luna_role_weight {
  luna_str role;  /* as a [[stage]] names it */
  double weight;  /* above 0 */
} luna_role_weight;

/* What models of different roles get of devices that they share: core divides the memory by these
 * weights when it loads the models, and the devices' time when both have work. */
typedef struct luna_role_weights_if {
  uint32_t struct_size;
  uint32_t pad;
  /* How many there are, and where: valid as long as the instance. 0: all are equal. [main] */
  uint32_t (*weights)(void* self, const luna_role_weight** weights);
  /* 1: the part of the time shall follow the load that is measured. [main] */
  uint32_t (*follows_load)(void* self);
} luna_role_weights_if;

#ifdef __cplusplus
}
#endif
#endif
