#include "core/check/attend_oracle.hpp"

#include <luna/backend_blocks.hpp>

#include <algorithm>
#include <cmath>

namespace luna::check {

using Part = KvNumbers::Part;

KvNumbers::KvNumbers(const luna_kv_layout& layout, std::uint32_t n_blocks) : layout_(layout) {
  const std::size_t n_tokens =
      std::size_t{n_blocks} * layout.n_layers * 2 * layout.n_kv_heads * layout.block_tokens;
  numbers_.resize(n_tokens * layout.head_dim);
  masses_.resize(n_tokens);
}

std::size_t KvNumbers::token_at(const Place& place) const {
  std::size_t at = place.block;
  at = at * layout_.n_layers + place.layer;
  at = at * 2 + (place.part == Part::values ? 1 : 0);
  at = at * layout_.n_kv_heads + place.head;
  return at * layout_.block_tokens + place.token;
}

NumberRow KvNumbers::head_of(const Place& place) {
  return {numbers_.data() + token_at(place) * layout_.head_dim, layout_.head_dim};
}

Bounded& KvNumbers::mass_of(const Place& place) {
  return masses_[token_at(place)];
}

// A float type rounds each number; integers share a scale a token and head.
void KvNumbers::write(const Place& place, std::span<const Bounded> numbers) {
  const NumberRow to = head_of(place);
  double largest = 0.0;
  for (const Bounded& number : numbers)
    largest = std::max(largest, number.size());
  for (std::size_t d = 0; d < to.size(); ++d) {
    to[d] = numbers[d];
    if (float_unit(layout_.dtype))
      to[d] = carried(numbers[d], layout_.dtype);
    else
      to[d].error += largest / 127.0 / 2.0 + 4.0 * kF32Unit * numbers[d].size();
  }
  mass_of(place) = {};
}

void KvNumbers::copy_block(std::uint32_t from, std::uint32_t to) {
  const std::size_t n_tokens =
      std::size_t{layout_.n_layers} * 2 * layout_.n_kv_heads * layout_.block_tokens;
  const std::size_t n = n_tokens * layout_.head_dim;
  std::copy_n(numbers_.begin() + static_cast<std::ptrdiff_t>(from * n),
              n,
              numbers_.begin() + static_cast<std::ptrdiff_t>(to * n));
  std::copy_n(masses_.begin() + static_cast<std::ptrdiff_t>(from * n_tokens),
              n_tokens,
              masses_.begin() + static_cast<std::ptrdiff_t>(to * n_tokens));
}

void AttendOracle::run() {
  switch (op_.op().op) {
    case LUNA_OP_KV_COPY:
      for (std::uint32_t i = 0; i < step_.n_kv_copies; ++i)
        kv_.copy_block(step_.kv_copies[i].from_block, step_.kv_copies[i].to_block);
      return;
    case LUNA_OP_KV_WRITE:
      return write();
    case LUNA_OP_ATTEND:
      return attend();
    default:
      return prune();
  }
}

KvNumbers::Place AttendOracle::place(const Head& head, Part part, std::uint32_t slot) const {
  const std::uint32_t block_tokens = kv_.layout().block_tokens;
  const std::uint32_t* const table =
      step_.block_tables + std::size_t{head.seq} * step_.block_table_stride;
  return {head.layer, part, head.index, table[slot / block_tokens], slot % block_tokens};
}

void AttendOracle::write() {
  const std::uint32_t head_dim = kv_.layout().head_dim;
  for (std::uint32_t seq = 0; seq < step_.n_seqs; ++seq)
    for (std::uint32_t row = step_.seq_first_row[seq]; row < step_.seq_first_row[seq + 1]; ++row)
      for (std::uint32_t h = 0; h < kv_.layout().n_kv_heads; ++h) {
        const Head head{seq, op_.attr(LUNA_KV_WRITE_LAYER), h};
        const std::uint32_t slot = step_.positions[row] - prune_of(step_, seq).n_pruned;
        const std::size_t first = std::size_t{h} * head_dim;
        kv_.write(place(head, Part::keys, slot),
                  oracle_.row(op_.in(0), row).subspan(first, head_dim));
        kv_.write(place(head, Part::values, slot),
                  oracle_.row(op_.in(1), row).subspan(first, head_dim));
      }
}

// scale * q . k, the query in two BF16 terms, the sum in FP32.
Bounded AttendOracle::score(std::span<const Bounded> query, NumberRow key, const Params& p) const {
  Bounded sum;
  double magnitude = 0.0;
  for (std::size_t d = 0; d < key.size(); ++d) {
    sum.value += query[d].value * key[d].value;
    sum.error += query[d].error * std::abs(key[d].value) + query[d].size() * key[d].error;
    magnitude += query[d].size() * key[d].size();
  }
  sum.error += sum_unit(2.0 * static_cast<double>(key.size()) + 24.0) * magnitude;
  Bounded score{p.scale * sum.value, std::abs(p.scale) * sum.error};
  if (p.softcap != 0.0)
    score = {p.softcap * std::tanh(score.value / p.softcap),
             score.error + 16.0 * kF32Unit * p.softcap};
  return score;
}

// A share is exp(score - max) over the sum of all; the exponential is rounded to BF16 where it
// weighs values, the sum to FP32.
std::vector<Bounded> AttendOracle::shares(std::span<const Bounded> query,
                                          const Head& head,
                                          const Params& p,
                                          std::uint32_t n_slots,
                                          std::uint32_t* first) {
  *first = p.window != 0 && p.window < n_slots ? n_slots - p.window : 0;
  std::vector<Bounded> carried_query(query.begin(), query.end());
  for (Bounded& q : carried_query)
    q = carried_in_two_terms(q);
  std::vector<Bounded> scores(n_slots);
  double max = -INFINITY;
  double error_max = 0.0;
  for (std::uint32_t t = *first; t < n_slots; ++t) {
    scores[t] = score(carried_query, kv_.head_of(place(head, Part::keys, t)), p);
    max = std::max(max, scores[t].value);
    error_max = std::max(error_max, scores[t].error);
  }
  double sum = 0.0;
  for (std::uint32_t t = *first; t < n_slots; ++t)
    sum += std::exp(scores[t].value - max);
  const double of_sums = sum_unit(n_slots + 32.0);
  std::vector<Bounded> shares(n_slots);
  for (std::uint32_t t = *first; t < n_slots; ++t) {
    const double exponent = scores[t].value - max;
    const double rounding = (4.0 * (std::abs(max) + std::abs(exponent)) + 32.0) * kF32Unit;
    const double share = std::exp(exponent) / sum;
    const double error =
        share * (std::expm1(scores[t].error + error_max + rounding) + kBf16Unit + of_sums);
    // No share is off by more than all of the attention, however little is known of its score.
    shares[t] = {share, error < 1.0 ? error : 1.0};
  }
  return shares;
}

void AttendOracle::attend() {
  const Params p{op_.attr(LUNA_ATTEND_N_HEADS),
                 op_.attr_f32(LUNA_ATTEND_SCALE),
                 op_.attr(LUNA_ATTEND_WINDOW),
                 op_.attr_f32(LUNA_ATTEND_SOFTCAP)};
  const std::uint32_t head_dim = kv_.layout().head_dim;
  const std::uint32_t n_shared = p.n_heads / kv_.layout().n_kv_heads;
  for (std::uint32_t seq = 0; seq < step_.n_seqs; ++seq)
    for (std::uint32_t row = step_.seq_first_row[seq]; row < step_.seq_first_row[seq + 1]; ++row)
      for (std::uint32_t h = 0; h < p.n_heads; ++h) {
        const std::size_t first = std::size_t{h} * head_dim;
        attend_head(oracle_.row(op_.in(0), row).subspan(first, head_dim),
                    {seq, op_.attr(LUNA_ATTEND_LAYER), h / n_shared},
                    p,
                    step_.positions[row] - prune_of(step_, seq).n_pruned + 1,
                    oracle_.row(op_.out(0), row).subspan(first, head_dim));
      }
}

void AttendOracle::attend_head(std::span<const Bounded> query,
                               const Head& head,
                               const Params& p,
                               std::uint32_t n_slots,
                               NumberRow out) {
  std::uint32_t first = 0;
  const std::vector<Bounded> paid = shares(query, head, p, n_slots, &first);
  std::vector<double> magnitudes(out.size());
  std::fill(out.begin(), out.end(), Bounded{});
  for (std::uint32_t t = first; t < n_slots; ++t) {
    const NumberRow value = kv_.head_of(place(head, Part::values, t));
    for (std::size_t d = 0; d < out.size(); ++d) {
      out[d].value += paid[t].value * value[d].value;
      out[d].error += paid[t].size() * value[d].error + paid[t].error * std::abs(value[d].value);
      magnitudes[d] += paid[t].value * value[d].size();
    }
  }
  for (std::size_t d = 0; d < out.size(); ++d)
    out[d] = stored(out[d].value, out[d].error + sum_unit(n_slots + 32.0) * magnitudes[d]);
}

void AttendOracle::prune() {
  for (std::uint32_t seq = 0; seq < step_.n_seqs; ++seq) {
    const luna_seq_prune wanted = prune_of(step_, seq);
    const std::uint32_t end = step_.seq_first_row[seq + 1];
    for (std::uint32_t row = end - wanted.n_observed; row < end; ++row)
      observe(seq, row);
    if (wanted.n_keep == 0 || op_.attr(LUNA_KV_PRUNE_LAYER) != op_.attr(LUNA_KV_PRUNE_GROUP_LAST))
      continue;
    keep_best(seq, step_.positions[end - 1] - wanted.n_pruned + 1, wanted.n_keep);
  }
}

void AttendOracle::observe(std::uint32_t seq, std::uint32_t row) {
  const Params p{op_.attr(LUNA_KV_PRUNE_N_HEADS),
                 op_.attr_f32(LUNA_KV_PRUNE_SCALE),
                 0,
                 op_.attr_f32(LUNA_KV_PRUNE_SOFTCAP)};
  const std::uint32_t head_dim = kv_.layout().head_dim;
  const std::uint32_t n_shared = p.n_heads / kv_.layout().n_kv_heads;
  const std::uint32_t n_slots = step_.positions[row] - prune_of(step_, seq).n_pruned + 1;
  for (std::uint32_t h = 0; h < p.n_heads; ++h) {
    const Head head{seq, op_.attr(LUNA_KV_PRUNE_LAYER), h / n_shared};
    std::uint32_t first = 0;
    const std::vector<Bounded> paid =
        shares(oracle_.row(op_.in(0), row).subspan(std::size_t{h} * head_dim, head_dim),
               head,
               p,
               n_slots,
               &first);
    for (std::uint32_t t = first; t < n_slots; ++t) {
      Bounded& mass = kv_.mass_of(place(head, Part::keys, t));
      mass = stored(mass.value + paid[t].value, mass.error + paid[t].error);
    }
  }
}

void AttendOracle::keep_best(std::uint32_t seq, std::uint32_t n_slots, std::uint32_t n_keep) {
  const std::uint32_t first_layer = op_.attr(LUNA_KV_PRUNE_GROUP_FIRST);
  const std::uint32_t last_layer = op_.attr(LUNA_KV_PRUNE_GROUP_LAST);
  const std::uint32_t n_kv_heads = kv_.layout().n_kv_heads;
  std::vector<Bounded> weights(n_slots);
  for (std::uint32_t t = 0; t < n_slots; ++t)
    for (std::uint32_t layer = first_layer; layer <= last_layer; ++layer)
      for (std::uint32_t h = 0; h < n_kv_heads; ++h) {
        const Bounded mass = kv_.mass_of(place({seq, layer, h}, Part::keys, t));
        weights[t] = stored(weights[t].value + mass.value, weights[t].error + mass.error);
      }
  // A rank is the weight of some slot near by: equal ranks are of the same slot, or undecided.
  struct Rank {
    std::uint32_t slot;
    std::uint32_t source;
  };
  const std::uint32_t head_end = std::min(n_slots, LUNA_PRUNE_FIRST);
  const std::uint32_t tail = n_slots - std::min(n_slots - head_end, LUNA_PRUNE_RECENT);
  std::vector<Rank> ranks;
  for (std::uint32_t t = head_end; t < tail; ++t) {
    const std::uint32_t low = t - std::min(t, LUNA_PRUNE_REACH);
    const std::uint32_t high = std::min(n_slots, t + LUNA_PRUNE_REACH + 1);
    std::uint32_t source = low;
    for (std::uint32_t s = low; s < high; ++s)
      if (weights[s].value > weights[source].value) source = s;
    ranks.push_back({t, source});
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](const Rank& a, const Rank& b) {
    return weights[a.source].value > weights[b.source].value;
  });
  const std::uint32_t n_chosen = n_keep - head_end - (n_slots - tail);
  for (std::size_t a = 0; a < n_chosen; ++a)
    for (std::size_t b = n_chosen; b < ranks.size(); ++b) {
      const Bounded& in = weights[ranks[a].source];
      const Bounded& out = weights[ranks[b].source];
      if (ranks[a].source != ranks[b].source && in.value - out.value <= in.error + out.error)
        oracle_.is_undecided_ = true;
    }
  std::vector<std::uint32_t> kept;
  for (std::uint32_t t = 0; t < head_end; ++t)
    kept.push_back(t);
  for (std::size_t a = 0; a < n_chosen; ++a)
    kept.push_back(ranks[a].slot);
  std::sort(kept.begin(), kept.end());
  for (std::uint32_t t = tail; t < n_slots; ++t)
    kept.push_back(t);
  for (std::uint32_t layer = first_layer; layer <= last_layer; ++layer)
    for (std::uint32_t h = 0; h < n_kv_heads; ++h)
      for (const Part part : {Part::keys, Part::values})
        for (std::uint32_t to = 0; to < kept.size(); ++to) {
          const Head head{seq, layer, h};
          const NumberRow from = kv_.head_of(place(head, part, kept[to]));
          std::copy(from.begin(), from.end(), kv_.head_of(place(head, part, to)).begin());
        }
}

}  // namespace luna::check
