// The machine that runs a template, as its operators, filters, tests and methods see it.
#pragma once

#include "core/text/template_eval.hpp"
#include "core/text/template_lexer.hpp"

#include <memory>
#include <span>

namespace luna::text::jinja {

/// Values given to a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

/// Arguments by the place of their parameter.
class BoundArguments {
 public:
  explicit BoundArguments(std::size_t n) : values_(n) {}
  void set(std::size_t i, Value value) { values_[i] = std::move(value); }
  [[nodiscard]] bool has(std::size_t i) const { return values_[i].has_value(); }
  /// The value, where has() says there is one.
  [[nodiscard]] const Value& operator[](std::size_t i) const { return *values_[i]; }
  [[nodiscard]] bool flag(std::size_t i, bool otherwise) const {
    return has(i) ? is_truthy((*this)[i]) : otherwise;
  }

 private:
  std::vector<std::optional<Value>> values_;
};

/// Names of a level; looked up from the inside out.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> variables;
  bool captured = false;  // a macro was defined here: kept until the render ends

  void set(std::string_view name, Value value);
  [[nodiscard]] const Value* find(std::string_view name) const;
};

/// One render. A resource: single-threaded, used once.
class Interpreter {
 public:
  static constexpr std::uint64_t kStepUnits = 16;
  static constexpr std::uint64_t kElementUnits = 32;  // the bytes that a Value takes in a list

  Interpreter(const Template& parsed,
              std::chrono::system_clock::time_point now,
              const RenderLimits& limits)
      : template_(parsed), now_(now), limits_(limits) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<MarkedText> run(const Variables& variables);

  // What follows is for operators, filters, tests, methods and functions.

  /// An error at the place that is being evaluated.
  [[nodiscard]] Error error(std::string_view what) const;
  /// Counts work; errors when the budget is used up.
  Result<void> spend(std::uint64_t n_units);
  /// A text that was just made, counted.
  Result<Value> text(MarkedText made);
  Result<Value> list(std::vector<Value> items, ListKind kind = ListKind::list);
  Result<Value> dict(std::shared_ptr<Dict> made);
  /// What a loop over the value meets; takes the items of a generator away.
  Result<std::vector<Value>> items_of(const Value& value);
  /// The value as text, counted.
  Result<MarkedText> printed(const Value& value);
  Result<Value> call(const Value& callee, Arguments arguments);
  /// `value.name`, `value[key]`: undefined where there is none.
  Result<Value> attribute(const Value& value, std::string_view name);
  Result<Value> item(const Value& value, const Value& key);
  /// `attribute='a.b.0'` of filters.
  Result<Value> attribute_path(const Value& value, const Value& path);
  Result<Value> filter(std::string_view name, const Value& subject, const Arguments& arguments);
  Result<bool> test(std::string_view name, const Value& subject, const Arguments& arguments);
  /// Arguments by a signature like "width first? blank?": `?` marks what may be left out.
  Result<BoundArguments> bind(std::string_view callee,
                              std::string_view signature,
                              const Arguments& arguments) const;
  /// An integer argument, or `otherwise`.
  Result<std::int64_t> integer(const BoundArguments& arguments,
                               std::size_t i,
                               std::int64_t otherwise) const;
  [[nodiscard]] std::chrono::system_clock::time_point now() const { return now_; }
  Value make_namespace(std::vector<std::pair<std::string, Value>> entries);

 private:
  enum class Flow : std::uint8_t { normal, broke, continued };
  class NestGuard;

