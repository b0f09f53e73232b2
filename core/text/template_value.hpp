// Values of the template language: what Python has, as far as chat templates use it.
#pragma once

#include "core/text/marked_text.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace luna::text::jinja {

struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

/// A name or member that was not there. Prints as nothing; most uses of it are errors.
struct Undefined {
  std::shared_ptr<const std::string> complaint;  // "'x' is undefined"
};

struct None {};

enum class Kind : std::uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  text,
  list,
  dict,
  name_space,
  callable,
  loop
};

/// A value; the containers are shared, as in Python, and never change after they were made (the
/// reference runs templates in an immutable sandbox), but for namespaces.
class Value {
 public:
  Value() = default;  // undefined without a complaint
  static Value undefined(std::string complaint);
  static Value none(bool trusted = true) { return Value(None{}, trusted); }
  static Value boolean(bool value, bool trusted = true) { return Value(value, trusted); }
  static Value integer(std::int64_t value, bool trusted = true) { return Value(value, trusted); }
  static Value real(double value, bool trusted = true) { return Value(value, trusted); }
  static Value text(MarkedText value);
  static Value text(std::string_view value, bool trusted);
  static Value of(std::shared_ptr<List> list) { return Value(std::move(list), true); }
  static Value of(std::shared_ptr<Dict> dict) { return Value(std::move(dict), true); }
  static Value of(std::shared_ptr<Namespace> space) { return Value(std::move(space), true); }
  static Value of(std::shared_ptr<const Callable> callable) {
    return Value(std::move(callable), true);
  }
  static Value of(std::shared_ptr<Loop> loop) { return Value(std::move(loop), true); }

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is(Kind wanted) const { return kind() == wanted; }
  [[nodiscard]] bool is_defined() const { return !is(Kind::undefined); }
  [[nodiscard]] bool is_number() const {
    return is(Kind::integer) || is(Kind::real) || is(Kind::boolean);
  }
  /// Whether what this prints may be trusted; texts and containers know it by themselves.
  [[nodiscard]] bool trusted() const { return trusted_; }

  // Each may be called only where kind() says so.
  [[nodiscard]] const Undefined& as_undefined() const { return *std::get_if<Undefined>(&data_); }
  [[nodiscard]] bool as_boolean() const { return *std::get_if<bool>(&data_); }
  [[nodiscard]] const MarkedText& as_text() const { return **std::get_if<TextPtr>(&data_); }
  [[nodiscard]] const std::string& bytes() const { return as_text().bytes(); }
  [[nodiscard]] List& as_list() const { return **std::get_if<std::shared_ptr<List>>(&data_); }
  [[nodiscard]] const Dict& as_dict() const { return **std::get_if<std::shared_ptr<Dict>>(&data_); }
  [[nodiscard]] Namespace& as_namespace() const {
    return **std::get_if<std::shared_ptr<Namespace>>(&data_);
  }
  [[nodiscard]] const Callable& as_callable() const {
    return **std::get_if<std::shared_ptr<const Callable>>(&data_);
  }
  [[nodiscard]] Loop& as_loop() const { return *shared_loop(); }
  [[nodiscard]] const std::shared_ptr<Loop>& shared_loop() const {
    return *std::get_if<std::shared_ptr<Loop>>(&data_);
  }
  /// An integer or boolean.
  [[nodiscard]] std::int64_t as_integer() const;
  /// Any number.
  [[nodiscard]] double as_real() const;
  [[nodiscard]] bool is_integer_like() const { return is(Kind::integer) || is(Kind::boolean); }

  /// `is` of Python: the same object.
  [[nodiscard]] bool is_same_object(const Value& other) const;

 private:
  using TextPtr = std::shared_ptr<const MarkedText>;
  // The order is Kind's.
  using Data = std::variant<Undefined,
                            None,
                            bool,
                            std::int64_t,
                            double,
                            TextPtr,
                            std::shared_ptr<List>,
                            std::shared_ptr<Dict>,
                            std::shared_ptr<Namespace>,
                            std::shared_ptr<const Callable>,
                            std::shared_ptr<Loop>>;
  template <typename T>
  Value(T data, bool trusted) : data_(std::move(data)), trusted_(trusted) {}

  Data data_;
  bool trusted_ = true;
};

enum class ListKind : std::uint8_t { list, tuple, generator, range, keys, values, items };

/// A sequence of Python: one type, told apart by `kind` where the language tells them apart.
struct List {
  ListKind kind = ListKind::list;
  std::vector<Value> items;
  std::size_t n_taken = 0;   // of a generator, whose items are there once
  bool trusted = true;       // what brackets and commas count as when printed
  std::uint32_t depth = 1;   // containers inside each other; bounded, for recursion over values
  std::uint64_t weight = 1;  // values and bytes inside, counted as often as a walk meets them
  std::int64_t range_start = 0, range_stop = 0, range_step = 1;

  [[nodiscard]] bool is_indexable() const {
    return kind == ListKind::list || kind == ListKind::tuple || kind == ListKind::range;
  }
};

/// An ordered mapping.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string, std::size_t> index;  // by encoded key
  bool trusted = true;
  std::uint32_t depth = 1;
  std::uint64_t weight = 1;

  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  /// False where the key cannot be one (a list, a dictionary).
  bool set(const Value& key, Value value);
};

/// What `namespace()` makes: the only thing a template can change.
struct Namespace {
  std::vector<std::pair<std::string, Value>> entries;
  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

struct MacroCode;  // of the parser
struct Scope;      // of the interpreter

enum class CallableKind : std::uint8_t { macro, function, method, loop_method };

/// Something that can be called.
struct Callable {
  CallableKind kind = CallableKind::function;
  std::string name;                 // of a function or method
  Value subject;                    // of a method: what it is bound to
  const MacroCode* code = nullptr;  // of a macro: lives as long as the template
  Scope* home = nullptr;            // of a macro: where it was defined; lives until the render ends
};

/// The `loop` variable.
struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;  // from 0
  std::size_t depth = 1;
  std::optional<Value> last_checked;  // of loop.changed
};

/// Containers inside each other at most this deep, so that walking a value needs little stack.
constexpr std::uint32_t kValueDepthMax = 100;

/// The depth of a value: 0 for what holds nothing.
std::uint32_t depth_of(const Value& value);

/// What a walk over a value costs: its values and bytes. Shared parts count each time.
std::uint64_t weight_of(const Value& value);

std::shared_ptr<List> make_list(std::vector<Value> items, ListKind kind = ListKind::list);

/// Truth of Python: empty and zero are false; a generator is true.
bool is_truthy(const Value& value);

/// `==` of Python.
bool is_equal(const Value& a, const Value& b);

/// `<` of Python: -1, 0, 1; nullopt where the two have no order.
std::optional<int> compare(const Value& a, const Value& b);

/// The name of the value's type in Python.
std::string_view type_name(const Value& value);

}  // namespace luna::text::jinja
