// Attention of steps with slices, tile by tile: the leader posts the rows to the devices where
// partitions of theirs lie, all threads attend to what lies at home, the leader takes the states
// that come back, and all join states by the canonical tree. Between the parts of a tile all
// threads meet, whatever has failed.
#include "head_view.hpp"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

namespace luna::cpu {
namespace {

class SliceOps : public HeadView {
 public:
  SliceOps(const ThreadView& view, const CompiledOp& op)
      : HeadView(view),
        op_(op),
        shape_(s_.slice_shape),
        tile_(*reinterpret_cast<SliceTile*>(c_.shared + s_.slice_tile)),
        states_(reinterpret_cast<float*>(c_.shared + s_.slice_states)),
        masses_(slice_masses_of(c_.step)) {
    shape_.n_heads = op.n_heads;
  }

  void run() {
    TileCursor cursor(c_.step, shape_, op_.window);
    bool has_more = true;
    while (has_more) {
      if (thread_ == 0) {
        place_lists();
        cursor.fill(&tile_);
        post_queries();
      }
      c_.team->barrier();
      attend_at_home();
      if (thread_ == 0) take_states();
      has_more = tile_.has_more;  // the leader's next tile comes after the second barrier
      c_.team->barrier();
      join_states();
      c_.team->barrier();
    }
  }

 private:
  void place_lists() {
    tile_.list_max = tile_list_max(s_.slice_shape);
    tile_.bytes_max = slice_tile_bytes(s_.slice_shape);
    tile_.runs = reinterpret_cast<TileRun*>(&tile_ + 1);
    tile_.parts = reinterpret_cast<TilePart*>(tile_.runs + tile_.list_max);
  }

  // ---- The leader's: queries out, states in

  template <typename Body>
  void for_peers(Body&& body) const {
    for (std::uint64_t left = tile_.peers; left != 0; left &= left - 1)
      body(static_cast<std::uint32_t>(std::countr_zero(left)));
  }
  [[nodiscard]] bool has_failed(std::uint32_t peer) const {
    return ((c_.slices.failed >> peer) & 1U) != 0;
  }
  void fail(std::uint32_t peer, luna_status status, const char* message) const {
    c_.slices.failed |= std::uint64_t{1} << peer;
    if (c_.slices.status != LUNA_OK) return;
    c_.slices.status = status;
    c_.slices.message = message;
  }
  [[nodiscard]] const luna_comm* comm_of(std::uint32_t peer) const {
    return c_.slices.peers->comms[peer];
  }

