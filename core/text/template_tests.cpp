// The tests of the template language: what follows `is`.
#include "core/text/marked_text_ops.hpp"
#include "core/text/python_text.hpp"
#include "core/text/template_interpreter.hpp"
#include "core/text/utf8.hpp"

#include <array>

namespace luna::text::jinja {
namespace {

using PlainTest = bool (*)(const Value&);
struct NamedPlainTest {
  std::string_view name;
  PlainTest test;
};

bool is_sequence(const Value& v) {
  if (v.is(Kind::list)) {
    return v.as_list().is_indexable();
  }
  return v.is(Kind::text) || v.is(Kind::dict) || v.is(Kind::undefined);
}

bool is_iterable(const Value& v) {
  return v.is(Kind::list) || v.is(Kind::text) || v.is(Kind::dict) || v.is(Kind::undefined) ||
         v.is(Kind::loop);
}

/// str.islower(), str.isupper(): there is such a letter, and none of the other case.
bool has_only_case(const Value& v, bool upper) {
  if (!v.is(Kind::text)) return false;
  bool found = false;
  for (std::size_t pos = 0; pos < v.bytes().size();) {
    const Utf8Step step = utf8_step(v.bytes(), pos);
    pos += step.n_bytes;
    if (upper ? is_python_lower(step.point) : is_python_upper(step.point)) return false;
    found = found || (upper ? is_python_upper(step.point) : is_python_lower(step.point));
  }
  return found;
}

constexpr std::array kPlainTests = {
    NamedPlainTest{"defined", [](const Value& v) { return v.is_defined(); }},
    NamedPlainTest{"undefined", [](const Value& v) { return !v.is_defined(); }},
    NamedPlainTest{"none", [](const Value& v) { return v.is(Kind::none); }},
    NamedPlainTest{"boolean", [](const Value& v) { return v.is(Kind::boolean); }},
    NamedPlainTest{"true", [](const Value& v) { return v.is(Kind::boolean) && v.as_boolean(); }},
    NamedPlainTest{"false", [](const Value& v) { return v.is(Kind::boolean) && !v.as_boolean(); }},
    NamedPlainTest{"integer", [](const Value& v) { return v.is(Kind::integer); }},
    NamedPlainTest{"float", [](const Value& v) { return v.is(Kind::real); }},
    NamedPlainTest{"number", [](const Value& v) { return v.is_number(); }},
    NamedPlainTest{"string", [](const Value& v) { return v.is(Kind::text); }},
    NamedPlainTest{"mapping", [](const Value& v) { return v.is(Kind::dict); }},
    NamedPlainTest{"sequence", is_sequence},
    NamedPlainTest{"iterable", is_iterable},
    NamedPlainTest{"callable", [](const Value& v) { return v.is(Kind::callable); }},
    NamedPlainTest{"escaped", [](const Value&) { return false; }},
    NamedPlainTest{"lower", [](const Value& v) { return has_only_case(v, false); }},
    NamedPlainTest{"upper", [](const Value& v) { return has_only_case(v, true); }},
};

struct NamedComparison {
  std::string_view name;
  Op op;
};
constexpr std::array kComparisons = {
    NamedComparison{"eq", Op::equal},
    NamedComparison{"equalto", Op::equal},
    NamedComparison{"==", Op::equal},
    NamedComparison{"ne", Op::not_equal},
    NamedComparison{"!=", Op::not_equal},
    NamedComparison{"lt", Op::less},
    NamedComparison{"lessthan", Op::less},
    NamedComparison{"<", Op::less},
    NamedComparison{"le", Op::less_equal},
    NamedComparison{"<=", Op::less_equal},
    NamedComparison{"gt", Op::greater},
    NamedComparison{"greaterthan", Op::greater},
    NamedComparison{">", Op::greater},
    NamedComparison{"ge", Op::greater_equal},
    NamedComparison{">=", Op::greater_equal},
    NamedComparison{"in", Op::in},
};

/// Whether a filter, or a test, of the name is there.
bool has_filter(std::string_view name) {
  for (const auto& filters :
       {text_filters(), value_filters(), sequence_filters(), selection_filters()}) {
    for (const NamedFilter& entry : filters) {
      if (entry.name == name) return true;
    }
  }
  return false;
}

bool has_test(std::string_view name) {
  for (const NamedPlainTest& entry : kPlainTests) {
    if (entry.name == name) return true;
  }
  for (const NamedComparison& entry : kComparisons) {
    if (entry.name == name) return true;
  }
  constexpr std::array<std::string_view, 6> kOthers = {
      "odd", "even", "divisibleby", "sameas", "filter", "test"};
  for (const std::string_view other : kOthers) {
    if (other == name) return true;
  }
  return false;
}

/// Tests of a number's remainder.
Result<bool> test_remainder(Interpreter& in,
                            const Value& subject,
                            const Value& divisor,
                            std::int64_t wanted) {
  LUNA_TRY(const Value rest, apply_binary(in, Op::modulo, subject, divisor));
  return is_equal(rest, Value::integer(wanted));
}

}  // namespace

Result<bool> Interpreter::test(std::string_view name,
                               const Value& subject,
                               const Arguments& arguments) {
  for (const NamedPlainTest& entry : kPlainTests) {
    if (entry.name != name) continue;
    LUNA_TRY(bind(name, "", arguments));
    return entry.test(subject);
  }
  for (const NamedComparison& entry : kComparisons) {
    if (entry.name != name) continue;
    LUNA_TRY(const BoundArguments bound, bind(name, "other", arguments));
    return apply_comparison(*this, entry.op, subject, bound[0]);
  }
  if (name == "odd" || name == "even") {
    LUNA_TRY(bind(name, "", arguments));
    return test_remainder(*this, subject, Value::integer(2), name == "odd" ? 1 : 0);
  }
  if (name == "divisibleby") {
    LUNA_TRY(const BoundArguments bound, bind(name, "num", arguments));
    return test_remainder(*this, subject, bound[0], 0);
  }
  if (name == "sameas") {
    LUNA_TRY(const BoundArguments bound, bind(name, "other", arguments));
    return subject.is_same_object(bound[0]);
  }
  if (name == "filter") return subject.is(Kind::text) && has_filter(subject.bytes());
  if (name == "test") return subject.is(Kind::text) && has_test(subject.bytes());
  return error("no test named '" + std::string(name) + "'");
}

}  // namespace luna::text::jinja
