#include "core/text/template_eval.hpp"

#include "core/text/template_interpreter.hpp"

#include <algorithm>

namespace luna::text::jinja {

Result<MarkedText> run_template(const Template& parsed,
                                const Variables& variables,
                                std::chrono::system_clock::time_point now,
                                const RenderLimits& limits) {
  return Interpreter(parsed, now, limits).run(variables);
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(std::string(name), std::move(value));
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

/// Counts evaluations inside each other.
class Interpreter::NestGuard {
 public:
  explicit NestGuard(Interpreter& interpreter) : interpreter_(interpreter) {
    ++interpreter_.n_nested_;
  }
  ~NestGuard() { --interpreter_.n_nested_; }
  NestGuard(const NestGuard&) = delete;
  NestGuard& operator=(const NestGuard&) = delete;

 private:
  Interpreter& interpreter_;
};

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_)
    space->entries.clear();
  for (const auto& loop : remembering_loops_)
    loop->last_checked.reset();
}

Error Interpreter::error(std::string_view what) const {
  return {Code::invalid_argument,
          "template:" + position_of(template_.source, offset_) + ": " + std::string(what)};
}

Result<void> Interpreter::spend(std::uint64_t n_units) {
  n_units_ += n_units;
  if (n_units_ <= limits_.n_units_max) return {};
  return Error{Code::exhausted, error("the template does more work than is allowed").message()};
}

Result<Value> Interpreter::text(MarkedText made) {
  LUNA_TRY(spend(made.size()));
  return Value::text(std::move(made));
}

Result<Value> Interpreter::list(std::vector<Value> items, ListKind kind) {
  LUNA_TRY(spend(kElementUnits * items.size()));
  auto made = make_list(std::move(items), kind);
  if (made->depth > kValueDepthMax) return error("lists are nested too deeply");
  return Value::of(std::move(made));
}

Result<Value> Interpreter::dict(std::shared_ptr<Dict> made) {
  LUNA_TRY(spend(kElementUnits * made->entries.size()));
  if (made->depth > kValueDepthMax) return error("dictionaries are nested too deeply");
  return Value::of(std::move(made));
}

Value Interpreter::make_namespace(std::vector<std::pair<std::string, Value>> entries) {
  auto space = std::make_shared<Namespace>();
  space->entries = std::move(entries);
  namespaces_.push_back(space);
  return Value::of(std::move(space));
}

Result<MarkedText> Interpreter::run(const Variables& variables) {
  Scope root;
  root.variables = variables;
  Scope top;
  top.parent = &root;
  MarkedText output;
  out_ = &output;
  const Result<Flow> ran = run_body(template_.body, top);
  out_ = nullptr;
  if (!ran) return ran.error();
  return output;
}

Result<void> Interpreter::write_text(const MarkedText& text) {
  LUNA_TRY(spend(text.size()));
  out_->append(text);
  if (out_->size() <= limits_.output_bytes_max) return {};
  return Error{
      Code::exhausted,
      error("the output is larger than " + std::to_string(limits_.output_bytes_max) + " bytes")
          .message()};
}

Result<void> Interpreter::write(const Value& value) {
  if (value.is(Kind::text)) return write_text(value.as_text());
  LUNA_TRY(const MarkedText made, printed(value));
  return write_text(made);
}

void Interpreter::retire(std::unique_ptr<Scope> scope) {
  if (scope->captured) retired_.push_back(std::move(scope));
}

Result<Interpreter::Flow> Interpreter::run_body(const Body& body, Scope& scope) {
  const NestGuard guard(*this);
  if (n_nested_ > limits_.n_nested_max) {
    return Error{Code::exhausted, error("calls are nested too deeply").message()};
  }
  for (const Stmt& statement : body) {
    offset_ = statement.offset;
    LUNA_TRY(spend(kStepUnits));
    LUNA_TRY(const Flow flow, run_statement(statement, scope));
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Result<Interpreter::Flow> Interpreter::run_statement(const Stmt& statement, Scope& scope) {
  switch (statement.kind) {
    case StmtKind::data:
      LUNA_TRY(write_text(MarkedText(statement.text, true)));
      break;
    case StmtKind::print: {
      LUNA_TRY(const Value value, eval(*statement.expr, scope));
      LUNA_TRY(write(value));
      break;
    }
    case StmtKind::branches:
      return run_branches(statement, scope);
    case StmtKind::loop:
      return run_loop(statement, scope);
    case StmtKind::assign: {
      LUNA_TRY(const Value value, eval(*statement.expr, scope));
      LUNA_TRY(assign(statement.target, value, scope));
      break;
    }
    case StmtKind::assign_block: {
      LUNA_TRY(const Value value, filtered_body(statement, scope));
      LUNA_TRY(assign(statement.target, value, scope));
      break;
    }
    case StmtKind::macro:
      scope.set(statement.macro->name, macro_value(*statement.macro, scope));
      break;
    case StmtKind::call_block:
      LUNA_TRY(run_call_block(statement, scope));
      break;
    case StmtKind::filter_block: {
      LUNA_TRY(const Value value, filtered_body(statement, scope));
      LUNA_TRY(write(value));
      break;
    }
    case StmtKind::with:
      return run_with(statement, scope);
    case StmtKind::scope:
      return run_in_scope(statement.body, scope);
    case StmtKind::break_loop:
      return Flow::broke;
    case StmtKind::continue_loop:
      return Flow::continued;
  }
  return Flow::normal;
}

Result<Interpreter::Flow> Interpreter::run_branches(const Stmt& statement, Scope& scope) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition) {
      LUNA_TRY(const Value condition, eval(*branch.condition, scope));
      if (!is_truthy(condition)) continue;
    }
    return run_body(branch.body, scope);
  }
  return Flow::normal;
}

