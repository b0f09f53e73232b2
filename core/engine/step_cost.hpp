// What a step costs, fitted to the steps that ran: the numbers by which a policy sizes its plans.
#pragma once

#include "core/base/clock.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace luna::engine {

/// What a step computes.
struct StepLoad {
  std::uint32_t n_rows = 0;
  std::uint64_t n_kv_tokens = 0;  ///< of each row the tokens it attends to, itself included; summed
};

/// A step takes fixed + n_rows * per_row + n_kv_tokens * per_kv_token. None is negative; all are 0
/// before the first step.
struct StepCosts {
  double fixed_ns = 0.0;
  double per_row_ns = 0.0;
  double per_kv_token_ns = 0.0;

  [[nodiscard]] double step_ns(const StepLoad& load) const {
    return fixed_ns + per_row_ns * load.n_rows +
           per_kv_token_ns * static_cast<double>(load.n_kv_tokens);
  }
};

/// Fits the three costs by least squares of the relative error.
///
/// Plain recursive least squares forgets what it does not see: an hour of single-row steps would
/// leave no trace of what a long prompt cost, and numbers that grow without bound. So steps are
/// kept by class (rows and context, in powers of two): each class has moving averages of its own,
/// and one that was not seen for long counts less, but still decides what the others cannot.
///
/// A function of the steps it was given, in their order; allocates nothing. [engine]
class StepCostFit {
 public:
  /// A step that ran. One that took much longer or less than its class counts as half as long
  /// again or half as long: a thread lost its core, say. Several in a row are no accident: then the
  /// machine has changed, and the class starts anew.
  void add(const StepLoad& load, Nanoseconds took);
  [[nodiscard]] const StepCosts& costs() const { return costs_; }

 private:
  static constexpr std::size_t kRowClasses = 16;
  static constexpr std::size_t kContextClasses = 10;
  static constexpr std::size_t kUnknowns = 3;
  static constexpr std::size_t kRow = 1;  // of them
  static constexpr std::size_t kToken = 2;
  using Vector = std::array<double, kUnknowns>;
  using Matrix = std::array<Vector, kUnknowns>;

  /// Moving averages over the steps of a class.
  struct StepClass {
    std::uint32_t n_steps = 0;    // at most kMemory
    std::uint32_t n_odd = 0;      // the last in a row that were much longer or less
    std::uint64_t last_step = 0;  // when it was seen
    double ns = 0.0;
    Vector loads_ns{};  // of load * time
    Matrix loads{};     // of load * load
  };

  void solve();
  void add_class(const StepClass& seen, Matrix& loads, Vector& loads_ns) const;

  std::array<StepClass, kRowClasses * kContextClasses> classes_{};
  std::array<std::uint16_t, kRowClasses * kContextClasses> used_{};  // classes, as they came
  std::size_t n_used_ = 0;
  std::uint64_t n_steps_ = 0;
  StepCosts costs_;
};

}  // namespace luna::engine
