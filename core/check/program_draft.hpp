// Op programs that are drawn: shapes, attributes and weights of any op, from a seed.
#pragma once

#include "core/check/drawn_weight.hpp"

#include <luna/op_program.hpp>

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::check {

/// What a device computes with, in one class and with one type of KV.
struct DeviceOffer {
  std::uint32_t numerics = LUNA_NUMERICS_F32;
  std::uint32_t kv_dtype = LUNA_DTYPE_F32;
  std::vector<WeightForm> forms;  ///< that it takes in this class
};

/// "i12, KV BF16".
std::string offer_text(const DeviceOffer& offer);

/// A finished program and all that its steps need.
struct DrawnProgram {
  Program program;
  std::vector<DrawnWeight> weights;  ///< by number; 0 is the embedding of the first op
  std::string text;                  ///< what was drawn, for messages
  std::uint32_t comm_rank = 0;
  bool has_kv = false;
  bool can_copy_kv = false;
  bool can_prune = false;
  bool has_comm = false;
};

struct OpRow;

/// A program on its way: an embedding, then what rows append, then the outputs. The tokens are of a
/// vocabulary of kVocab.
class ProgramDraft {
 public:
  static constexpr std::uint32_t kVocab = 61;
  static constexpr std::uint32_t kLayers = 2;  // with KV

  /// A program of one row.
  static Result<DrawnProgram> of_row(const OpRow& row,
                                     std::uint64_t seed,
                                     const DeviceOffer& offer);
  /// One of several rows, drawn among those that are given.
  static Result<DrawnProgram> of_rows(std::span<const OpRow* const> rows,
                                      std::uint64_t seed,
                                      const DeviceOffer& offer);
  /// One linear op over a weight of the form.
  static Result<DrawnProgram> of_form(const WeightForm& form,
                                      std::uint64_t seed,
                                      const DeviceOffer& offer);

  // ---- What rows draw with

  ProgramBuilder& builder() { return builder_; }
  [[nodiscard]] const luna_kv_layout& kv() const { return kv_; }
  [[nodiscard]] std::uint32_t n_heads() const { return n_heads_; }
  [[nodiscard]] std::uint32_t peer() const { return 1 - drawn_.comm_rank; }
  [[nodiscard]] std::uint32_t rank() const { return drawn_.comm_rank; }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  bool coin() { return below(2) == 0; }
  template <typename T, std::size_t kN>
  T one_of(const T (&some)[kN]) {
    return some[below(kN)];
  }
  float between(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random_);
  }
  [[nodiscard]] std::uint32_t width(ViewId x) const { return builder_.view(x).dims[1]; }
  /// A form that the device takes and rows of `width` columns fit; nullptr: none does.
  const WeightForm* form_for(std::uint32_t width);
  ViewId matrix(std::uint32_t n_rows, std::uint32_t n_cols, const WeightForm& form);
  ViewId vector(std::uint32_t n, float low, float high);
  /// y = x W^T of a drawn form, n columns; x where the device takes no form that fits.
  ViewId linear(ViewId x, std::uint32_t n, bool has_bias);
  /// As linear(), into columns of an activation; y's op has n_total outputs in all.
  void linear_into(ViewId x, const WeightForm& form, ViewId y, std::uint32_t n_total);
  /// Columns for `n`: x's own, or made of them.
  ViewId with_columns(ViewId x, std::uint32_t n);
  /// The KV layer that comes next; nullopt: all are written.
  std::optional<std::uint32_t> next_layer();
  std::uint32_t next_tag() { return ++n_tags_; }

 private:
  ProgramDraft(std::uint64_t seed, const DeviceOffer& offer, bool observes);
  void begin(std::uint32_t width, bool is_rough);
  void append(const OpRow& row);
  Result<DrawnProgram> finish();
  static ProgramLimits draw_limits(std::mt19937_64& random,
                                   const DeviceOffer& offer,
                                   bool observes);

  std::mt19937_64 random_;
  const DeviceOffer& offer_;
  ProgramLimits limits_;
  luna_kv_layout kv_;
  std::uint32_t n_heads_;
  ProgramBuilder builder_;
  DrawnProgram drawn_;
  ViewId x_{};
  std::uint32_t n_layers_written_ = 0;
  std::uint32_t n_tags_ = 0;
};

/// How an op comes into a program: a case of conformance.
struct OpRow {
  std::uint32_t op;
  std::string_view name;
  /// Appends it, with what it needs around it; gives what it makes.
  ViewId (*append)(ProgramDraft&, ViewId x);
  /// Columns that its input should have; nullptr: any.
  std::uint32_t (*width)(ProgramDraft&) = nullptr;
  bool uses_kv = false;
  bool uses_comm = false;
};

/// A row an op, or more: all that abi/op_program.h has.
std::span<const OpRow> op_rows();

}  // namespace luna::check