Result<Interpreter::Flow> Interpreter::run_in_scope(const Body& body, Scope& parent) {
  auto scope = std::make_unique<Scope>();
  scope->parent = &parent;
  auto flow = run_body(body, *scope);
  retire(std::move(scope));
  return flow;
}

/// The items of a loop, those that its condition shuts out left away.
Result<std::vector<Value>> Interpreter::loop_items(const Stmt& statement, Scope& scope) {
  LUNA_TRY(const Value subject, eval(*statement.expr, scope));
  LUNA_TRY(std::vector<Value> items, items_of(subject));
  if (!statement.condition) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    auto inner = std::make_unique<Scope>();
    inner->parent = &scope;
    LUNA_TRY(assign(statement.target, item, *inner));
    LUNA_TRY(const Value keep, eval(*statement.condition, *inner));
    if (is_truthy(keep)) kept.push_back(std::move(item));
    retire(std::move(inner));
  }
  return kept;
}

Result<Interpreter::Flow> Interpreter::run_loop(const Stmt& statement, Scope& scope) {
  auto loop = std::make_shared<Loop>();
  LUNA_TRY(loop->items, loop_items(statement, scope));
  if (loop->items.empty()) {
    LUNA_TRY(const Flow flow, run_in_scope(statement.otherwise, scope));
    return flow;
  }
  // An index, not an iterator: the body may see the loop, but never changes its items.
  for (; loop->index < loop->items.size(); ++loop->index) {
    auto inner = std::make_unique<Scope>();
    inner->parent = &scope;
    inner->set("loop", Value::of(loop));
    LUNA_TRY(spend(kStepUnits));
    LUNA_TRY(assign(statement.target, loop->items[loop->index], *inner));
    LUNA_TRY(const Flow flow, run_body(statement.body, *inner));
    retire(std::move(inner));
    if (flow == Flow::broke) break;
  }
  return Flow::normal;
}

Result<Interpreter::Flow> Interpreter::run_with(const Stmt& statement, Scope& scope) {
  auto inner = std::make_unique<Scope>();
  inner->parent = &scope;
  for (const auto& [target, expr] : statement.assignments) {
    LUNA_TRY(const Value value, eval(*expr, scope));
    LUNA_TRY(assign(target, value, *inner));
  }
  auto flow = run_body(statement.body, *inner);
  retire(std::move(inner));
  return flow;
}

Result<MarkedText> Interpreter::captured_body(const Body& body, Scope& parent) {
  MarkedText written;
  MarkedText* const outer = std::exchange(out_, &written);
  const auto flow = run_in_scope(body, parent);
  out_ = outer;
  if (!flow) return flow.error();
  return written;
}

Result<Value> Interpreter::filtered_body(const Stmt& statement, Scope& scope) {
  LUNA_TRY(MarkedText written, captured_body(statement.body, scope));
  const Value value = Value::text(std::move(written));
  if (!statement.expr) return value;
  const Value* const outer = std::exchange(captured_, &value);
  auto filtered = eval(*statement.expr, scope);
  captured_ = outer;
  return filtered;
}

Result<void> Interpreter::run_call_block(const Stmt& statement, Scope& scope) {
  const Expr& call_expr = *statement.expr;
  LUNA_TRY(const Value callee, eval(*call_expr.operands[0], scope));
  LUNA_TRY(Arguments arguments, eval_arguments(call_expr.arguments, scope));
  arguments.keywords.emplace_back("caller", macro_value(*statement.macro, scope));
  offset_ = statement.offset;
  LUNA_TRY(const Value value, call(callee, std::move(arguments)));
  return write(value);
}

