// What one event of a streamed completion says about the request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace luna::bench {

/// The server's own count of a request's tokens.
struct ServerUsage {
  std::uint32_t n_prompt = 0;
  std::uint32_t n_cached = 0;
  std::uint32_t n_generated = 0;
};

struct CompletionEvent {
  bool has_token = false;  ///< output came with it
  bool is_done = false;    ///< "[DONE]"
  std::optional<ServerUsage> usage;
  std::optional<std::string> error;  ///< the server's message, or what is wrong with the event
};

/// Reads an event's data, of /v1/completions or /v1/chat/completions.
CompletionEvent read_completion_event(std::string_view data);

}  // namespace luna::bench
