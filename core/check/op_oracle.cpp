#include "core/check/op_oracle.hpp"

#include "core/check/attend_oracle.hpp"

#include <algorithm>
#include <cmath>

namespace luna::check {
namespace {

// Roundings of a few operations that follow each other, with room for functions that are computed
// by a polynomial of a few units.
constexpr double kFew = 16.0 * kF32Unit;
// exp(x) in FP32: the product x * log2(e) is rounded, which costs |x| units of the result.
double exp_unit(double exponent) {
  return (4.0 * std::abs(exponent) + 32.0) * kF32Unit;
}

/// Largest code of a quantized activation.
double activation_limit(std::uint32_t bits) {
  return static_cast<double>((1U << (bits - 1)) - 1);
}

/// A row of inputs as a linear op of the class may carry it.
std::vector<Bounded> carried_inputs(NumberRow x,
                                    const DrawnWeight& w,
                                    const OpReader& op,
                                    std::uint32_t numerics) {
  std::vector<Bounded> inputs(x.begin(), x.end());
  if (numerics == LUNA_NUMERICS_F32) return inputs;
  if (w.is_dense() || numerics == LUNA_NUMERICS_BF16) {
    for (Bounded& input : inputs)
      input = carried(input, LUNA_DTYPE_BF16);
    return inputs;
  }
  const std::size_t group = op.attr(LUNA_LINEAR_ACTIVATION_GROUP);
  const double limit = activation_limit(op.attr(LUNA_LINEAR_ACTIVATION_BITS));
  for (std::size_t first = 0; first < inputs.size(); first += group) {
    const std::span some(inputs.data() + first, std::min(group, inputs.size() - first));
    double largest = 0.0;
    for (const Bounded& input : some)
      largest = std::max(largest, input.size());
    for (Bounded& input : some)
      input.error += largest / limit / 2.0 + 4.0 * kF32Unit * input.size() + kFlushed;
  }
  return inputs;
}

/// What a linear op of the class may make of a weight's value.
double weight_error(const DrawnWeight& w, std::size_t i, std::uint32_t numerics) {
  if (numerics == LUNA_NUMERICS_F32) return 0.0;
  if (w.is_dense()) return carried({w.values[i], 0.0}, LUNA_DTYPE_BF16).error;
  if (numerics != LUNA_NUMERICS_BF16) return 0.0;
  return kBf16Unit * std::abs(w.values[i]) + 2.0 * kF32Unit * w.magnitudes[i];
}

}  // namespace

OpOracle::OpOracle(const luna_program& program,
                   std::span<const DrawnWeight> weights,
                   std::uint32_t n_kv_blocks)
    : program_(program),
      weights_(weights),
      slots_(program.n_slots),
      kv_(program.kv, program.kv.n_layers == 0 ? 0 : n_kv_blocks) {}

void OpOracle::run(const luna_step& step) {
  step_ = &step;
  logits_ = {};
  sent_.clear();
  for (std::uint32_t i = 0; i < program_.n_ops; ++i)
    run_op(OpReader(program_, program_.ops[i]));
  step_ = nullptr;
}

std::uint32_t OpOracle::n_rows_of(const luna_view& view) const {
  return view.dims[0] == LUNA_DIM_ROWS ? step_->n_rows : step_->n_out_rows;
}

NumberRow OpOracle::row(const luna_view& view, std::uint32_t row) {
  const std::uint64_t element = dtype_bytes(view.dtype);
  NumberTable& table = slots_[view.slot];
  table.n_rows = n_rows_of(view);
  table.width = static_cast<std::uint32_t>(program_.slots[view.slot].bytes / element);
  table.numbers.resize(std::size_t{table.n_rows} * table.width);
  return {table.numbers.data() + std::size_t{row} * table.width + view.offset / element,
          view.dims[1]};
}

const DrawnWeight& OpOracle::weight(const luna_view& view) const {
  return weights_[program_.slots[view.slot].index];
}

void OpOracle::run_op(const OpReader& op) {
  switch (op.op().op) {
    case LUNA_OP_EMBED:
      return embed(op);
    case LUNA_OP_LINEAR:
      return linear(op);
    case LUNA_OP_ROPE:
      return rope(op);
    case LUNA_OP_RMS_NORM:
    case LUNA_OP_LAYER_NORM:
    case LUNA_OP_HEAD_NORM:
      return norm(op);
    case LUNA_OP_COPY:
    case LUNA_OP_CONVERT:
      return convert(op);
    case LUNA_OP_KV_WRITE:
    case LUNA_OP_KV_COPY:
    case LUNA_OP_ATTEND:
    case LUNA_OP_KV_PRUNE:
      return AttendOracle(*this, op).run();
    case LUNA_OP_SEND:
    case LUNA_OP_RECV:
    case LUNA_OP_ALL_REDUCE:
    case LUNA_OP_ALL_GATHER:
      return run_comm(op);
    case LUNA_OP_BARRIER:
    case LUNA_OP_TOP_CANDIDATES:  // held against the logits of the device itself
      return;
    default:
      return run_row_op(op);
  }
}

void OpOracle::embed(const OpReader& op) {
  const DrawnWeight& w = weight(op.in(0));
  const std::uint32_t width = op.out(0).dims[1];
  for (std::uint32_t i = 0; i < n_rows_of(op.out(0)); ++i) {
    const NumberRow y = row(op.out(0), i);
    for (std::uint32_t d = 0; d < width; ++d) {
      const std::size_t at = std::size_t{step_->token_ids[i]} * width + d;
      const Bounded value{w.values[at], 0.0};
      // Codes are decoded in FP32; dense rows lie as the class stores dense weights.
      y[d] = program_.numerics == LUNA_NUMERICS_F32 && w.is_dense() ? value
             : w.is_dense() ? carried(value, LUNA_DTYPE_BF16)
                            : Bounded{value.value,
                                      weight_error(w, at, program_.numerics) +
                                          4.0 * kF32Unit * w.magnitudes[at] + kFlushed};
    }
  }
}

// y = sum of x w, each product and each addition rounded to FP32, in any order.
void OpOracle::linear(const OpReader& op) {
  const DrawnWeight& w = weight(op.in(1));
  const DrawnWeight* const bias = op.op().n_in == 3 ? &weight(op.in(2)) : nullptr;
  const std::size_t k = op.in(1).dims[1];
  const std::uint32_t n_outputs = op.in(1).dims[0];
  const double unit = sum_unit(static_cast<double>(k) + 24.0);
  std::vector<double> w_errors(w.values.size());
  for (std::size_t i = 0; i < w_errors.size(); ++i)
    w_errors[i] = weight_error(w, i, program_.numerics);
  for (std::uint32_t i = 0; i < n_rows_of(op.out(0)); ++i) {
    const std::vector<Bounded> x = carried_inputs(row(op.in(0), i), w, op, program_.numerics);
    const NumberRow y = row(op.out(0), i);
    for (std::uint32_t n = 0; n < n_outputs; ++n) {
      double sum = 0.0;
      double error = 0.0;
      double magnitude = 0.0;
      for (std::size_t c = 0; c < k; ++c) {
        const std::size_t at = n * k + c;
        const double size = x[c].size();
        sum += x[c].value * w.values[at];
        error += x[c].error * std::abs(w.values[at]) + size * w_errors[at];
        magnitude += size * (w.magnitudes[at] + w_errors[at]);
      }
      error += unit * magnitude + static_cast<double>(k) * kFlushed;
      if (bias != nullptr) sum += bias->values[n];
      y[n] = stored(sum, error);
    }
  }
}

void OpOracle::rope(const OpReader& op) {
  const std::uint32_t n_rot = op.attr(LUNA_ROPE_N_ROT);
  const std::uint32_t head_dim = op.attr(LUNA_ROPE_HEAD_DIM);
  const bool halves = op.attr(LUNA_ROPE_STYLE) == LUNA_ROPE_HALVES;
  const double magnitude = op.attr_f32(LUNA_ROPE_MAGNITUDE);
  const auto* const frequencies = static_cast<const double*>(op.slot(op.in(1)).data);
  for (std::uint32_t i = 0; i < n_rows_of(op.out(0)); ++i) {
    const NumberRow in = row(op.in(0), i);
    std::vector<Bounded> x(in.begin(), in.end());  // the output may lie over it
    const NumberRow y = row(op.out(0), i);
    std::copy(x.begin(), x.end(), y.begin());
    for (std::uint32_t h = 0; h < op.attr(LUNA_ROPE_N_HEADS); ++h)
      for (std::uint32_t pair = 0; pair < n_rot / 2; ++pair) {
        const std::size_t head = std::size_t{h} * head_dim;
        const std::size_t a = head + (halves ? pair : 2 * pair);
        const std::size_t b = head + (halves ? pair + n_rot / 2 : 2 * pair + 1);
        const double angle = step_->positions[i] * frequencies[pair];
        const double c = std::cos(angle) * magnitude;
        const double s = std::sin(angle) * magnitude;
        // Sine and cosine are rounded, so are their products with the magnitude and with x.
        const double error = std::abs(magnitude) * (x[a].error + x[b].error +
                                                    5.0 * kF32Unit * (x[a].size() + x[b].size()));
        y[a] = stored(x[a].value * c - x[b].value * s, error);
        y[b] = stored(x[a].value * s + x[b].value * c, error);
      }
  }
}

namespace {

/// Takes the mean away, as a layer norm does first.
void center(std::vector<Bounded>& x, double unit) {
  const auto n = static_cast<double>(x.size());
  Bounded mean;
  double magnitude = 0.0;
  for (const Bounded& one : x) {
    mean.value += one.value / n;
    mean.error += one.error / n;
    magnitude += one.size() / n;
  }
  mean.error += unit * magnitude;
  for (Bounded& one : x)
    one = stored(one.value - mean.value, one.error + mean.error);
}

/// x / sqrt(mean of squares + eps) * w; with a bias the mean is taken away before, and it is added.
void norm_numbers(
    NumberRow in, const DrawnWeight& w, const DrawnWeight* bias, double eps, NumberRow y) {
  std::vector<Bounded> x(in.begin(), in.end());  // y may lie over it
  const auto n = static_cast<double>(x.size());
  const double unit = sum_unit(n + 8.0);
  double squares_error = 0.0;
  for (const Bounded& one : x)
    squares_error += unit * one.size() * one.size();
  if (bias != nullptr) center(x, unit);
  double squares = 0.0;
  for (const Bounded& one : x) {
    squares += one.value * one.value;
    squares_error += (2.0 * std::abs(one.value) + one.error) * one.error;
  }
  const auto factor = [&](double sum) { return 1.0 / std::sqrt(std::max(sum, 0.0) / n + eps); };
  const double exact = factor(squares);
  const double off =
      std::max(factor(squares - squares_error) - exact, exact - factor(squares + squares_error)) +
      kFew * exact;
  for (std::size_t d = 0; d < x.size(); ++d) {
    const double scaled = x[d].value * exact * w.values[d];
    const double error =
        std::abs(w.values[d]) * (x[d].error * (exact + off) + std::abs(x[d].value) * off) +
        4.0 * kF32Unit * std::abs(scaled);
    y[d] = stored(scaled + (bias != nullptr ? bias->values[d] : 0.0), error);
  }
}

}  // namespace

// In pieces as long as the weight: a row, or each of its heads.
void OpOracle::norm(const OpReader& op) {
  const DrawnWeight& w = weight(op.in(1));
  const DrawnWeight* const bias = op.op().n_in == 3 ? &weight(op.in(2)) : nullptr;
  const std::size_t n = w.values.size();
  for (std::uint32_t i = 0; i < n_rows_of(op.out(0)); ++i) {
    const NumberRow x = row(op.in(0), i);
    const NumberRow y = row(op.out(0), i);
    for (std::size_t first = 0; first < x.size(); first += n)
      norm_numbers(x.subspan(first, n), w, bias, op.attr_f32(0), y.subspan(first, n));
  }
}

void OpOracle::convert(const OpReader& op) {
  const std::uint32_t dtype = op.out(0).dtype;
  for (std::uint32_t i = 0; i < n_rows_of(op.out(0)); ++i) {
    const NumberRow x = row(op.in(0), i);
    const NumberRow y = row(op.out(0), i);
    for (std::size_t d = 0; d < x.size(); ++d) {
      if (dtype == LUNA_DTYPE_F32 || dtype == op.in(0).dtype) {
        y[d] = x[d];
      } else if (x[d].error == 0.0) {
        y[d] = {to_nearest(x[d].value, dtype), 0.0};
      } else {
        y[d] = {x[d].value, x[d].error + *float_unit(dtype) * x[d].size()};
      }
    }
  }
}

namespace {

/// act(gate), whose slope is below 1.13 everywhere.
Bounded activated(const Bounded& gate, bool is_gelu) {
  constexpr double kSlopeMax = 1.13;
  constexpr double kSqrt2OverPi = 0.79788456080286535588;
  const double g = gate.value;
  const double inner =
      is_gelu ? 2.0 * kSqrt2OverPi * (g + 0.044715 * g * g * g) : g;  // gelu is g * sigmoid(inner)
  const double value = g / (1.0 + std::exp(-inner));
  return {value, kSlopeMax * gate.error + 2.0 * exp_unit(inner) * std::abs(value) + kFlushed};
}

}  // namespace

void OpOracle::run_row_op(const OpReader& op) {
  if (op.op().op == LUNA_OP_LOGITS) {
    logits_ = {n_rows_of(op.in(0)), op.in(0).dims[1], {}};
    for (std::uint32_t i = 0; i < logits_.n_rows; ++i) {
      const NumberRow x = row(op.in(0), i);
      logits_.numbers.insert(logits_.numbers.end(), x.begin(), x.end());
    }
    return;
  }
  for (std::uint32_t i = 0; i < n_rows_of(op.out(0)); ++i) {
    const bool gathers = op.op().op == LUNA_OP_GATHER_ROWS;
    const NumberRow x = row(op.in(0), gathers ? step_->out_rows[i] : i);
    const NumberRow other = op.op().n_in > 1 ? row(op.in(1), i) : NumberRow{};
    const NumberRow y = row(op.out(0), i);
    for (std::size_t d = 0; d < y.size(); ++d) {
      const Bounded a = x[d];
      switch (op.op().op) {
        case LUNA_OP_GATHER_ROWS:
          y[d] = a;
          break;
        case LUNA_OP_ADD:
          y[d] = stored(a.value + other[d].value, a.error + other[d].error);
          break;
        case LUNA_OP_SCALE: {
          const double factor = op.attr_f32(LUNA_SCALE_FACTOR);
          y[d] = stored(a.value * factor, a.error * std::abs(factor));
          break;
        }
        case LUNA_OP_SOFTCAP: {
          const double cap = op.attr_f32(LUNA_SOFTCAP_CAP);
          y[d] = stored(cap * std::tanh(a.value / cap), a.error + kFew * cap);
          break;
        }
        case LUNA_OP_ACT_MUL: {
          const Bounded act = activated(a, op.attr(LUNA_ACT_MUL_KIND) == LUNA_ACT_GELU_TANH);
          y[d] = stored(act.value * other[d].value,
                        act.error * other[d].size() + std::abs(act.value) * other[d].error);
          break;
        }
        default:
          is_undecided_ = true;  // an op that this build does not know
      }
    }
  }
}

}  // namespace luna::check
