// JSON text to values, exactly, and strings to JSON text.
#pragma once

#include <luna/result.hpp>

#include <boost/json/fwd.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace luna::text {

/// Parses one JSON value. Unlike boost::json::parse of 1.81 its real numbers are the nearest ones,
/// so that they print as the digits they were read from.
///
/// out        set where all is well; its storage is the default one
/// depth_max  levels of arrays and objects
/// Errors     corrupt (where and why; too many levels; an integer of more than 64 bits)
Result<void> parse_json(std::string_view text, boost::json::value& out, std::size_t depth_max = 32);

/// Appends the text as a JSON string, quotes included; what JSON lets stand stands as it is.
///
/// text   valid UTF-8
void append_json_string(std::string& out, std::string_view text);

}  // namespace luna::text
