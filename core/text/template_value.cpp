#include "core/text/template_value.hpp"

#include <algorithm>
#include <cmath>

namespace luna::text::jinja {
namespace {

/// A key as text: equal keys of Python (1, 1.0, True) have equal texts. nullopt: cannot be a key.
std::optional<std::string> encoded_key(const Value& key) {
  switch (key.kind()) {
    case Kind::text:
      return "s" + key.bytes();
    case Kind::none:
      return "n";
    case Kind::boolean:
    case Kind::integer:
      return "i" + std::to_string(key.as_integer());
    case Kind::real: {
      const double value = key.as_real();
      if (value == std::floor(value) && std::abs(value) < 9e15) {
        return "i" + std::to_string(static_cast<std::int64_t>(value));
      }
      return "d" + std::to_string(value);
    }
    case Kind::list: {
      if (key.as_list().kind != ListKind::tuple) return std::nullopt;
      std::string all = "t";
      for (const Value& item : key.as_list().items) {
        const auto part = encoded_key(item);
        if (!part) return std::nullopt;
        all += std::to_string(part->size()) + ":" + *part;
      }
      return all;
    }
    default:
      return std::nullopt;
  }
}

// Weights stop here, far above every budget and far below overflow.
constexpr std::uint64_t kWeightMax = std::uint64_t{1} << 48U;

void add_weight(std::uint64_t& weight, const Value& value) {
  weight = std::min(kWeightMax, weight + weight_of(value));
}

template <typename T>
int order(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

std::optional<int> compare_lists(const List& a, const List& b) {
  if (a.kind != b.kind || !a.is_indexable() || a.kind == ListKind::range) return std::nullopt;
  const std::size_t n = std::min(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < n; ++i) {
    if (!is_equal(a.items[i], b.items[i])) return compare(a.items[i], b.items[i]);
  }
  return order(a.items.size(), b.items.size());
}

bool are_equal_lists(const List& a, const List& b) {
  if (a.kind != b.kind || !a.is_indexable()) return &a == &b;
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), is_equal);
}

bool are_equal_dicts(const Dict& a, const Dict& b) {
  return a.entries.size() == b.entries.size() &&
         std::all_of(a.entries.begin(), a.entries.end(), [&b](const auto& entry) {
           const Value* other = b.find(entry.first);
           return other != nullptr && is_equal(entry.second, *other);
         });
}

}  // namespace

Value Value::undefined(std::string complaint) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(complaint))}, true);
}

Value Value::text(MarkedText value) {
  return Value(std::make_shared<const MarkedText>(std::move(value)), true);
}

Value Value::text(std::string_view value, bool trusted) {
  return text(MarkedText(std::string(value), trusted));
}

std::int64_t Value::as_integer() const {
  return is(Kind::boolean) ? static_cast<std::int64_t>(as_boolean())
                           : *std::get_if<std::int64_t>(&data_);
}

double Value::as_real() const {
  return is(Kind::real) ? *std::get_if<double>(&data_) : static_cast<double>(as_integer());
}

bool Value::is_same_object(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::list:
      return &as_list() == &other.as_list();
    case Kind::dict:
      return &as_dict() == &other.as_dict();
    case Kind::name_space:
      return &as_namespace() == &other.as_namespace();
    case Kind::callable:
      return &as_callable() == &other.as_callable();
    case Kind::loop:
      return &as_loop() == &other.as_loop();
    default:
      return is_equal(*this, other);
  }
}

const Value* Dict::find(const Value& key) const {
  const auto encoded = encoded_key(key);
  if (!encoded) return nullptr;
  const auto found = index.find(*encoded);
  return found == index.end() ? nullptr : &entries[found->second].second;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index.find("s" + std::string(key));
  return found == index.end() ? nullptr : &entries[found->second].second;
}

bool Dict::set(const Value& key, Value value) {
  auto encoded = encoded_key(key);
  if (!encoded) return false;
  depth = std::max({depth, depth_of(key) + 1, depth_of(value) + 1});
  add_weight(weight, key);
  add_weight(weight, value);
  const auto [place, is_new] = index.emplace(std::move(*encoded), entries.size());
  if (is_new) {
    entries.emplace_back(key, std::move(value));
  } else {
    entries[place->second].second = std::move(value);
  }
  return true;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [key, value] : entries) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& [key, old] : entries) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::string(name), std::move(value));
}

std::uint32_t depth_of(const Value& value) {
  if (value.is(Kind::list)) return value.as_list().depth;
  if (value.is(Kind::dict)) return value.as_dict().depth;
  if (value.is(Kind::callable)) return depth_of(value.as_callable().subject) + 1;
  return 0;
}

std::uint64_t weight_of(const Value& value) {
  if (value.is(Kind::text)) return 1 + value.bytes().size();
  if (value.is(Kind::list)) return value.as_list().weight;
  if (value.is(Kind::dict)) return value.as_dict().weight;
  return 1;
}

std::shared_ptr<List> make_list(std::vector<Value> items, ListKind kind) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  list->items = std::move(items);
  for (const Value& item : list->items) {
    list->depth = std::max(list->depth, depth_of(item) + 1);
    add_weight(list->weight, item);
  }
  return list;
}

bool is_truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return value.as_boolean();
    case Kind::integer:
      return value.as_integer() != 0;
    case Kind::real:
      return value.as_real() != 0;
    case Kind::text:
      return !value.as_text().empty();
    case Kind::list:
      return value.as_list().kind == ListKind::generator || !value.as_list().items.empty();
    case Kind::dict:
      return !value.as_dict().entries.empty();
    case Kind::loop:
    case Kind::name_space:
    case Kind::callable:
      return true;
  }
  return true;
}

bool is_equal(const Value& a, const Value& b) {
  if (a.is_integer_like() && b.is_integer_like()) return a.as_integer() == b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::text:
      return a.bytes() == b.bytes();
    case Kind::list:
      return are_equal_lists(a.as_list(), b.as_list());
    case Kind::dict:
      return are_equal_dicts(a.as_dict(), b.as_dict());
    default:
      return a.is_same_object(b);
  }
}

std::optional<int> compare(const Value& a, const Value& b) {
  if (a.is_integer_like() && b.is_integer_like()) return order(a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) {
    return order(a.as_real(), b.as_real());
  }
  // The order of UTF-8 bytes is that of code points.
  if (a.is(Kind::text) && b.is(Kind::text)) return order(a.bytes(), b.bytes());
  if (a.is(Kind::list) && b.is(Kind::list)) return compare_lists(a.as_list(), b.as_list());
  return std::nullopt;
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::text:
      return "str";
    case Kind::dict:
      return "dict";
    case Kind::name_space:
      return "Namespace";
    case Kind::callable:
      return "function";
    case Kind::loop:
      return "LoopContext";
    case Kind::list:
      break;
  }
  switch (value.as_list().kind) {
    case ListKind::list:
      return "list";
    case ListKind::tuple:
      return "tuple";
    case ListKind::generator:
      return "generator";
    case ListKind::range:
      return "range";
    case ListKind::keys:
      return "dict_keys";
    case ListKind::values:
      return "dict_values";
    case ListKind::items:
      return "dict_items";
  }
  return "object";
}

}  // namespace luna::text::jinja