  void post_queries() const {
    ++*c_.slices.serial;  // of the tile
    for_peers([&](std::uint32_t peer) {
      if (has_failed(peer)) return;
      const luna_comm* comm = comm_of(peer);
      if (comm == nullptr) return fail(peer, LUNA_UNAVAILABLE, "slices: a device is not there");
      SliceHeader header;
      std::byte* body = c_.shared + s_.slice_request;
      write_request(peer, &header, body);
      luna_status status =
          comm->send(comm->self, LUNA_SLICE_GUEST, LUNA_SLICE_TAG_QUERIES, &header, sizeof(header));
      if (status == LUNA_OK)
        status = comm->send(
            comm->self, LUNA_SLICE_GUEST, LUNA_SLICE_TAG_QUERIES, body, header.body_bytes);
      if (status != LUNA_OK) fail(peer, status, "slices: a device takes no queries");
    });
  }
  /// Calls body(run) for runs some of whose parts are the peer's.
  template <typename Body>
  void for_runs_of(std::uint32_t peer, Body&& body) const {
    for (const TileRun& run : tile_.all_runs())
      for (const TilePart& part : tile_.parts_of(run))
        if (is_of(part, peer)) {
          body(run);
          break;
        }
  }
  static bool is_of(const TilePart& part, std::uint32_t peer) {
    return !part.is_home() && part.slice->peer == peer;
  }
  /// Part after part, as the body is laid out; one pass each.
  void write_request(std::uint32_t peer, SliceHeader* header, std::byte* body) const {
    header->magic = kSliceMagic;
    header->serial = *c_.slices.serial;
    header->layer = op_.layer;
    header->state_bytes = states_of_peer(tile_, shape_, peer).n_floats * sizeof(float);
    const std::size_t row_floats = shape_.query_floats();
    auto* queries = reinterpret_cast<float*>(body);
    for_runs_of(peer, [&](const TileRun& run) {
      for (std::uint32_t row = 0; row < run.rows.n_rows; ++row, queries += row_floats)
        std::memcpy(
            queries, floats(op_.in[0], run.rows.first_row + row), row_floats * sizeof(float));
      header->n_rows += run.rows.n_rows;
    });
    auto* runs = reinterpret_cast<SliceRun*>(queries);
    for_runs_of(peer, [&](const TileRun& run) {
      *runs = {run.rows.first_slot, run.rows.n_rows, 0, 0};
      for (const TilePart& part : tile_.parts_of(run))
        if (is_of(part, peer)) ++runs->n_slices;
      header->n_slices += runs->n_slices;
      ++runs;
      ++header->n_runs;
    });
    auto* slices = reinterpret_cast<SliceRange*>(runs);
    auto* blocks = reinterpret_cast<std::uint32_t*>(slices + header->n_slices);
    for_runs_of(peer, [&](const TileRun& run) {
      for (const TilePart& part : tile_.parts_of(run)) {
        if (!is_of(part, peer)) continue;
        *slices++ = {part.partitions.first, part.n_partitions()};
        const std::uint32_t per_partition = shape_.blocks_per_partition();
        const std::uint32_t n = part.n_partitions() * per_partition;
        const std::uint32_t skipped = part.partitions.first - part.slice->first_partition;
        std::memcpy(
            blocks, part.slice->blocks + std::size_t{skipped} * per_partition, n * sizeof(*blocks));
        blocks += n;
        header->n_blocks += n;
      }
    });
    header->body_bytes = SliceBody::bytes(*header, shape_);
  }

  void take_states() const {
    const std::uint64_t start_ns = c_.host.now_ns();
    for_peers([&](std::uint32_t peer) {
      const PeerStates at = states_of_peer(tile_, shape_, peer);
      if (!has_failed(peer)) take_states_of(peer, at);
      // What did not come has no positions: the step's result is void, but nothing reads garbage.
      if (has_failed(peer)) std::memset(states_ + at.first, 0, at.n_floats * sizeof(float));
    });
    c_.wait_ns += c_.host.now_ns() - start_ns;
  }
  void take_states_of(std::uint32_t peer, const PeerStates& at) const {
    const luna_comm* comm = comm_of(peer);
    const std::size_t n_bytes = at.n_floats * sizeof(float);
    const luna_status status = comm->recv(comm->self,
                                          LUNA_SLICE_GUEST,
                                          LUNA_SLICE_TAG_STATES,
                                          states_ + at.first,
                                          n_bytes + sizeof(SliceVerdict));
    if (status == LUNA_INVALID_ARGUMENT)
      return fail(peer, LUNA_CORRUPT, "slices: a device answers with states of another size");
    if (status != LUNA_OK) return fail(peer, status, "slices: a device does not answer");
    SliceVerdict verdict;
    std::memcpy(static_cast<void*>(&verdict), states_ + at.first + at.n_floats, sizeof(verdict));
    if (verdict.serial != *c_.slices.serial)
      return fail(peer, LUNA_CORRUPT, "slices: a device answers what it was not asked");
    if (verdict.status != LUNA_OK)
      fail(peer, verdict.status, "slices: a device refuses the queries");
  }

  // ---- All threads': what lies at home, and joining

  void attend_at_home() const {
    std::uint32_t item = 0;
    for (const TileRun& run : tile_.all_runs())
      for (std::uint32_t head = 0; head < n_kv_heads(); ++head) {
        if (run.n_parts == 0 && item++ % n_threads_ == thread_)
          k_.attend(attend_args(op_, run.rows, head));
        for (const TilePart& part : tile_.parts_of(run))
          if (part.is_home() && item++ % n_threads_ == thread_)
            k_.attend_partial({attend_args(op_, run.rows, head),
                               part.partitions.first,
                               part.n_partitions(),
                               head_states(run, part, head)});
      }
  }
  /// [n_nodes, n_rows, heads of a KV head, state_floats]
  [[nodiscard]] float* head_states(const TileRun& run,
                                   const TilePart& part,
                                   std::uint32_t head) const {
    return states_ + part.states +
           std::size_t{head} * part.n_nodes * run.rows.n_rows * shape_.group_floats();
  }

