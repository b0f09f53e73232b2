// The ops over the KV cache, as the oracle computes them.
#pragma once

#include "core/check/op_oracle.hpp"

#include <span>
#include <vector>

namespace luna::check {

/// One op of one step. Lives for one call.
class AttendOracle {
 public:
  AttendOracle(OpOracle& oracle, const OpReader& op)
      : oracle_(oracle), op_(op), step_(*oracle.step_), kv_(oracle.kv_) {}

  void run();

 private:
  /// A KV head of a layer, as one sequence sees it.
  struct Head {
    std::uint32_t seq;
    std::uint32_t layer;
    std::uint32_t index;
  };
  struct Params {
    std::uint32_t n_heads;
    double scale;
    std::uint32_t window;
    double softcap;
  };
  [[nodiscard]] KvNumbers::Place place(const Head& head,
                                       KvNumbers::Part part,
                                       std::uint32_t slot) const;
  [[nodiscard]] Bounded score(std::span<const Bounded> query, NumberRow key, const Params& p) const;
  /// What a query pays each slot: its share of the attention. Slots before `first` are not seen.
  [[nodiscard]] std::vector<Bounded> shares(std::span<const Bounded> query,
                                            const Head& head,
                                            const Params& p,
                                            std::uint32_t n_slots,
                                            std::uint32_t* first);
  void write();
  void attend();
  void attend_head(std::span<const Bounded> query,
                   const Head& head,
                   const Params& p,
                   std::uint32_t n_slots,
                   NumberRow out);
  void prune();
  void observe(std::uint32_t seq, std::uint32_t row);
  void keep_best(std::uint32_t seq, std::uint32_t n_slots, std::uint32_t n_keep);

  OpOracle& oracle_;
  const OpReader& op_;
  const luna_step& step_;
  KvNumbers& kv_;
};

}  // namespace luna::check