Result<void> Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  switch (target.kind) {
    case Target::Kind::name:
      scope.set(target.name, value);
      return {};
    case Target::Kind::attribute: {
      const Value* owner = scope.find(target.name);
      if (owner == nullptr || !owner->is(Kind::name_space)) {
        return error("cannot assign attribute on non-namespace object '" + target.name + "'");
      }
      owner->as_namespace().set(target.attribute, value);
      return {};
    }
    case Target::Kind::tuple:
      break;
  }
  LUNA_TRY(const std::vector<Value> items, items_of(value));
  if (items.size() != target.parts.size()) {
    return error("cannot unpack " + std::to_string(items.size()) + " values into " +
                 std::to_string(target.parts.size()));
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    LUNA_TRY(assign(target.parts[i], items[i], scope));
  }
  return {};
}

Value Interpreter::macro_value(const MacroCode& code, Scope& home) {
  for (Scope* scope = &home; scope != nullptr; scope = scope->parent)
    scope->captured = true;
  auto macro = std::make_shared<Callable>();
  macro->kind = CallableKind::macro;
  macro->name = code.name;
  macro->code = &code;
  macro->home = &home;
  return Value::of(std::shared_ptr<const Callable>(std::move(macro)));
}

Result<Value> Interpreter::call_macro(const Callable& macro, Arguments arguments) {
  auto scope = std::make_unique<Scope>();
  scope->parent = macro.home;
  LUNA_TRY(bind_macro(*macro.code, arguments, *scope));
  MarkedText written;
  MarkedText* const outer = std::exchange(out_, &written);
  const auto flow = run_body(macro.code->body, *scope);
  out_ = outer;
  retire(std::move(scope));
  if (!flow) return flow.error();
  return text(std::move(written));
}

/// Puts the arguments of a macro into its scope; defaults see the parameters before them.
Result<void> Interpreter::bind_macro(const MacroCode& code, Arguments& arguments, Scope& scope) {
  const std::size_t n = code.parameters.size();
  if (arguments.positional.size() > n && !code.uses_varargs) {
    return error("macro '" + code.name + "' takes not more than " + std::to_string(n) +
                 " argument(s)");
  }
  auto take_keyword = [&arguments](std::string_view name) -> std::optional<Value> {
    for (auto it = arguments.keywords.begin(); it != arguments.keywords.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      arguments.keywords.erase(it);
      return value;
    }
    return std::nullopt;
  };
  for (std::size_t i = 0; i < n; ++i) {
    const Parameter& parameter = code.parameters[i];
    auto keyword = take_keyword(parameter.name);
    if (i < arguments.positional.size()) {
      if (keyword)
        return error("macro '" + code.name + "' got two values for '" + parameter.name + "'");
      scope.set(parameter.name, arguments.positional[i]);
    } else if (keyword) {
      scope.set(parameter.name, std::move(*keyword));
    } else if (parameter.otherwise) {
      LUNA_TRY(Value otherwise, eval(*parameter.otherwise, scope));
      scope.set(parameter.name, std::move(otherwise));
    } else {
      scope.set(parameter.name,
                Value::undefined("parameter '" + parameter.name + "' was not provided"));
    }
  }
  if (code.uses_caller) {
    auto caller = take_keyword("caller");
    scope.set("caller", caller ? std::move(*caller) : Value::undefined("No caller defined"));
  }
  if (code.uses_varargs) {
    const std::size_t first = std::min(n, arguments.positional.size());
    LUNA_TRY(Value rest,
             list({arguments.positional.begin() + static_cast<std::ptrdiff_t>(first),
                   arguments.positional.end()},
                  ListKind::tuple));
    scope.set("varargs", std::move(rest));
  }
  if (code.uses_kwargs) {
    auto rest = std::make_shared<Dict>();
    for (auto& [key, value] : arguments.keywords)
      rest->set(Value::text(key, true), std::move(value));
    LUNA_TRY(Value made, dict(std::move(rest)));
    scope.set("kwargs", std::move(made));
  } else if (!arguments.keywords.empty()) {
    return error("macro '" + code.name + "' takes no keyword argument '" +
                 arguments.keywords[0].first + "'");
  }
  return {};
}

Result<Value> Interpreter::call_loop(const Callable& method, const Arguments& arguments) {
  Loop& loop = method.subject.as_loop();
  if (method.name == "cycle") {
    if (arguments.positional.empty()) return error("no items for cycling given");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  LUNA_TRY(const Value seen, list(arguments.positional, ListKind::tuple));
  LUNA_TRY(spend(weight_of(seen)));
  if (loop.last_checked && is_equal(*loop.last_checked, seen)) return Value::boolean(false);
  if (!loop.last_checked) remembering_loops_.push_back(method.subject.shared_loop());
  loop.last_checked = seen;
  return Value::boolean(true);
}

}  // namespace luna::text::jinja
