/* The op program: a model (or a range of its layers) as a linear list of ops over named tensors.
 *
 * Core writes a program once per device and kind of work; a backend compiles it once (chooses
 * kernels, packs weights, fuses, plans memory) and runs it with each step's inputs. One call over
 * the border a device and step. No control flow; ops stand in execution order. There are no fused
 * ops: fusion is the backend's business.
 *
 * Rows: the leading dimension of an activation is symbolic. LUNA_DIM_ROWS is the number of token
 * rows of the step, LUNA_DIM_OUT_ROWS the number of rows whose logits are wanted. Rows of one
 * sequence stand together, positions ascending. */
#ifndef LUNA_ABI_OP_PROGRAM_H
#define LUNA_ABI_OP_PROGRAM_H

#include <luna/abi/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LUNA_DIM_ROWS 0xFFFFFFFFu
#define LUNA_DIM_OUT_ROWS 0xFFFFFFFEu

/* Ops. A closed set: backends say which they support, core refuses a placement that needs others
 * and names the op. After each name: inputs -> outputs, then the attributes by index.
 * n is a row count; all activations are FP32. "step.x" is a field of luna_step. */

/* embed: W[vocab, hidden] -> y[n, hidden]. Row step.token_ids[i] of W. Attributes: none. */
#define LUNA_OP_EMBED 1u
/* rms_norm: x[n, d], w[d] -> y[n, d]. y = x / sqrt(mean(x^2) + eps) * w. */
#define LUNA_OP_RMS_NORM 2u
#define LUNA_RMS_NORM_EPS 0u /* F32 */
/* layer_norm: x[n, d], w[d], b[d] -> y[n, d]. */
#define LUNA_OP_LAYER_NORM 3u
#define LUNA_LAYER_NORM_EPS 0u /* F32 */
/* linear: x[n, K], W[N, K] (, bias[N]) -> y[n, N]. y = x W^T + bias, in the program's numeric class.
 * Segments of K as in the arithmetic contract. */
#define LUNA_OP_LINEAR 4u
#define LUNA_LINEAR_SEGMENT 0u         /* U32: columns of a segment; the last may be shorter */
#define LUNA_LINEAR_ACTIVATION_BITS 1u /* U32: i12: 12, 11 or 10; i8: 8; bf16: 16 */
#define LUNA_LINEAR_ACTIVATION_GROUP 2u /* U32: columns that share an activation scale */
/* rope: x[n, n_heads * head_dim], frequencies[n_rot / 2] (constant, F64) -> y, same shape; in place
 * allowed. Pair p of a head is rotated by step.positions[i] * frequencies[p]: sine and cosine in
 * double precision, rounded to FP32, times the magnitude. */
#define LUNA_OP_ROPE 5u
#define LUNA_ROPE_N_HEADS 0u
#define LUNA_ROPE_HEAD_DIM 1u
#define LUNA_ROPE_N_ROT 2u     /* U32: leading elements of a head that are rotated, even */
#define LUNA_ROPE_STYLE 3u     /* U32: LUNA_ROPE_* */
#define LUNA_ROPE_MAGNITUDE 4u /* F32: factor on sine and cosine (YaRN); 1 otherwise */
#define LUNA_ROPE_INTERLEAVED 0u /* pair p: elements 2p and 2p + 1 */
#define LUNA_ROPE_HALVES 1u      /* pair p: elements p and p + n_rot / 2 */
/* kv_write: k[n, n_kv_heads * head_dim], v[n, same] -> . Writes the rows into the KV blocks of their
 * sequences at step.positions. */
#define LUNA_OP_KV_WRITE 6u
#define LUNA_KV_WRITE_LAYER 0u /* U32: layer within the program's KV */
/* attend: q[n, n_heads * head_dim] -> y[n, n_heads * head_dim]. Causal attention of each row to the
 * positions 0..its own of its sequence, over the KV blocks, by the arithmetic contract. Partitions
 * that step.slices names lie on other devices: their owner sends the rows there, gets states (max,
 * sum, out) of the nodes of the canonical tree back, and joins them with its own in the tree's order,
 * so that the bits are those of a sequence that lies here as a whole. */
#define LUNA_OP_ATTEND 7u
#define LUNA_ATTEND_LAYER 0u
#define LUNA_ATTEND_N_HEADS 1u
#define LUNA_ATTEND_SCALE 2u   /* F32: multiplies the FP32 score */
#define LUNA_ATTEND_WINDOW 3u  /* U32: positions seen at most, itself included; 0: all */
#define LUNA_ATTEND_SOFTCAP 4u /* F32: c * tanh(score / c); 0: none */
/* 8 and 9 are no ops: attention over slices is attend's own business, because a backend hides the
 * way to other devices behind what it attends to at home. */
