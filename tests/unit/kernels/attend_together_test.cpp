// Attention of sequences whose KV begins in the same blocks: the bits of each one alone.
#include "attend_support.hpp"

#include <gtest/gtest.h>

namespace luna::kernels {
namespace {

/// Sequences over one pool; the first `n_shared` positions of all lie in the same blocks.
struct Family {
  Family(const KernelSet& set,
         KvShape shape_,
         std::int64_t n_shared,
         const std::vector<std::int64_t>& lengths)
      : shape(shape_) {
    const std::int64_t block = shape.block_tokens;
    std::size_t n_blocks = static_cast<std::size_t>(n_shared / block);
    for (const std::int64_t length : lengths) {
      std::vector<std::uint32_t> table;
      for (std::int64_t b = 0; b * block < length; ++b) {
        const bool is_shared = b < n_shared / block;
        table.push_back(
            static_cast<std::uint32_t>(is_shared ? static_cast<std::size_t>(b) : n_blocks++));
      }
      tables.push_back(std::move(table));
    }
    pool = std::make_unique<AlignedBytes>(n_blocks * kv_block_bytes(shape));
    Random random(211);
    const auto row = static_cast<std::size_t>(shape.n_kv_heads * shape.head_dim);
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      for (std::int64_t t = s == 0 ? 0 : n_shared; t < lengths[s]; ++t) {
        const auto k = random.normals(row);
        const auto v = random.normals(row);
        set.kv_write({view(s), t, k.data(), v.data()});
      }
    }
  }
  KvView view(std::size_t s) const {
    return {shape, pool->get(), kv_block_bytes(shape), tables[s].data(), 0};
  }

  KvShape shape;
  std::unique_ptr<AlignedBytes> pool;
  std::vector<std::vector<std::uint32_t>> tables;
};

struct TogetherCase {
  int heads;
  int head_dim;
  std::int64_t n_rows;
  std::int64_t n_shared;
  std::vector<std::int64_t> lengths;
};

/// The outputs and log-sum-exps of the last rows of each sequence.
std::vector<float> attend_last_rows(const KernelSet& set,
                                    const Family& family,
                                    const TogetherCase& c,
                                    std::int64_t window,
                                    bool is_together) {
  const AlignedBytes scratch(attend_scratch_bytes(c.head_dim));
  const std::int64_t row = std::int64_t{c.heads} * c.head_dim;
  const auto n_seqs = c.lengths.size();
  const auto per_sequence = static_cast<std::size_t>(c.n_rows * row);
  const auto q = Random(223).normals(n_seqs * per_sequence);
  std::vector<float> out(n_seqs * per_sequence);
  std::vector<float> exponents(n_seqs * static_cast<std::size_t>(c.n_rows * c.heads));
  std::vector<AttendArgs> calls(n_seqs);
  for (std::size_t s = 0; s < n_seqs; ++s) {
    AttendArgs& args = calls[s];
    args.kv = family.view(s);
    args.kv_head = 1;
    args.group_heads = c.heads;
    args.first_position = c.lengths[s] - c.n_rows;
    args.n_rows = c.n_rows;
    args.window = window;
    args.scale = 0.125F;
    args.q = q.data() + s * per_sequence;
    args.q_stride = row;
    args.out = out.data() + s * per_sequence;
    args.out_stride = row;
    args.log_sum_exp = exponents.data() + s * static_cast<std::size_t>(c.n_rows * c.heads);
    args.scratch = scratch.get();
    if (!is_together) {
      set.attend(args);
    }
  }
  if (is_together) {
    set.attend_together({calls.data(), static_cast<int>(n_seqs), c.n_shared, &calls[0]});
  }
  out.insert(out.end(), exponents.begin(), exponents.end());
  return out;
}

TEST(AttendTogether, EachSequenceGetsTheBitsItGetsAlone) {
  set_thread_float_mode();
  const TogetherCase cases[] = {
      {3, 64, 1, 288, {300, 289, 640, 577}},
      {3, 64, 1, 256, {257, 1300}},
      {3, 64, 2, 320, {330, 322}},
      {4, 32, 1, 64, {70, 600, 65}},
      {1, 96, 1, 96, {97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 400}},
      {6, 32, 1, 544, {800, 545}},
      {5, 256, 1, 128, {140, 135}},
      {2, 64, 3, 288, {300, 600}},
      {3, 64, 1, 0, {40, 300}},
      {2, 32, 1, 320, {300, 310, 320}},  // some end within what is shared
  };
  for (const auto& [set, type] : sets_and_types()) {
    for (const TogetherCase& c : cases) {
      const Family family(*set, {2, c.head_dim, 32, type}, c.n_shared, c.lengths);
      for (const std::int64_t window : {0, 40, 300}) {
        const auto alone = attend_last_rows(*set, family, c, window, false);
        const auto together = attend_last_rows(*set, family, c, window, true);
        ASSERT_EQ(0, std::memcmp(alone.data(), together.data(), alone.size() * 4))
            << set->name << " heads " << c.heads << " shared " << c.n_shared << " window " << window
            << " int8 " << (type == KvType::int8) << " seed " << test_seed();
      }
    }
  }
}

}  // namespace
}  // namespace luna::kernels
