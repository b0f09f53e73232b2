// JSON text to values, exactly.
#pragma once

#include <luna/result.hpp>

#include <boost/json/fwd.hpp>

#include <string_view>

namespace luna::text {

/// Parses one JSON value. Unlike boost::json::parse of 1.81 its real numbers are the nearest ones,
/// so that they print as the digits they were read from.
///
/// out      set where all is well; its storage is the default one
/// Errors   corrupt (where and why; more than 32 levels; an integer of more than 64 bits)
Result<void> parse_json(std::string_view text, boost::json::value& out);

}  // namespace luna::text
