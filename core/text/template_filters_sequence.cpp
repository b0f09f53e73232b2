// Filters over sequences.
#include "core/text/marked_text_ops.hpp"
#include "core/text/template_interpreter.hpp"
#include "core/text/template_print.hpp"

#include <algorithm>
#include <array>

namespace luna::text::jinja {
namespace {

/// What items are compared by: an attribute, in lower case unless the case counts.
Result<Value> sort_key(Interpreter& in, const Value& item, const Value* path, bool case_sensitive) {
  Value key = item;
  if (path != nullptr && !path->is(Kind::none)) {
    LUNA_TRY(key, in.attribute_path(item, *path));
  }
  if (case_sensitive || !key.is(Kind::text)) return key;
  return in.text(with_case(key.as_text(), LetterCase::lower));
}

struct Keyed {
  std::vector<Value> keys;
  Value item;
};

/// The items alone, in the order they have.
std::vector<Value> items_of(std::vector<Keyed> keyed) {
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& one : keyed)
    items.push_back(std::move(one.item));
  return items;
}

/// Sorts stably; an error where two keys have no order.
Result<void> sort_keyed(Interpreter& in, std::vector<Keyed>& items, bool reverse) {
  const Value* bad_left = nullptr;
  const Value* bad_right = nullptr;
  const auto order = [&](const Keyed& a, const Keyed& b) {
    for (std::size_t i = 0; i < a.keys.size(); ++i) {
      if (is_equal(a.keys[i], b.keys[i])) continue;
      const auto found = compare(a.keys[i], b.keys[i]);
      if (found) return *found;
      bad_left = &a.keys[i];
      bad_right = &b.keys[i];
      return 0;
    }
    return 0;
  };
  std::uint64_t weight = 0;
  for (const Keyed& item : items) {
    for (const Value& key : item.keys)
      weight += weight_of(key);
  }
  LUNA_TRY(in.spend(20 * weight));  // comparisons: at most the logarithm of what memory holds
  // An order that does not hold for all must not reach std::stable_sort: check neighbours first.
  for (std::size_t i = 1; i < items.size(); ++i)
    order(items[i - 1], items[i]);
  if (bad_left == nullptr) {
    std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
      return reverse ? order(b, a) < 0 : order(a, b) < 0;
    });
  }
  if (bad_left == nullptr) return {};
  return in.error("'<' not supported between instances of '" + std::string(type_name(*bad_left)) +
                  "' and '" + std::string(type_name(*bad_right)) + "'");
}

Result<Value> first(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(in.bind("first", "", arguments));
  LUNA_TRY(std::vector<Value> items, in.items_of(subject));
  if (items.empty()) return Value::undefined("No first item, sequence was empty.");
  Value taken = items.front();
  if (subject.is(Kind::list) && subject.as_list().kind == ListKind::generator) {
    items.erase(items.begin());
    subject.as_list().items = std::move(items);  // the rest is still there
  }
  return taken;
}

Result<Value> last(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(in.bind("last", "", arguments));
  if (subject.is(Kind::list) && subject.as_list().kind == ListKind::generator) {
    return in.error("'generator' object is not reversible");
  }
  LUNA_TRY(const std::vector<Value> items, in.items_of(subject));
  if (items.empty()) return Value::undefined("No last item, sequence was empty.");
  return items.back();
}

Result<Value> join(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("join", "d? attribute?", arguments));
  MarkedText separator;
  if (bound.has(0)) {
    LUNA_TRY(separator, in.printed(bound[0]));
  }
  LUNA_TRY(const std::vector<Value> items, in.items_of(subject));
  LUNA_TRY(in.spend(items.size() * separator.size()));
  MarkedText out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (bound.has(1) && !bound[1].is(Kind::none)) {
      LUNA_TRY(item, in.attribute_path(item, bound[1]));
    }
    if (i > 0) out.append(separator);
    LUNA_TRY(const MarkedText part, in.printed(item));
    out.append(part);
  }
  return in.text(std::move(out));
}

