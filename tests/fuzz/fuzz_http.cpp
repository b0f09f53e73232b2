// Bodies of requests: whatever the bytes, an answer, never a crash.
#include "core/http/openai_schema.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using luna::pipeline::Endpoint;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  (void)luna::http::parse_body(Endpoint::chat, body, "main");
  (void)luna::http::parse_body(Endpoint::completion, body, "main");
  return 0;
}
