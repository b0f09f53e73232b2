// The operators of the template language, with Python's meaning.
#include "core/text/template_interpreter.hpp"

#include <cmath>

namespace luna::text::jinja {
namespace {

constexpr std::string_view kTooLarge = "the integer result does not fit into 64 bits";

std::string_view sign_of(Op op) {
  switch (op) {
    case Op::add:
      return "+";
    case Op::subtract:
    case Op::negate:
      return "-";
    case Op::multiply:
      return "*";
    case Op::divide:
      return "/";
    case Op::floor_divide:
      return "//";
    case Op::modulo:
      return "%";
    case Op::power:
      return "**";
    case Op::less:
      return "<";
    case Op::less_equal:
      return "<=";
    case Op::greater:
      return ">";
    case Op::greater_equal:
      return ">=";
    default:
      return "?";
  }
}

Error complain_undefined(Interpreter& interpreter, const Value& value) {
  const auto& complaint = value.as_undefined().complaint;
  return interpreter.error(complaint ? *complaint : "the value is undefined");
}

Error unsupported(Interpreter& interpreter, Op op, const Value& a, const Value& b) {
  if (a.is(Kind::undefined)) return complain_undefined(interpreter, a);
  if (b.is(Kind::undefined)) return complain_undefined(interpreter, b);
  return interpreter.error("unsupported operand type(s) for " + std::string(sign_of(op)) + ": '" +
                           std::string(type_name(a)) + "' and '" + std::string(type_name(b)) + "'");
}

Result<Value> integer_power(Interpreter& interpreter,
                            std::int64_t base,
                            std::int64_t exponent,
                            bool trusted) {
  std::int64_t result = 1;
  // Beyond 64 steps only 0, 1 and -1 do not overflow, and they repeat with period two.
  if (base >= -1 && base <= 1 && exponent > 64) exponent = 64 + exponent % 2;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) return interpreter.error(kTooLarge);
  }
  return Value::integer(result, trusted);
}

Result<Value> integer_op(
    Interpreter& interpreter, Op op, std::int64_t a, std::int64_t b, bool trusted) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::subtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::multiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::power:
      return integer_power(interpreter, a, b, trusted);
    case Op::floor_divide:
    case Op::modulo: {
      if (b == 0) return interpreter.error("integer division or modulo by zero");
      if (b == -1) {  // the one division that may overflow
        overflow = op == Op::floor_divide && __builtin_sub_overflow(std::int64_t{0}, a, &result);
        break;
      }
      const bool rounds_up = a % b != 0 && (a % b < 0) != (b < 0);
      result = op == Op::floor_divide ? a / b - (rounds_up ? 1 : 0) : a % b + (rounds_up ? b : 0);
      break;
    }
    default:
      break;
  }
  if (overflow) return interpreter.error(kTooLarge);
  return Value::integer(result, trusted);
}

double floored_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) rest += b;
  } else {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

double floored_division(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Result<Value> real_op(Interpreter& interpreter, Op op, double a, double b, bool trusted) {
  if (b == 0 && (op == Op::divide || op == Op::floor_divide || op == Op::modulo)) {
    return interpreter.error("division by zero");
  }
  switch (op) {
    case Op::add:
      return Value::real(a + b, trusted);
    case Op::subtract:
      return Value::real(a - b, trusted);
    case Op::multiply:
      return Value::real(a * b, trusted);
    case Op::divide:
      return Value::real(a / b, trusted);
    case Op::floor_divide:
      return Value::real(floored_division(a, b), trusted);
    case Op::modulo:
      return Value::real(floored_modulo(a, b), trusted);
    default:
      break;
  }
  const double result = std::pow(a, b);
  if (a == 0 && b < 0) return interpreter.error("0.0 cannot be raised to a negative power");
  if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) {
    return interpreter.error("complex numbers are not supported");
  }
  if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) {
    return interpreter.error("the result of ** is too large");
  }
  return Value::real(result, trusted);
}

Result<Value> number_op(Interpreter& interpreter, Op op, const Value& a, const Value& b) {
  const bool trusted = a.trusted() && b.trusted();
  const bool whole = a.is_integer_like() && b.is_integer_like() && op != Op::divide &&
                     !(op == Op::power && b.as_integer() < 0);
  if (whole) return integer_op(interpreter, op, a.as_integer(), b.as_integer(), trusted);
  return real_op(interpreter, op, a.as_real(), b.as_real(), trusted);
}

/// A text or list, several times.
Result<Value> repeat(Interpreter& interpreter, const Value& value, std::int64_t n) {
  const auto times = static_cast<std::uint64_t>(std::max<std::int64_t>(n, 0));
  const std::uint64_t size =
      value.is(Kind::text) ? value.as_text().size() : value.as_list().items.size();
  std::uint64_t total = 0;
  // Far above every budget, and far below overflow.
  constexpr std::uint64_t kTooMany = std::uint64_t{1} << 48U;
  if (__builtin_mul_overflow(size, times, &total) || total > kTooMany) total = kTooMany;
  const std::uint64_t each = value.is(Kind::text) ? 1 : Interpreter::kElementUnits;
  LUNA_TRY(interpreter.spend(each * total));  // before it is made
  if (value.is(Kind::text)) {
    MarkedText made;
    if (size > 0) {
      for (std::uint64_t i = 0; i < times; ++i)
        made.append(value.as_text());
    }
    return Value::text(std::move(made));
  }
  std::vector<Value> items;
  items.reserve(total);
  for (std::uint64_t i = 0; size > 0 && i < times; ++i) {
    items.insert(items.end(), value.as_list().items.begin(), value.as_list().items.end());
  }
  return interpreter.list(std::move(items), value.as_list().kind);
}

