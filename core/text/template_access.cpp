// How the interpreter reaches into values: members, items, iteration, calls, arguments.
#include "core/text/python_text.hpp"
#include "core/text/template_interpreter.hpp"
#include "core/text/template_print.hpp"

#include <algorithm>
#include <charconv>

namespace luna::text::jinja {
namespace {

Value no_member(const Value& owner, std::string_view name) {
  return Value::undefined("'" + std::string(type_name(owner)) + " object' has no attribute '" +
                          std::string(name) + "'");
}

Value bound_method(const Value& subject, std::string_view name, CallableKind kind) {
  auto method = std::make_shared<Callable>();
  method->kind = kind;
  method->name = name;
  method->subject = subject;
  return Value::of(std::shared_ptr<const Callable>(std::move(method)));
}

/// `loop.name`, or nothing.
std::optional<Value> loop_member(const Value& owner, std::string_view name) {
  const Loop& loop = owner.as_loop();
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto length = static_cast<std::int64_t>(loop.items.size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") {
    return index > 0 ? loop.items[loop.index - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < length ? loop.items[loop.index + 1]
                              : Value::undefined("there is no next item");
  }
  if (name == "cycle" || name == "changed") {
    return bound_method(owner, name, CallableKind::loop_method);
  }
  return std::nullopt;
}

/// getattr() of Python, without what the sandbox hides.
std::optional<Value> member(const Value& owner, std::string_view name) {
  if (owner.is(Kind::loop)) return loop_member(owner, name);
  if (owner.is(Kind::name_space)) {
    const Value* found = owner.as_namespace().find(name);
    if (found == nullptr) return std::nullopt;
    return *found;
  }
  if (owner.is(Kind::callable) && owner.as_callable().kind == CallableKind::macro &&
      name == "name") {
    return Value::text(owner.as_callable().name, true);
  }
  if (has_method(owner, name)) return bound_method(owner, name, CallableKind::method);
  return std::nullopt;
}

}  // namespace

Result<Value> Interpreter::attribute(const Value& owner, std::string_view name) {
  if (owner.is(Kind::undefined)) {
    const auto& complaint = owner.as_undefined().complaint;
    return error(complaint ? *complaint : "an undefined value has no attributes");
  }
  if (auto found = member(owner, name)) return std::move(*found);
  if (owner.is(Kind::dict)) {
    if (const Value* found = owner.as_dict().find(name)) return *found;
  }
  return no_member(owner, name);
}

Result<Value> Interpreter::item(const Value& owner, const Value& key) {
  if (owner.is(Kind::undefined)) return attribute(owner, "");
  if (owner.is(Kind::dict)) {
    LUNA_TRY(spend(weight_of(key)));
    if (const Value* found = owner.as_dict().find(key)) return *found;
  } else if (key.is_integer_like() && owner.is(Kind::list) && owner.as_list().is_indexable()) {
    const List& whole = owner.as_list();
    const auto n = static_cast<std::int64_t>(whole.items.size());
    const std::int64_t at = key.as_integer() < 0 ? key.as_integer() + n : key.as_integer();
    if (at >= 0 && at < n) return whole.items[static_cast<std::size_t>(at)];
  } else if (key.is_integer_like() && owner.is(Kind::text)) {
    const MarkedText& whole = owner.as_text();
    LUNA_TRY(spend(whole.size()));
    const std::vector<std::size_t> positions = char_positions(whole.bytes());
    const auto n = static_cast<std::int64_t>(positions.size() - 1);
    const std::int64_t at = key.as_integer() < 0 ? key.as_integer() + n : key.as_integer();
    if (at >= 0 && at < n) {
      const auto i = static_cast<std::size_t>(at);
      return text(whole.slice(positions[i], positions[i + 1]));
    }
  }
  if (key.is(Kind::text)) {
    if (auto found = member(owner, key.bytes())) return std::move(*found);
    return no_member(owner, key.bytes());
  }
  return Value::undefined("'" + std::string(type_name(owner)) + " object' has no element " +
                          to_repr(key).bytes().substr(0, 80));
}

Result<Value> Interpreter::attribute_path(const Value& value, const Value& path) {
  if (!path.is(Kind::text)) return item(value, path);
  Value at = value;
  std::string_view rest = path.bytes();
  for (bool more = true; more;) {
    const std::size_t dot = rest.find('.');
    more = dot != std::string_view::npos;
    const std::string_view part = rest.substr(0, dot);
    if (more) rest.remove_prefix(dot + 1);
    std::int64_t number = 0;
    const auto done = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_number = !part.empty() && part[0] != '-' && done.ec == std::errc() &&
                           done.ptr == part.data() + part.size();
    LUNA_TRY(at, item(at, is_number ? Value::integer(number) : Value::text(part, true)));
  }
  return at;
}

Result<std::vector<Value>> Interpreter::items_of(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::undefined:
      return items;
    case Kind::list: {
      List& list = value.as_list();
      LUNA_TRY(spend(kElementUnits * list.items.size()));
      if (list.kind != ListKind::generator) return list.items;
      return std::exchange(list.items, {});
    }
    case Kind::dict:
      LUNA_TRY(spend(kElementUnits * value.as_dict().entries.size()));
      for (const auto& entry : value.as_dict().entries)
        items.push_back(entry.first);
      return items;
    case Kind::text: {
      const MarkedText& whole = value.as_text();
      // Each character becomes a text of its own, which takes far more than a byte.
      LUNA_TRY(spend(4 * kElementUnits * whole.size()));
      const std::vector<std::size_t> at = char_positions(whole.bytes());
      for (std::size_t i = 0; i + 1 < at.size(); ++i) {
        items.push_back(Value::text(whole.slice(at[i], at[i + 1])));
      }
      return items;
    }
    default:
      return error("'" + std::string(type_name(value)) + "' object is not iterable");
  }
}

Result<MarkedText> Interpreter::printed(const Value& value) {
  LUNA_TRY(spend(weight_of(value)));
  return to_text(value);
}

Result<Value> Interpreter::call(const Value& callee, Arguments arguments) {
  if (callee.is(Kind::undefined)) {
    const auto& complaint = callee.as_undefined().complaint;
    return error(complaint ? *complaint : "an undefined value cannot be called");
  }
  if (!callee.is(Kind::callable)) {
    return error("'" + std::string(type_name(callee)) + "' object is not callable");
  }
  const Callable& callable = callee.as_callable();
  switch (callable.kind) {
    case CallableKind::macro:
      return call_macro(callable, std::move(arguments));
    case CallableKind::function:
      return call_function(*this, callable.name, arguments);
    case CallableKind::method:
      return call_method(*this, callable.subject, callable.name, arguments);
    case CallableKind::loop_method:
      return call_loop(callable, arguments);
  }
  return Value();
}

Result<Value> Interpreter::filter(std::string_view name,
                                  const Value& subject,
                                  const Arguments& arguments) {
  for (const auto& filters :
       {text_filters(), value_filters(), sequence_filters(), selection_filters()}) {
    for (const NamedFilter& entry : filters) {
      if (entry.name == name) return entry.filter(*this, subject, arguments);
    }
  }
  return error("no filter named '" + std::string(name) + "'");
}

Result<BoundArguments> Interpreter::bind(std::string_view callee,
                                         std::string_view signature,
                                         const Arguments& arguments) const {
  struct Slot {
    std::string_view name;
    bool optional;
  };
  std::vector<Slot> slots;
  while (!signature.empty()) {
    std::string_view name = signature.substr(0, signature.find(' '));
    signature.remove_prefix(std::min(signature.size(), name.size() + 1));
    const bool optional = name.ends_with('?');
    if (optional) name.remove_suffix(1);
    slots.push_back({name, optional});
  }
  BoundArguments bound(slots.size());
  if (arguments.positional.size() > slots.size()) {
    return error(std::string(callee) + " takes at most " + std::to_string(slots.size()) +
                 " arguments, " + std::to_string(arguments.positional.size()) + " were given");
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.set(i, arguments.positional[i]);
  }
  for (const auto& [key, value] : arguments.keywords) {
    std::size_t i = 0;
    while (i < slots.size() && slots[i].name != key)
      ++i;
    if (i == slots.size()) {
      return error(std::string(callee) + " got an unexpected keyword argument '" + key + "'");
    }
    if (bound.has(i)) return error(std::string(callee) + " got two values for '" + key + "'");
    bound.set(i, value);
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].optional && !bound.has(i)) {
      return error(std::string(callee) + " needs the argument '" + std::string(slots[i].name) +
                   "'");
    }
  }
  return bound;
}

Result<std::int64_t> Interpreter::integer(const BoundArguments& arguments,
                                          std::size_t i,
                                          std::int64_t otherwise) const {
  if (!arguments.has(i)) return otherwise;
  if (!arguments[i].is_integer_like()) {
    return error("an integer is needed, not '" + std::string(type_name(arguments[i])) + "'");
  }
  return arguments[i].as_integer();
}

}  // namespace luna::text::jinja
