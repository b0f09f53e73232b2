// Communication, as the oracle computes it: the other rank keeps to its script.
#include "core/check/op_oracle.hpp"

#include <luna/op_verify.hpp>

#include <algorithm>

namespace luna::check {

float PeerScript::number(std::uint32_t tag, std::uint64_t m, std::uint64_t i) {
  const std::uint64_t mixed = (i * 2654435761U + m * 40503U + tag * 9176U) >> 4U;
  return (static_cast<float>(mixed % 129) - 64.0F) / 32.0F;
}

std::vector<Bounded> OpOracle::received(std::uint32_t tag, std::uint64_t n) {
  const std::uint64_t message = n_received_[tag]++;
  std::vector<Bounded> numbers(n);
  for (std::uint64_t i = 0; i < n; ++i)
    numbers[i] = {PeerScript::number(tag, message, i), 0.0};
  return numbers;
}

void OpOracle::run_comm(const OpReader& op) {
  if (op.op().op == LUNA_OP_ALL_GATHER) return all_gather(op);
  const bool sends = op.op().op == LUNA_OP_SEND;
  const luna_view& view = sends ? op.in(0) : op.out(0);
  const std::uint32_t width = view.dims[1];
  const std::uint32_t n_rows = n_rows_of(view);
  if (sends) {
    std::vector<Bounded>& message = sent_[op.attr(LUNA_COMM_TAG)].emplace_back();
    for (std::uint32_t i = 0; i < n_rows; ++i) {
      const NumberRow x = row(view, i);
      message.insert(message.end(), x.begin(), x.end());
    }
    return;
  }
  const bool reduces = op.op().op == LUNA_OP_ALL_REDUCE;
  const std::uint64_t n = std::uint64_t{n_rows} * width;
  std::vector<Bounded> got;
  if (!reduces) got = received(op.attr(LUNA_COMM_TAG), n);
  for (std::uint64_t i = 0; reduces && i < n; ++i)
    got.push_back({PeerScript::addend(i), 0.0});
  for (std::uint32_t i = 0; i < n_rows; ++i) {
    const NumberRow y = row(view, i);
    for (std::uint32_t d = 0; d < width; ++d) {
      const Bounded& other = got[std::size_t{i} * width + d];
      if (!reduces) {
        y[d] = other;
        continue;
      }
      const Bounded own = row(op.in(0), i)[d];
      y[d] = stored(own.value + other.value, own.error);
    }
  }
}

void OpOracle::all_gather(const OpReader& op) {
  const std::uint32_t n_rows = n_rows_of(op.out(0));
  const ColumnGather gather = column_gather(op, n_rows);
  std::vector<Bounded>& message = sent_[gather.tag].emplace_back();
  for (std::uint32_t i = 0; i < n_rows; ++i) {
    const NumberRow x = row(op.in(0), i);
    message.insert(message.end(), x.begin(), x.end());
    std::copy(x.begin(), x.end(), row(op.out(0), i).begin() + gather.share(gather.rank).first);
  }
  const ColumnShare share = gather.share(1 - gather.rank);
  const std::vector<Bounded> got = received(gather.tag, std::uint64_t{n_rows} * share.count);
  for (std::uint32_t i = 0; i < n_rows; ++i)
    std::copy_n(got.begin() + std::size_t{i} * share.count,
                share.count,
                row(op.out(0), i).begin() + share.first);
}

}  // namespace luna::check