Result<Value> list(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(in.bind("list", "", arguments));
  LUNA_TRY(std::vector<Value> items, in.items_of(subject));
  return in.list(std::move(items));
}

Result<Value> reverse(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(in.bind("reverse", "", arguments));
  if (subject.is(Kind::text)) return in.text(reversed(subject.as_text()));
  LUNA_TRY(std::vector<Value> items, in.items_of(subject));
  std::reverse(items.begin(), items.end());
  return in.list(std::move(items), ListKind::generator);
}

Result<Value> sort(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound,
           in.bind("sort", "reverse? case_sensitive? attribute?", arguments));
  LUNA_TRY(const std::vector<Value> items, in.items_of(subject));
  std::vector<Value> paths;  // "a,b" sorts by a, then by b
  if (bound.has(2) && bound[2].is(Kind::text)) {
    for (const MarkedText& part : split(bound[2].as_text(), ",", items.max_size(), Side::left)) {
      paths.push_back(Value::text(part));
    }
  } else {
    paths.push_back(bound.has(2) ? bound[2] : Value::none());
  }
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    Keyed one{{}, item};
    for (const Value& path : paths) {
      LUNA_TRY(Value key, sort_key(in, item, &path, bound.flag(1, false)));
      one.keys.push_back(std::move(key));
    }
    keyed.push_back(std::move(one));
  }
  LUNA_TRY(sort_keyed(in, keyed, bound.flag(0, false)));
  return in.list(items_of(std::move(keyed)));
}

Result<Value> dictsort(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound,
           in.bind("dictsort", "case_sensitive? by? reverse?", arguments));
  if (!subject.is(Kind::dict)) return in.error("dictsort needs a mapping");
  const bool by_value = bound.has(1) && bound[1].is(Kind::text) && bound[1].bytes() == "value";
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : subject.as_dict().entries) {
    LUNA_TRY(Value pair, in.list({key, value}, ListKind::tuple));
    LUNA_TRY(Value sorts_by, sort_key(in, by_value ? value : key, nullptr, bound.flag(0, false)));
    keyed.push_back({{std::move(sorts_by)}, std::move(pair)});
  }
  LUNA_TRY(sort_keyed(in, keyed, bound.flag(2, false)));
  return in.list(items_of(std::move(keyed)));
}

Result<Value> unique(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("unique", "case_sensitive? attribute?", arguments));
  LUNA_TRY(const std::vector<Value> items, in.items_of(subject));
  Dict seen;
  std::vector<Value> kept;
  for (const Value& item : items) {
    const Value* path = bound.has(1) ? &bound[1] : nullptr;
    LUNA_TRY(const Value key, sort_key(in, item, path, bound.flag(0, false)));
    LUNA_TRY(in.spend(weight_of(key)));
    if (seen.find(key) != nullptr) continue;
    if (!seen.set(key, Value::none())) {
      return in.error("unhashable type: '" + std::string(type_name(key)) + "'");
    }
    kept.push_back(item);
  }
  return in.list(std::move(kept), ListKind::generator);
}

Result<Value> extreme(Interpreter& in,
                      const Value& subject,
                      const Arguments& arguments,
                      int wanted) {
  LUNA_TRY(const BoundArguments bound,
           in.bind("min or max", "case_sensitive? attribute?", arguments));
  LUNA_TRY(const std::vector<Value> items, in.items_of(subject));
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const Value* path = bound.has(1) ? &bound[1] : nullptr;
  std::size_t best = 0;
  LUNA_TRY(Value best_key, sort_key(in, items[0], path, bound.flag(0, false)));
  for (std::size_t i = 1; i < items.size(); ++i) {
    LUNA_TRY(Value key, sort_key(in, items[i], path, bound.flag(0, false)));
    LUNA_TRY(in.spend(weight_of(key)));
    const auto order = compare(key, best_key);
    if (!order) {
      return in.error("'" + std::string(type_name(key)) + "' and '" +
                      std::string(type_name(best_key)) + "' have no order");
    }
    if (*order * wanted > 0) {
      best = i;
      best_key = std::move(key);
    }
  }
  return items[best];
}