  void join_states() const {
    for (const TileRun& run : tile_.all_runs())
      for (std::uint32_t head = 0; head < n_kv_heads() && run.n_parts != 0; ++head)
        join_run(run, head);
  }
  /// Each thread takes its share of the queries.
  void join_run(const TileRun& run, std::uint32_t head) const {
    const std::uint32_t n_queries = run.rows.n_rows * shape_.group_heads();
    const Range own = share(n_queries);
    if (own.size() == 0) return;
    const std::size_t state_floats = shape_.state_floats();
    auto** states = reinterpret_cast<const float**>(own_ + s_.part_lists);
    auto* nodes = reinterpret_cast<kernels::TreeNode*>(
        states + n_partitions_of(s_.slice_shape.n_positions_max));
    int n_nodes = 0;
    for (const TilePart& part : tile_.parts_of(run)) {
      const float* of_part = head_states(run, part, head);
      const int first = n_nodes;
      n_nodes +=
          kernels::cover_partitions(part.partitions.first, part.n_partitions(), nodes + n_nodes);
      for (int n = first; n < n_nodes; ++n)
        states[n] =
            of_part + (static_cast<std::size_t>(n - first) * n_queries + own.first) * state_floats;
    }
    const kernels::AttendArgs args = attend_args(op_, run.rows, head);
    const std::uint32_t first_weighed = first_weighed_query(run);
    for (std::uint32_t query = own.first; query < own.last; ++query) {
      const std::uint32_t row = query / shape_.group_heads();
      float* out = args.out + row * static_cast<std::size_t>(args.out_stride) +
                   query % shape_.group_heads() * head_dim();
      float log_sum_exp = 0.0F;
      k_.merge_partials({static_cast<int>(head_dim()),
                         n_nodes,
                         nodes,
                         states,
                         out,
                         query >= first_weighed ? &log_sum_exp : nullptr,
                         own_ + s_.kernel_scratch});
      if (query >= first_weighed) weigh_slices(run, states, log_sum_exp);
      for (int n = 0; n < n_nodes; ++n)
        states[n] += state_floats;
    }
  }
  /// Of a run that ends with its sequence's last row, the queries of that row; of others none.
  [[nodiscard]] std::uint32_t first_weighed_query(const TileRun& run) const {
    const std::uint32_t end = run.rows.first_row + run.rows.n_rows;
    const bool is_last = end == c_.step.seq_first_row[run.rows.seq + 1];
    if (masses_ == nullptr || !is_last) return UINT32_MAX;
    return (run.rows.n_rows - 1) * shape_.group_heads();
  }
  /// states  of the query, by node of the run's parts
  void weigh_slices(const TileRun& run, const float* const* states, float log_sum_exp) const {
    for (const TilePart& part : tile_.parts_of(run)) {
      const float* const* end = states + part.n_nodes;
      double share = 0.0;
      for (; states != end; ++states) {
        const float max = (*states)[0];
        const float sum = (*states)[1];
        if (sum > 0.0F) share += std::exp(double{max} - double{log_sum_exp}) * double{sum};
      }
      if (part.is_home() || !(share <= 1.5)) continue;  // NaN: the row is lost, and told elsewhere
      std::atomic_ref mass(masses_[part.slice - c_.step.slices]);
      mass.fetch_add(to_slice_mass(share), std::memory_order_relaxed);
    }
  }

  const CompiledOp& op_;
  SliceShape shape_;  // with the heads of the op
  SliceTile& tile_;   // in the step's memory, written by the leader
  float* const states_;
  std::uint64_t* const masses_;  // null: nobody weighs slices
};

}  // namespace

void run_slice_op(const ThreadView& view, const CompiledOp& op) {
  SliceOps(view, op).run();
}

}  // namespace luna::cpu
