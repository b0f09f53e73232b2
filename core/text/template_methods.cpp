// Methods of lists and mappings, and the functions that every template may call.
#include "core/text/template_interpreter.hpp"
#include "core/text/template_print.hpp"

#include <algorithm>
#include <array>
#include <ctime>

namespace luna::text::jinja {
namespace {

// The sandbox lets a template name these, but not call them: they would change a value.
constexpr std::array<std::string_view, 5> kDictChanges = {
    "clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 8> kListChanges = {
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 5> kDictMethods = {"copy", "get", "items", "keys", "values"};
constexpr std::array<std::string_view, 3> kListMethods = {"copy", "count", "index"};

template <std::size_t n>
bool is_one_of(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Error no_method(Interpreter& in, const Value& subject, std::string_view name) {
  return in.error("'" + std::string(type_name(subject)) + " object' has no method '" +
                  std::string(name) + "'");
}

Result<Value> call_dict_method(Interpreter& in,
                               const Value& subject,
                               std::string_view name,
                               const Arguments& arguments) {
  const Dict& dict = subject.as_dict();
  if (name == "get") {
    LUNA_TRY(const BoundArguments bound, in.bind("get", "key default?", arguments));
    LUNA_TRY(in.spend(weight_of(bound[0])));
    if (const Value* found = dict.find(bound[0])) return *found;
    return bound.has(1) ? bound[1] : Value::none();
  }
  LUNA_TRY(in.bind(name, "", arguments));
  if (name == "copy") return subject;  // nothing ever changes either
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    if (name == "items") {
      LUNA_TRY(Value pair, in.list({key, value}, ListKind::tuple));
      items.push_back(std::move(pair));
    } else {
      items.push_back(name == "keys" ? key : value);
    }
  }
  const ListKind kind = name == "items"  ? ListKind::items
                        : name == "keys" ? ListKind::keys
                                         : ListKind::values;
  LUNA_TRY(Value view, in.list(std::move(items), kind));
  view.as_list().trusted = dict.trusted;
  return view;
}

Result<Value> call_list_method(Interpreter& in,
                               const Value& subject,
                               std::string_view name,
                               const Arguments& arguments) {
  const List& list = subject.as_list();
  if (name == "copy") return subject;
  LUNA_TRY(const BoundArguments bound, in.bind(name, "value", arguments));
  LUNA_TRY(in.spend(list.weight));
  if (name == "count") {
    const auto n = std::count_if(list.items.begin(), list.items.end(), [&bound](const Value& item) {
      return is_equal(item, bound[0]);
    });
    return Value::integer(n);
  }
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (is_equal(list.items[i], bound[0])) return Value::integer(static_cast<std::int64_t>(i));
  }
  return in.error("the value is not in the list");
}

// The sandbox of the reference has the same limit.
constexpr std::int64_t kRangeItemsMax = 100000;

Result<Value> make_range(Interpreter& in, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("range", "start stop? step?", arguments));
  LUNA_TRY(const std::int64_t first, in.integer(bound, 0, 0));
  LUNA_TRY(const std::int64_t second, in.integer(bound, 1, 0));
  LUNA_TRY(const std::int64_t step, in.integer(bound, 2, 1));
  if (step == 0) return in.error("range() arg 3 must not be zero");
  const std::int64_t start = bound.has(1) ? first : 0;
  const std::int64_t stop = bound.has(1) ? second : first;
  std::vector<Value> items;
  for (std::int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<std::int64_t>(items.size()) == kRangeItemsMax) {
      return in.error("range too big; at most " + std::to_string(kRangeItemsMax) + " items");
    }
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  LUNA_TRY(Value range, in.list(std::move(items), ListKind::range));
  range.as_list().range_start = start;
  range.as_list().range_stop = stop;
  range.as_list().range_step = step;
  return range;
}

/// Adds the entries of a mapping, or of a list of pairs.
Result<void> add_entries(Interpreter& in, const Value& source, Dict& to) {
  if (source.is(Kind::dict)) {
    for (const auto& [key, value] : source.as_dict().entries)
      to.set(key, value);
    return {};
  }
  LUNA_TRY(const std::vector<Value> pairs, in.items_of(source));
  for (const Value& pair : pairs) {
    LUNA_TRY(const std::vector<Value> parts, in.items_of(pair));
    if (parts.size() != 2 || !to.set(parts[0], parts[1]))
      return in.error("a mapping is made of pairs of a key and a value");
  }
  return {};
}

/// The entries of a mapping or of pairs, then the keywords.
Result<std::shared_ptr<Dict>> merged_entries(Interpreter& in, const Arguments& arguments) {
  auto made = std::make_shared<Dict>();
  if (arguments.positional.size() > 1) return in.error("at most one positional argument is taken");
  if (!arguments.positional.empty()) LUNA_TRY(add_entries(in, arguments.positional[0], *made));
  for (const auto& [key, value] : arguments.keywords)
    made->set(Value::text(key, true), value);
  LUNA_TRY(in.spend(made->weight));
  return made;
}

Result<Value> make_dict(Interpreter& in, const Arguments& arguments) {
  LUNA_TRY(std::shared_ptr<Dict> made, merged_entries(in, arguments));
  return in.dict(std::move(made));
}

Result<Value> make_space(Interpreter& in, const Arguments& arguments) {
  LUNA_TRY(const std::shared_ptr<Dict> made, merged_entries(in, arguments));
  std::vector<std::pair<std::string, Value>> entries;
  for (const auto& [key, value] : made->entries) {
    if (!key.is(Kind::text)) return in.error("the names of a namespace must be strings");
    entries.emplace_back(key.bytes(), value);
  }
  return in.make_namespace(std::move(entries));
}

Result<Value> raise(Interpreter& in, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("raise_exception", "message", arguments));
  LUNA_TRY(const MarkedText message, in.printed(bound[0]));
  return in.error(message.bytes());
}