Result<Value> min(Interpreter& in, const Value& subject, const Arguments& arguments) {
  return extreme(in, subject, arguments, -1);
}

Result<Value> max(Interpreter& in, const Value& subject, const Arguments& arguments) {
  return extreme(in, subject, arguments, 1);
}

Result<Value> sum(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("sum", "attribute? start?", arguments));
  LUNA_TRY(const std::vector<Value> items, in.items_of(subject));
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  if (total.is(Kind::text)) return in.error("sum() can't sum strings");
  for (const Value& item : items) {
    Value part = item;
    if (bound.has(0) && !bound[0].is(Kind::none)) {
      LUNA_TRY(part, in.attribute_path(item, bound[0]));
    }
    LUNA_TRY(total, apply_binary(in, Op::add, total, part));
  }
  return total;
}

Result<Value> batch(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("batch", "linecount fill_with?", arguments));
  LUNA_TRY(const std::int64_t n_each, in.integer(bound, 0, 1));
  if (n_each < 1) return in.error("batch: linecount must be at least 1");
  LUNA_TRY(const std::vector<Value> items, in.items_of(subject));
  std::vector<Value> batches;
  std::vector<Value> current;
  for (const Value& item : items) {
    current.push_back(item);
    if (static_cast<std::int64_t>(current.size()) < n_each) continue;
    LUNA_TRY(Value full, in.list(std::exchange(current, {})));
    batches.push_back(std::move(full));
  }
  if (!current.empty()) {
    if (bound.has(1) && !bound[1].is(Kind::none)) {
      LUNA_TRY(in.spend(Interpreter::kElementUnits * std::min<std::uint64_t>(n_each, 1U << 30U)));
      current.resize(static_cast<std::size_t>(n_each), bound[1]);
    }
    LUNA_TRY(Value rest, in.list(std::move(current)));
    batches.push_back(std::move(rest));
  }
  return in.list(std::move(batches), ListKind::generator);
}

Result<Value> slice(Interpreter& in, const Value& subject, const Arguments& arguments) {
  LUNA_TRY(const BoundArguments bound, in.bind("slice", "slices fill_with?", arguments));
  LUNA_TRY(const std::int64_t n_slices, in.integer(bound, 0, 1));
  if (n_slices < 1) return in.error("slice: slices must be at least 1");
  LUNA_TRY(in.spend(4 * Interpreter::kElementUnits * std::min<std::uint64_t>(n_slices, 1U << 30U)));
  LUNA_TRY(const std::vector<Value> items, in.items_of(subject));
  const auto n = static_cast<std::int64_t>(items.size());
  const std::int64_t n_each = n / n_slices;
  const std::int64_t n_longer = n % n_slices;
  std::vector<Value> slices;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < n_slices; ++i) {
    const std::int64_t end = begin + n_each + (i < n_longer ? 1 : 0);
    std::vector<Value> part(items.begin() + begin, items.begin() + end);
    if (bound.has(1) && !bound[1].is(Kind::none) && i >= n_longer) part.push_back(bound[1]);
    LUNA_TRY(Value made, in.list(std::move(part)));
    slices.push_back(std::move(made));
    begin = end;
  }
  return in.list(std::move(slices), ListKind::generator);
}

constexpr std::array kFilters = {
    NamedFilter{"first", first},
    NamedFilter{"last", last},
    NamedFilter{"join", join},
    NamedFilter{"list", list},
    NamedFilter{"reverse", reverse},
    NamedFilter{"sort", sort},
    NamedFilter{"dictsort", dictsort},
    NamedFilter{"unique", unique},
    NamedFilter{"min", min},
    NamedFilter{"max", max},
    NamedFilter{"sum", sum},
    NamedFilter{"batch", batch},
    NamedFilter{"slice", slice},
};

}  // namespace

std::span<const NamedFilter> sequence_filters() {
  return kFilters;
}

}  // namespace luna::text::jinja
