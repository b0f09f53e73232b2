// map, select, reject and their kin: filters that apply other filters and tests.
#include "core/text/template_interpreter.hpp"

#include <array>

namespace luna::text::jinja {
namespace {

/// The items of a value; what is false has none, even where it could not be looped over.
Result<std::vector<Value>> items_if_true(Interpreter& in, const Value& subject) {
  if (!is_truthy(subject)) return std::vector<Value>();
  return in.items_of(subject);
}

Result<Value> map(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const std::vector<Value> items, items_if_true(in, subject));
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    LUNA_TRY(const BoundArguments bound, in.bind("map", "attribute default?", arguments));
    for (const Value& item : items) {
      LUNA_TRY(Value found, in.attribute_path(item, bound[0]));
      if (!found.is_defined() && bound.has(1)) found = bound[1];
      mapped.push_back(std::move(found));
    }
    return in.list(std::move(mapped), ListKind::generator);
  }
  if (!arguments.positional[0].is(Kind::text)) return in.error("map needs the name of a filter");
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : items) {
    LUNA_TRY(in.spend(Interpreter::kStepUnits));
    LUNA_TRY(Value made, in.filter(arguments.positional[0].bytes(), item, rest));
    mapped.push_back(std::move(made));
  }
  return in.list(std::move(mapped), ListKind::generator);
}

struct Selection {
  bool by_attribute = false;
  bool keeps = true;  // what passes the test, or what fails it
};

Result<Value> choose(Interpreter& in,
                     const Value& subject,
                     const Arguments& arguments,
                     Selection selection) {
  Arguments rest = arguments;
  Value path;
  if (selection.by_attribute) {
    if (rest.positional.empty()) return in.error("missing parameter for attribute name");
    path = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  std::string test;
  if (!rest.positional.empty()) {
    if (!rest.positional[0].is(Kind::text)) return in.error("the name of a test is needed");
    test = rest.positional[0].bytes();
    rest.positional.erase(rest.positional.begin());
  }
  LUNA_TRY(const std::vector<Value> items, items_if_true(in, subject));
  std::vector<Value> kept;
  for (const Value& item : items) {
    LUNA_TRY(in.spend(Interpreter::kStepUnits));
    Value tested = item;
    if (selection.by_attribute) {
      LUNA_TRY(tested, in.attribute_path(item, path));
    }
    bool passes = is_truthy(tested);
    if (!test.empty()) {
      LUNA_TRY(passes, in.test(test, tested, rest));
    }
    if (passes == selection.keeps) kept.push_back(item);
  }
  return in.list(std::move(kept), ListKind::generator);
}

Result<Value> select(Interpreter& in, const Value& subject, const Arguments& arguments) {
  return choose(in, subject, arguments, {.by_attribute = false, .keeps = true});
}

Result<Value> reject(Interpreter& in, const Value& subject, const Arguments& arguments) {
  return choose(in, subject, arguments, {.by_attribute = false, .keeps = false});
}

Result<Value> selectattr(Interpreter& in, const Value& subject, const Arguments& arguments) {
  return choose(in, subject, arguments, {.by_attribute = true, .keeps = true});
}

Result<Value> rejectattr(Interpreter& in, const Value& subject, const Arguments& arguments) {
  return choose(in, subject, arguments, {.by_attribute = true, .keeps = false});
}

constexpr std::array kFilters = {
    NamedFilter{"map", map},
    NamedFilter{"select", select},
    NamedFilter{"reject", reject},
    NamedFilter{"selectattr", selectattr},
    NamedFilter{"rejectattr", rejectattr},
};

}  // namespace

std::span<const NamedFilter> selection_filters() {
  return kFilters;
}

}  // namespace luna::text::jinja
