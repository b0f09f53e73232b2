#include "core/engine/step_cost.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace luna::engine {
namespace {

// Steps that a class remembers: few enough to follow a machine that becomes busy within a second,
// many enough that the jitter of single steps averages out.
constexpr std::uint32_t kMemory = 32;
// From so many steps on, a class knows what is usual.
constexpr std::uint32_t kUsualFrom = 4;
// So many odd steps in a row, and the usual has changed.
constexpr std::uint32_t kOddMax = 4;
// After so many steps without it, a class counts half.
constexpr double kFadingSteps = 1024.0;
// Where rows or tokens never varied, their cost cannot be told from the fixed one: then it is that.
constexpr double kRidge = 1e-7;

std::size_t log2_class(std::uint64_t n, std::size_t n_classes) {
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(n)), n_classes - 1);
}

/// Solves m x = v for the unknowns that are not fixed at 0, by elimination; m is symmetric and
/// positive definite, so the diagonal serves as pivots.
template <std::size_t N>
std::array<double, N> solve_free(std::array<std::array<double, N>, N> m,
                                 std::array<double, N> v,
                                 const std::array<bool, N>& is_zero) {
  for (std::size_t i = 0; i < N; ++i) {
    if (is_zero[i]) continue;
    for (std::size_t r = i + 1; r < N; ++r) {
      if (is_zero[r]) continue;
      const double factor = m[r][i] / m[i][i];
      for (std::size_t c = i; c < N; ++c)
        m[r][c] -= factor * m[i][c];
      v[r] -= factor * v[i];
    }
  }
  std::array<double, N> x{};
  for (std::size_t i = N; i-- > 0;) {
    if (is_zero[i]) continue;
    double rest = v[i];
    for (std::size_t c = i + 1; c < N; ++c)
      rest -= m[i][c] * x[c];
    x[i] = rest / m[i][i];
  }
  return x;
}

}  // namespace

void StepCostFit::add(const StepLoad& load, Nanoseconds took) {
  if (load.n_rows == 0 || took.count() <= 0) return;  // nothing to learn: a clock that stands
  ++n_steps_;
  const std::size_t context = load.n_kv_tokens / load.n_rows;
  const std::size_t idx = (log2_class(load.n_rows, kRowClasses + 1) - 1) * kContextClasses +
                          log2_class(context >> 4U, kContextClasses);
  StepClass& seen = classes_[idx];
  if (seen.n_steps == 0) used_[n_used_++] = static_cast<std::uint16_t>(idx);
  auto ns = static_cast<double>(took.count());
  if (seen.n_steps >= kUsualFrom) {
    const double usual = std::clamp(ns, 0.5 * seen.ns, 1.5 * seen.ns);
    seen.n_odd = usual == ns ? 0 : seen.n_odd + 1;
    if (seen.n_odd == kOddMax) {
      seen = {};
    } else {
      ns = usual;
    }
  }
  seen.n_steps = std::min(seen.n_steps + 1, kMemory);
  seen.last_step = n_steps_;
  const double gain = 1.0 / seen.n_steps;
  const Vector x = {1.0, static_cast<double>(load.n_rows), static_cast<double>(load.n_kv_tokens)};
  seen.ns += gain * (ns - seen.ns);
  for (std::size_t i = 0; i < kUnknowns; ++i) {
    seen.loads_ns[i] += gain * (x[i] * ns - seen.loads_ns[i]);
    for (std::size_t j = 0; j < kUnknowns; ++j)
      seen.loads[i][j] += gain * (x[i] * x[j] - seen.loads[i][j]);
  }
  solve();
}

void StepCostFit::add_class(const StepClass& seen, Matrix& loads, Vector& loads_ns) const {
  const auto age = static_cast<double>(n_steps_ - seen.last_step);
  const double trust = static_cast<double>(seen.n_steps) / (1.0 + age / kFadingSteps);
  const double weight = trust / (seen.ns * seen.ns);  // relative errors: all sizes matter alike
  for (std::size_t i = 0; i < kUnknowns; ++i) {
    loads_ns[i] += weight * seen.loads_ns[i];
    for (std::size_t j = 0; j < kUnknowns; ++j)
      loads[i][j] += weight * seen.loads[i][j];
  }
}

void StepCostFit::solve() {
  Matrix loads{};
  Vector loads_ns{};
  for (std::size_t i = 0; i < n_used_; ++i)
    add_class(classes_[used_[i]], loads, loads_ns);
  Vector scale{};  // rows and tokens differ by orders of magnitude: the diagonal becomes 1
  for (std::size_t i = 0; i < kUnknowns; ++i)
    scale[i] = 1.0 / std::sqrt(loads[i][i]);
  for (std::size_t i = 0; i < kUnknowns; ++i) {
    loads_ns[i] *= scale[i];
    for (std::size_t j = 0; j < kUnknowns; ++j)
      loads[i][j] *= scale[i] * scale[j];
    if (i > 0) loads[i][i] += kRidge;
  }
  // A negative cost is noise: the most negative is 0 then, and the others are fitted again. Rows
  // always cost something: where tokens grew with them, as in a crowd of short requests, and took
  // all of it, the tokens are 0 first.
  std::array<bool, kUnknowns> is_zero{};
  Vector x{};
  for (std::size_t round = 0; round < kUnknowns; ++round) {
    x = solve_free(loads, loads_ns, is_zero);
    const auto least = std::min_element(x.begin(), x.end());
    if (*least >= 0.0) break;
    const auto idx = static_cast<std::size_t>(least - x.begin());
    const bool tokens_took_it = idx == kRow && !is_zero[kToken];
    is_zero[tokens_took_it ? kToken : idx] = true;
  }
  costs_ = {.fixed_ns = x[0] * scale[0],
            .per_row_ns = x[1] * scale[1],
            .per_kv_token_ns = x[2] * scale[2]};
}

}  // namespace luna::engine