/* act_mul: gate[n, d], up[n, d] -> y[n, d]. y = act(gate) * up. */
#define LUNA_OP_ACT_MUL 10u
#define LUNA_ACT_MUL_KIND 0u /* U32: LUNA_ACT_* */
#define LUNA_ACT_SILU 0u
#define LUNA_ACT_GELU_TANH 1u
/* add: a, b -> y, elementwise; in place allowed. */
#define LUNA_OP_ADD 11u
/* scale: x -> y = x * factor. */
#define LUNA_OP_SCALE 12u
#define LUNA_SCALE_FACTOR 0u /* F32 */
/* softcap: x -> y = cap * tanh(x / cap). */
#define LUNA_OP_SOFTCAP 13u
#define LUNA_SOFTCAP_CAP 0u /* F32 */
/* gather_rows: x[n, d] -> y[n_out, d]: rows step.out_rows. */
#define LUNA_OP_GATHER_ROWS 14u
/* logits: x[n_out, vocab] -> the OUT slot LOGITS; only rows whose step.out_flags ask for them need
 * reach host memory. */
#define LUNA_OP_LOGITS 15u
/* top_candidates: x[n_out, vocab] -> the OUT slot CANDIDATES: per row k pairs (F32 logit, U32 id),
 * largest first, ties to the lowest id, after them the row's F32 log-sum-exp and one U32 zero. */
#define LUNA_OP_TOP_CANDIDATES 16u
#define LUNA_TOP_CANDIDATES_K 0u
/* moe_route: x[n, E] -> routes[n, E]. Of a row's scores the k largest stay, ties to the lowest id: each
 * gets its softmax over all E, or over the k; the others get 0. */
#define LUNA_OP_MOE_ROUTE 17u
#define LUNA_MOE_ROUTE_K 0u
#define LUNA_MOE_ROUTE_NORMALIZES 1u /* U32: 1: softmax over the k, which add up to 1; 0: over all E */
/* grouped_linear: x[n, K] or x[n, k * K], routes[n, E], W[E * N, K] -> y[n, k * N]. Slot s of a row is
 * its s-th expert whose route is not 0, ids ascending: y's slot is x's slot (or all of x) times the N
 * rows of W that are the expert's. Slots without an expert are undefined. Attributes as of linear, by
 * the N rows of one expert. */
#define LUNA_OP_GROUPED_LINEAR 18u
/* copy: x -> y. */
#define LUNA_OP_COPY 19u
/* convert: x -> y of another dtype, rounded to nearest even. */
#define LUNA_OP_CONVERT 20u
/* kv_copy: carries out step.kv_copies (whole blocks, all layers) before later ops read them. */
#define LUNA_OP_KV_COPY 21u
/* kv_prune: q[n, n_heads * head_dim] -> . After the layer's attend, with its q. What it does to a
 * sequence is in step.seq_prunes; a slot is a position less those pruned before.
 *
 * Observing: for each of the sequence's last n_observed rows of the step, ascending, each head of a
 * KV head, ascending, and each slot the row sees: mass[layer, KV head, slot] += exp(score - the
 * row's log-sum-exp), scores as in attend. kv_write sets a slot's masses to zero.
 *
 * Pruning, where n_keep is not 0, in the last layer of a group: the weight of a slot is the sum of
 * its masses over the group's layers, ascending, and KV heads, ascending; its rank the largest weight
 * of the slots at most LUNA_PRUNE_REACH away. Kept are the first LUNA_PRUNE_FIRST slots, the last
 * LUNA_PRUNE_RECENT, and of the others those of largest rank, ties to the lowest slot (a NaN counts
 * as 0), n_keep in all. In every layer of the group their K and V move, in order, to slots
 * 0..n_keep - 1. Keys keep the rotation of their true positions. */
#define LUNA_OP_KV_PRUNE 22u
#define LUNA_KV_PRUNE_LAYER 0u
#define LUNA_KV_PRUNE_N_HEADS 1u
#define LUNA_KV_PRUNE_SCALE 2u       /* F32: of attend */
#define LUNA_KV_PRUNE_SOFTCAP 3u     /* F32: of attend */
#define LUNA_KV_PRUNE_GROUP_FIRST 4u /* U32: the group's layers */
#define LUNA_KV_PRUNE_GROUP_LAST 5u
#define LUNA_PRUNE_REACH 3u
#define LUNA_PRUNE_FIRST 4u
#define LUNA_PRUNE_RECENT 64u
/* send / recv: x[n, d] to or from rank `peer` of the COMM slot; n is the step's. Executed by the
 * device's executor; never returns to core. */