bool is_plain_list(const Value& value) {
  return value.is(Kind::list) && value.as_list().kind <= ListKind::tuple;
}

Result<Value> add_sequences(Interpreter& interpreter, const Value& a, const Value& b) {
  if (a.is(Kind::text)) {
    MarkedText joined = a.as_text();
    joined.append(b.as_text());
    return interpreter.text(std::move(joined));
  }
  LUNA_TRY(interpreter.spend(Interpreter::kElementUnits *
                             (a.as_list().items.size() + b.as_list().items.size())));
  std::vector<Value> items = a.as_list().items;
  items.insert(items.end(), b.as_list().items.begin(), b.as_list().items.end());
  return interpreter.list(std::move(items), a.as_list().kind);
}

Result<bool> list_contains(Interpreter& interpreter, const Value& value, const Value& list) {
  LUNA_TRY(const std::vector<Value> items, interpreter.items_of(list));
  for (const Value& item : items) {
    LUNA_TRY(interpreter.spend(weight_of(value)));
    if (is_equal(item, value)) return true;
  }
  return false;
}

Result<bool> contains(Interpreter& interpreter, const Value& value, const Value& container) {
  LUNA_TRY(interpreter.spend(weight_of(container)));
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::text:
      if (!value.is(Kind::text)) {
        return interpreter.error("'in <string>' requires string as left operand, not " +
                                 std::string(type_name(value)));
      }
      return container.bytes().find(value.bytes()) != std::string::npos;
    case Kind::dict:
      LUNA_TRY(interpreter.spend(weight_of(value)));
      return container.as_dict().find(value) != nullptr;
    case Kind::list:
      return list_contains(interpreter, value, container);
    default:
      return interpreter.error("argument of type '" + std::string(type_name(container)) +
                               "' is not iterable");
  }
}

}  // namespace

Result<Value> apply_binary(Interpreter& interpreter, Op op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return number_op(interpreter, op, a, b);
  if (op == Op::modulo && a.is(Kind::text)) return format_percent(interpreter, a.as_text(), b);
  const bool a_repeats = a.is(Kind::text) || is_plain_list(a);
  const bool b_repeats = b.is(Kind::text) || is_plain_list(b);
  if (op == Op::multiply && a_repeats && b.is_integer_like()) {
    return repeat(interpreter, a, b.as_integer());
  }
  if (op == Op::multiply && b_repeats && a.is_integer_like()) {
    return repeat(interpreter, b, a.as_integer());
  }
  const bool same = a_repeats && b_repeats && a.kind() == b.kind() &&
                    (a.is(Kind::text) || a.as_list().kind == b.as_list().kind);
  if (op == Op::add && same) return add_sequences(interpreter, a, b);
  return unsupported(interpreter, op, a, b);
}

Result<Value> apply_unary(Interpreter& interpreter, Op op, const Value& value) {
  if (value.is(Kind::undefined)) return complain_undefined(interpreter, value);
  if (!value.is_number()) {
    return interpreter.error("bad operand type for unary " + std::string(sign_of(op)) + ": '" +
                             std::string(type_name(value)) + "'");
  }
  const bool negates = op == Op::negate;
  if (value.is(Kind::real))
    return Value::real(negates ? -value.as_real() : value.as_real(), value.trusted());
  if (!negates) return Value::integer(value.as_integer(), value.trusted());
  return integer_op(interpreter, Op::subtract, 0, value.as_integer(), value.trusted());
}

Result<bool> apply_comparison(Interpreter& interpreter, Op op, const Value& a, const Value& b) {
  if (op == Op::in) return contains(interpreter, a, b);
  if (op == Op::not_in) {
    LUNA_TRY(const bool inside, contains(interpreter, a, b));
    return !inside;
  }
  LUNA_TRY(interpreter.spend(std::min(weight_of(a), weight_of(b))));
  if (op == Op::equal) return is_equal(a, b);
  if (op == Op::not_equal) return !is_equal(a, b);
  if (a.is(Kind::undefined)) return complain_undefined(interpreter, a);
  if (b.is(Kind::undefined)) return complain_undefined(interpreter, b);
  // A comparison with a NaN is false, whichever it is.
  if (a.is_number() && b.is_number() && (std::isnan(a.as_real()) || std::isnan(b.as_real()))) {
    return false;
  }
  const auto order = compare(a, b);
  if (!order) {
    return interpreter.error("'" + std::string(sign_of(op)) +
                             "' not supported between instances of '" + std::string(type_name(a)) +
                             "' and '" + std::string(type_name(b)) + "'");
  }
  switch (op) {
    case Op::less:
      return *order < 0;
    case Op::less_equal:
      return *order <= 0;
    case Op::greater:
      return *order > 0;
    default:
      return *order >= 0;
  }
}

}  // namespace luna::text::jinja