Result<Value> strftime_now(Interpreter& in, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("strftime_now", "format", arguments));
  if (!bound[0].is(Kind::text)) return in.error("strftime_now needs a string");
  const std::string& format = bound[0].bytes();
  constexpr std::size_t kFormatBytesMax = 256;
  if (format.size() > kFormatBytesMax || format.find('\0') != std::string::npos) {
    return in.error("strftime_now: the format is too long or holds a zero byte");
  }
  const std::time_t seconds = std::chrono::system_clock::to_time_t(in.now());
  std::tm local{};
  if (localtime_r(&seconds, &local) == nullptr) return in.error("strftime_now: no local time");
  // A directive may have microseconds, which strftime of C does not know.
  const auto since =
      std::chrono::duration_cast<std::chrono::microseconds>(in.now().time_since_epoch());
  std::string micros = std::to_string((since.count() % 1000000 + 1000000) % 1000000);
  micros.insert(0, 6 - micros.size(), '0');
  std::string known = format;
  for (std::size_t at = 0; (at = known.find('%', at)) != std::string::npos; at += 2) {
    if (at + 1 < known.size() && known[at + 1] == 'f') {
      known.replace(at, 2, micros);
      at += micros.size() - 2;
    }
  }
  // At most some twenty characters a directive; a sign in front tells an empty result from none.
  std::array<char, 16384> buffer{};
  const std::size_t n = std::strftime(buffer.data(), buffer.size(), ("." + known).c_str(), &local);
  if (n == 0) return in.error("strftime_now: the result is too long");
  return in.text(
      MarkedText(std::string(buffer.data() + 1, n - 1), bound[0].as_text().all_trusted()));
}

struct NamedFunction {
  std::string_view name;
  Result<Value> (*function)(Interpreter&, const Arguments&);
};
constexpr std::array kFunctions = {
    NamedFunction{"range", make_range},
    NamedFunction{"dict", make_dict},
    NamedFunction{"namespace", make_space},
    NamedFunction{"raise_exception", raise},
    NamedFunction{"strftime_now", strftime_now},
};

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::text:
      return has_text_method(name);
    case Kind::dict:
      return is_one_of(kDictMethods, name) || is_one_of(kDictChanges, name);
    case Kind::list:
      if (value.as_list().kind == ListKind::tuple) return name == "count" || name == "index";
      return value.as_list().kind == ListKind::list &&
             (is_one_of(kListMethods, name) || is_one_of(kListChanges, name));
    default:
      return false;
  }
}

Result<Value> call_method(Interpreter& interpreter,
                          const Value& subject,
                          std::string_view name,
                          const Arguments& arguments) {
  switch (subject.kind()) {
    case Kind::text:
      LUNA_TRY(interpreter.spend(subject.as_text().size()));
      return call_text_method(interpreter, subject.as_text(), name, arguments);
    case Kind::dict:
      if (is_one_of(kDictChanges, name)) break;
      return call_dict_method(interpreter, subject, name, arguments);
    case Kind::list:
      if (is_one_of(kListChanges, name)) break;
      return call_list_method(interpreter, subject, name, arguments);
    default:
      return no_method(interpreter, subject, name);
  }
  return interpreter.error("a template may not change values: '" + std::string(name) + "' of '" +
                           std::string(type_name(subject)) + "'");
}

bool is_function(std::string_view name) {
  return std::any_of(kFunctions.begin(), kFunctions.end(), [name](const NamedFunction& entry) {
    return entry.name == name;
  });
}

Result<Value> call_function(Interpreter& interpreter,
                            std::string_view name,
                            const Arguments& arguments) {
  for (const NamedFunction& entry : kFunctions) {
    if (entry.name == name) return entry.function(interpreter, arguments);
  }
  return interpreter.error("no function named '" + std::string(name) + "'");
}

}  // namespace luna::text::jinja
