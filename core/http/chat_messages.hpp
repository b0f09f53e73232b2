// The chat half of a body: messages, tools and their like, as variables of a chat template.
#pragma once

#include "core/http/field_reader.hpp"

#include <boost/json/object.hpp>

namespace luna::http {

/// Checks messages, tools, tool_choice and chat_template_kwargs, and brings them into the form that
/// templates expect: text parts joined, `developer` as `system`, tool arguments as objects.
boost::json::object read_template_variables(FieldReader& fields);

}  // namespace luna::http