#define LUNA_OP_SEND 23u
#define LUNA_OP_RECV 24u
#define LUNA_COMM_PEER 0u
#define LUNA_COMM_TAG 1u
/* all_reduce: x -> y, sums over ranks in rank order. */
#define LUNA_OP_ALL_REDUCE 25u
#define LUNA_OP_BARRIER 26u
/* all_gather: x[n, d] -> y[n, D]. Each of n_ranks holds some columns of y, dealt out in units of
 * `unit` columns (the last may be short): as many to each rank, in rank order, the first ranks one
 * more where they do not divide. x is this rank's share; y has those of all, unchanged. Built of
 * send and recv with the tag. */
#define LUNA_OP_ALL_GATHER 27u
#define LUNA_ALL_GATHER_UNIT 0u
#define LUNA_ALL_GATHER_RANK 1u
#define LUNA_ALL_GATHER_N_RANKS 2u
#define LUNA_ALL_GATHER_TAG 3u
/* head_norm: x[n, n_heads * d], w[d] -> y, same shape; in place allowed. rms_norm of each head on its
 * own, with the same w. */
#define LUNA_OP_HEAD_NORM 28u
#define LUNA_HEAD_NORM_EPS 0u /* F32 */
/* moe_sum: x[n, k * D], routes[n, E] -> y[n, D]. The sum over a row's slots, ascending, of route times
 * slot; slots as in grouped_linear. */
#define LUNA_OP_MOE_SUM 29u
#define LUNA_N_OPS 30u

/* One op. Arguments are indices of views: n_in inputs, then n_out outputs, from args[first_arg]. */
typedef struct luna_op {
  uint16_t op;
  uint16_t n_in;
  uint16_t n_out;
  uint16_t n_attrs;
  uint32_t first_arg;
  uint32_t first_attr;   /* into attrs: U32 values; F32 ones as their bits */
  uint64_t flops_per_row; /* for the simulated backend and for planning */
  uint64_t bytes_fixed;   /* weights read whatever the row count */
} luna_op;

/* A tensor as an op sees it. */
typedef struct luna_view {
  uint32_t slot;
  uint32_t dtype;       /* LUNA_DTYPE_* */
  uint32_t rank;
  uint32_t row_stride;  /* elements between rows; 0: contiguous */
  uint64_t offset;      /* bytes from the slot's start, within a row for activations */
  uint32_t dims[4];     /* slowest first; dims[0] may be symbolic */
} luna_view;

/* What lies behind a view. */
#define LUNA_SLOT_WEIGHT 1u     /* index: number of the weight in compile()'s list */
#define LUNA_SLOT_CONSTANT 2u   /* data, bytes: host memory that lives as long as the program */
#define LUNA_SLOT_SCRATCH 3u    /* one activation; the backend plans its memory by liveness */
#define LUNA_SLOT_KV 4u         /* bound at submit */
#define LUNA_SLOT_LOGITS 5u     /* bound at submit: F32 [n_out_rows_max, vocab] */
#define LUNA_SLOT_CANDIDATES 6u /* bound at submit */
#define LUNA_SLOT_COMM 7u       /* bound at submit: a luna_comm* */
#define LUNA_SLOT_SLICES 8u     /* bound at submit where the step has slices: a luna_slice_peers* */

typedef struct luna_slot {
  uint32_t kind;
  uint32_t index;
  uint64_t bytes;       /* CONSTANT: size; SCRATCH: bytes of one row */
  const void* data;
} luna_slot;

/* Numeric classes of quantized linear ops, fixed by configuration, never by row count. */
#define LUNA_NUMERICS_F32 0u  /* exact activations: the oracle */
#define LUNA_NUMERICS_I12 1u
#define LUNA_NUMERICS_I8 2u
#define LUNA_NUMERICS_BF16 3u

/* The KV cache of a program: what one block of it holds. */
#define LUNA_KV_OBSERVED 1u /* masses beside K and V: programs with kv_prune */
typedef struct luna_kv_layout {
  uint32_t n_layers;       /* layers of this program that write KV */
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t dtype;          /* LUNA_DTYPE_BF16, ... */
  uint32_t block_tokens;   /* a power of two in 32..256 */
  uint32_t flags;          /* LUNA_KV_* */
} luna_kv_layout;

typedef struct luna_program {
  uint32_t struct_size;
  uint32_t numerics;       /* LUNA_NUMERICS_* */
  uint32_t n_ops, n_views, n_slots, n_args, n_attrs;
  uint32_t n_rows_max;     /* bounds of one step */
  uint32_t n_seqs_max;
  uint32_t n_out_rows_max;
  uint32_t n_blocks_per_seq_max;
  uint32_t n_positions_max;
  const luna_op* ops;
  const luna_view* views;
  const luna_slot* slots;
  const uint32_t* args;
  const uint32_t* attrs;
  luna_kv_layout kv;
  uint64_t hash;           /* of everything above; equal programs have equal hashes */
} luna_program;

#ifdef __cplusplus
}
#endif
#endif
