// The half of the interpreter that evaluates expressions.
#include "core/text/python_text.hpp"
#include "core/text/template_interpreter.hpp"

#include <algorithm>
#include <array>

namespace luna::text::jinja {

Result<Value> Interpreter::eval(const Expr& expr, Scope& scope) {
  if (++n_nested_ > limits_.n_nested_max) {
    return Error{Code::exhausted, error("calls are nested too deeply").message()};
  }
  LUNA_TRY(spend(kStepUnits));
  auto value = eval_kind(expr, scope);
  --n_nested_;  // an error ends the render: nobody counts after one
  return value;
}

Result<Value> Interpreter::eval_kind(const Expr& expr, Scope& scope) {
  switch (expr.kind) {
    case ExprKind::literal:
      return expr.literal;
    case ExprKind::name:
      return eval_name(expr, scope);
    case ExprKind::list:
    case ExprKind::tuple:
    case ExprKind::dict:
      return eval_container(expr, scope);
    case ExprKind::attribute: {
      LUNA_TRY(const Value owner, eval(*expr.operands[0], scope));
      offset_ = expr.offset;
      return attribute(owner, expr.name);
    }
    case ExprKind::item: {
      LUNA_TRY(const Value owner, eval(*expr.operands[0], scope));
      LUNA_TRY(const Value key, eval(*expr.operands[1], scope));
      offset_ = expr.offset;
      return item(owner, key);
    }
    case ExprKind::slice:
      return eval_slice(expr, scope);
    case ExprKind::call: {
      LUNA_TRY(const Value callee, eval(*expr.operands[0], scope));
      LUNA_TRY(Arguments arguments, eval_arguments(expr.arguments, scope));
      offset_ = expr.offset;
      return call(callee, std::move(arguments));
    }
    case ExprKind::filter:
      return eval_filter(expr, scope);
    case ExprKind::test: {
      LUNA_TRY(const Value subject, eval(*expr.operands[0], scope));
      LUNA_TRY(const Arguments arguments, eval_arguments(expr.arguments, scope));
      offset_ = expr.offset;
      LUNA_TRY(const bool answer, test(expr.name, subject, arguments));
      return Value::boolean(answer);
    }
    case ExprKind::unary:
      return eval_unary(expr, scope);
    case ExprKind::binary:
      return eval_binary(expr, scope);
    case ExprKind::compare:
      return eval_compare(expr, scope);
    case ExprKind::concat:
      return eval_concat(expr, scope);
    case ExprKind::conditional:
      return eval_conditional(expr, scope);
    case ExprKind::captured:
      return *captured_;
  }
  return Value();
}

Result<Value> Interpreter::eval_name(const Expr& expr, Scope& scope) {
  if (const Value* found = scope.find(expr.name)) return *found;
  if (is_function(expr.name)) {
    auto function = std::make_shared<Callable>();
    function->name = expr.name;
    return Value::of(std::shared_ptr<const Callable>(std::move(function)));
  }
  return Value::undefined("'" + expr.name + "' is undefined");
}

Result<Value> Interpreter::eval_container(const Expr& expr, Scope& scope) {
  std::vector<Value> items;
  items.reserve(expr.operands.size());
  for (const ExprPtr& operand : expr.operands) {
    LUNA_TRY(Value value, eval(*operand, scope));
    items.push_back(std::move(value));
  }
  offset_ = expr.offset;
  if (expr.kind != ExprKind::dict) {
    return list(std::move(items), expr.kind == ExprKind::tuple ? ListKind::tuple : ListKind::list);
  }
  auto made = std::make_shared<Dict>();
  for (std::size_t i = 0; i < items.size(); i += 2) {
    if (!made->set(items[i], items[i + 1])) {
      return error("unhashable type: '" + std::string(type_name(items[i])) + "'");
    }
  }
  return dict(std::move(made));
}

Result<Value> Interpreter::eval_unary(const Expr& expr, Scope& scope) {
  LUNA_TRY(const Value value, eval(*expr.operands[0], scope));
  offset_ = expr.offset;
  if (expr.op == Op::logical_not) return Value::boolean(!is_truthy(value));
  return apply_unary(*this, expr.op, value);
}

Result<Value> Interpreter::eval_binary(const Expr& expr, Scope& scope) {
  LUNA_TRY(Value left, eval(*expr.operands[0], scope));
  if (expr.op == Op::logical_and || expr.op == Op::logical_or) {
    if (is_truthy(left) == (expr.op == Op::logical_or)) return left;
    return eval(*expr.operands[1], scope);
  }
  LUNA_TRY(const Value right, eval(*expr.operands[1], scope));
  offset_ = expr.offset;
  return apply_binary(*this, expr.op, left, right);
}

Result<Value> Interpreter::eval_compare(const Expr& expr, Scope& scope) {
  LUNA_TRY(Value left, eval(*expr.operands[0], scope));
  for (std::size_t i = 0; i < expr.ops.size(); ++i) {
    LUNA_TRY(Value right, eval(*expr.operands[i + 1], scope));
    offset_ = expr.offset;
    LUNA_TRY(const bool holds, apply_comparison(*this, expr.ops[i], left, right));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> Interpreter::eval_concat(const Expr& expr, Scope& scope) {
  MarkedText joined;
  for (const ExprPtr& operand : expr.operands) {
    LUNA_TRY(const Value value, eval(*operand, scope));
    LUNA_TRY(const MarkedText part, printed(value));
    joined.append(part);
  }
  offset_ = expr.offset;
  return text(std::move(joined));
}

Result<Value> Interpreter::eval_conditional(const Expr& expr, Scope& scope) {
  LUNA_TRY(const Value condition, eval(*expr.operands[0], scope));
  if (is_truthy(condition)) return eval(*expr.operands[1], scope);
  if (expr.operands[2]) return eval(*expr.operands[2], scope);
  return Value::undefined("the inline if-expression evaluated to false and no else is defined");
}

Result<Value> Interpreter::eval_filter(const Expr& expr, Scope& scope) {
  LUNA_TRY(const Value subject, eval(*expr.operands[0], scope));
  LUNA_TRY(const Arguments arguments, eval_arguments(expr.arguments, scope));
  offset_ = expr.offset;
  return filter(expr.name, subject, arguments);
}

Result<Arguments> Interpreter::eval_arguments(const CallArguments& arguments, Scope& scope) {
  Arguments values;
  for (const ExprPtr& expr : arguments.positional) {
    LUNA_TRY(Value value, eval(*expr, scope));
    values.positional.push_back(std::move(value));
  }
  for (const auto& [key, expr] : arguments.keywords) {
    LUNA_TRY(Value value, eval(*expr, scope));
    values.keywords.emplace_back(key, std::move(value));
  }
  if (arguments.star) {
    LUNA_TRY(const Value star, eval(*arguments.star, scope));
    LUNA_TRY(std::vector<Value> items, items_of(star));
    for (Value& item : items)
      values.positional.push_back(std::move(item));
  }
  if (arguments.double_star) {
    LUNA_TRY(const Value star, eval(*arguments.double_star, scope));
    if (!star.is(Kind::dict)) return error("argument after ** must be a mapping");
    for (const auto& [key, value] : star.as_dict().entries) {
      if (!key.is(Kind::text)) return error("keywords must be strings");
      values.keywords.emplace_back(key.bytes(), value);
    }
    LUNA_TRY(spend(star.as_dict().entries.size()));
  }
  return values;
}

namespace {

struct SliceBounds {
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::int64_t step = 1;
};

/// slice.indices() of Python.
SliceBounds slice_bounds(std::optional<std::int64_t> start,
                         std::optional<std::int64_t> stop,
                         std::int64_t step,
                         std::int64_t length) {
  const std::int64_t lower = step < 0 ? -1 : 0;
  const std::int64_t upper = step < 0 ? length - 1 : length;
  const auto bound = [&](std::optional<std::int64_t> given, std::int64_t otherwise) {
    if (!given) return otherwise;
    return *given < 0 ? std::max(*given + length, lower) : std::min(*given, upper);
  };
  return {bound(start, step < 0 ? upper : lower), bound(stop, step < 0 ? lower : upper), step};
}

std::vector<std::size_t> slice_indices(const SliceBounds& bounds) {
  std::vector<std::size_t> indices;
  if (bounds.step > 0) {
    for (std::int64_t i = bounds.start; i < bounds.stop; i += bounds.step) {
      indices.push_back(static_cast<std::size_t>(i));
    }
  } else {
    for (std::int64_t i = bounds.start; i > bounds.stop; i += bounds.step) {
      indices.push_back(static_cast<std::size_t>(i));
    }
  }
  return indices;
}

}  // namespace

Result<Value> Interpreter::eval_slice(const Expr& expr, Scope& scope) {
  LUNA_TRY(const Value subject, eval(*expr.operands[0], scope));
  std::array<std::optional<std::int64_t>, 3> given;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!expr.operands[i + 1]) continue;
    LUNA_TRY(const Value part, eval(*expr.operands[i + 1], scope));
    if (part.is(Kind::none)) continue;
    if (!part.is_integer_like()) return error("slice indices must be integers or None");
    // Beyond any length all indices are alike; so far out no sum overflows.
    constexpr std::int64_t kFar = std::int64_t{1} << 40U;
    given[i] = std::clamp(part.as_integer(), -kFar, kFar);
  }
  offset_ = expr.offset;
  const std::int64_t step = given[2].value_or(1);
  if (subject.is(Kind::undefined)) return error(*subject.as_undefined().complaint);
  if (step == 0) return error("slice step cannot be zero");
  if (subject.is(Kind::text)) {
    const MarkedText& whole = subject.as_text();
    LUNA_TRY(spend(whole.size()));
    const std::vector<std::size_t> at = char_positions(whole.bytes());
    const auto length = static_cast<std::int64_t>(at.size() - 1);
    const SliceBounds bounds = slice_bounds(given[0], given[1], step, length);
    if (step == 1) {
      const auto begin = static_cast<std::size_t>(bounds.start);
      const auto end = static_cast<std::size_t>(std::max(bounds.start, bounds.stop));
      return text(whole.slice(at[begin], at[end]));
    }
    MarkedText part;
    for (const std::size_t i : slice_indices(bounds))
      part.append(whole, at[i], at[i + 1]);
    return text(std::move(part));
  }
  if (subject.is(Kind::list) && subject.as_list().is_indexable()) {
    const List& whole = subject.as_list();
    const SliceBounds bounds =
        slice_bounds(given[0], given[1], step, static_cast<std::int64_t>(whole.items.size()));
    std::vector<Value> part;
    for (const std::size_t i : slice_indices(bounds))
      part.push_back(whole.items[i]);
    return list(std::move(part), whole.kind == ListKind::tuple ? ListKind::tuple : ListKind::list);
  }
  return Value::undefined("'" + std::string(type_name(subject)) + "' object cannot be sliced");
}

}  // namespace luna::text::jinja