  Result<Flow> run_body(const Body& body, Scope& scope);
  Result<Flow> run_statement(const Stmt& statement, Scope& scope);
  Result<Flow> run_branches(const Stmt& statement, Scope& scope);
  Result<Flow> run_loop(const Stmt& statement, Scope& scope);
  Result<std::vector<Value>> loop_items(const Stmt& statement, Scope& scope);
  Result<Flow> run_with(const Stmt& statement, Scope& scope);
  Result<Flow> run_in_scope(const Body& body, Scope& parent);
  Result<void> run_call_block(const Stmt& statement, Scope& scope);
  /// The text that a body writes, in a scope of its own.
  Result<MarkedText> captured_body(const Body& body, Scope& parent);
  Result<Value> filtered_body(const Stmt& statement, Scope& scope);
  Result<void> assign(const Target& target, const Value& value, Scope& scope);
  Result<void> write(const Value& value);
  Result<void> write_text(const MarkedText& text);
  void retire(std::unique_ptr<Scope> scope);

  Result<Value> eval(const Expr& expr, Scope& scope);
  Result<Value> eval_kind(const Expr& expr, Scope& scope);
  Result<Value> eval_name(const Expr& expr, Scope& scope);
  Result<Value> eval_container(const Expr& expr, Scope& scope);
  Result<Value> eval_slice(const Expr& expr, Scope& scope);
  Result<Value> eval_unary(const Expr& expr, Scope& scope);
  Result<Value> eval_binary(const Expr& expr, Scope& scope);
  Result<Value> eval_compare(const Expr& expr, Scope& scope);
  Result<Value> eval_concat(const Expr& expr, Scope& scope);
  Result<Value> eval_conditional(const Expr& expr, Scope& scope);
  Result<Value> eval_filter(const Expr& expr, Scope& scope);
  Result<Arguments> eval_arguments(const CallArguments& arguments, Scope& scope);
  Result<Value> call_macro(const Callable& macro, Arguments arguments);
  Result<void> bind_macro(const MacroCode& code, Arguments& arguments, Scope& scope);
  Result<Value> call_loop(const Callable& method, const Arguments& arguments);
  Value macro_value(const MacroCode& code, Scope& home);

  const Template& template_;
  std::chrono::system_clock::time_point now_;
  RenderLimits limits_;
  std::uint64_t n_units_ = 0;
  std::uint32_t n_nested_ = 0;
  std::uint32_t offset_ = 0;  // of what is being evaluated, for messages
  MarkedText* out_ = nullptr;
  const Value* captured_ = nullptr;  // the text of the block that filters are applied to
  std::vector<std::unique_ptr<Scope>> retired_;           // that macros may still look into
  std::vector<std::shared_ptr<Namespace>> namespaces_;    // emptied at the end: they may hold
  std::vector<std::shared_ptr<Loop>> remembering_loops_;  // themselves
};

// The operators, filters, tests, methods and functions; each in a file of its own.

Result<Value> apply_binary(Interpreter& interpreter, Op op, const Value& a, const Value& b);
Result<Value> apply_unary(Interpreter& interpreter, Op op, const Value& value);
Result<bool> apply_comparison(Interpreter& interpreter, Op op, const Value& a, const Value& b);
/// The `%` of texts: printf of Python.
Result<Value> format_percent(Interpreter& interpreter,
                             const MarkedText& format,
                             const Value& values);

using Filter = Result<Value> (*)(Interpreter&, const Value& subject, const Arguments&);
struct NamedFilter {
  std::string_view name;
  Filter filter;
};
std::span<const NamedFilter> text_filters();
std::span<const NamedFilter> value_filters();
std::span<const NamedFilter> sequence_filters();
std::span<const NamedFilter> selection_filters();

/// Whether values of a type have a method of this name.
bool has_method(const Value& value, std::string_view name);
Result<Value> call_method(Interpreter& interpreter,
                          const Value& subject,
                          std::string_view name,
                          const Arguments& arguments);
Result<Value> call_text_method(Interpreter& interpreter,
                               const MarkedText& subject,
                               std::string_view name,
                               const Arguments& arguments);
bool has_text_method(std::string_view name);

bool is_function(std::string_view name);
Result<Value> call_function(Interpreter& interpreter,
                            std::string_view name,
                            const Arguments& arguments);

}  // namespace luna::text::jinja
