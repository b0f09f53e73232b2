// How values look as text: str(), repr() and JSON of Python.
#pragma once

#include "core/text/template_value.hpp"

#include <optional>
#include <string>

namespace luna::text::jinja {

/// str(): texts as they are, containers by repr() of their parts.
MarkedText to_text(const Value& value);

/// repr().
MarkedText to_repr(const Value& value);

/// repr() of a float: the shortest digits that read back as it.
std::string real_as_text(double value);

/// Arguments of `tojson`, which are those of json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<MarkedText> indent;  // put once a level before each element
  MarkedText item_separator{", ", true};
  MarkedText key_separator{": ", true};
};

/// Errors  invalid_argument (a value that JSON has no form for)
Result<MarkedText> to_json(const Value& value, const JsonStyle& style);

}  // namespace luna::text::jinja
