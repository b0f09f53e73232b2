// Any bytes as the body of a request: a request within its limits, or an error of the client's.
#include "core/base/assert.hpp"
#include "core/http/openai_schema.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const auto endpoint :
       {luna::pipeline::Endpoint::chat, luna::pipeline::Endpoint::completion}) {
    const auto parsed = luna::http::parse_body(endpoint, body, "main");
    if (const auto* error = std::get_if<luna::http::ApiError>(&parsed)) {
      LUNA_VERIFY(error->status >= 400 && error->status < 500);
      LUNA_VERIFY(!luna::http::error_body(*error).empty());
    }
  }
  return 0;
}
