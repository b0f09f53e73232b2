#include "pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace luna::pattern {
namespace {

// About 10 ms of backtracking and 1 MiB of heap on the machines of today: far more than a sensible
// pattern needs on an answer, and short enough for the thread that all requests share.
constexpr std::uint32_t kMatchLimit = 1'000'000;
constexpr std::uint32_t kDepthLimit = 10'000;
constexpr std::uint32_t kHeapLimitKiB = 1024;
// The match limit starts anew at each place where a match may begin; this bound does not. A step is
// an item of the pattern tried or a byte passed, so that a search costs a fixed amount plus a few
// steps a byte, whatever the pattern: quadratic ones are ended.
constexpr std::uint64_t kStepsFixed = 1'000'000;
constexpr std::uint64_t kStepsPerByte = 16;

struct Budget {
  std::uint64_t n_left = 0;
  std::size_t position = 0;
};

/// Called before each item of the pattern is tried.
int spend(pcre2_callout_block* at, void* context) {
  Budget& budget = *static_cast<Budget*>(context);
  const std::size_t now = at->current_position;
  const std::uint64_t cost =
      1 + (now > budget.position ? now - budget.position : budget.position - now);
  budget.position = now;
  if (cost > budget.n_left) return PCRE2_ERROR_MATCHLIMIT;
  budget.n_left -= cost;
  return 0;
}

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string error_text(int code) {
  PCRE2_UCHAR buffer[128];
  const int n = pcre2_get_error_message(code, buffer, sizeof(buffer));
  return n < 0 ? "error " + std::to_string(code)
               : std::string(reinterpret_cast<const char*>(buffer));
}

}  // namespace

void Pattern::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Result<Pattern> Pattern::compile(const std::string& pattern, Extent extent) {
  std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF |
                          PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT;
  if (extent == Extent::whole_text) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* const compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                             pattern.size(),
                                             options,
                                             &code,
                                             &offset,
                                             nullptr);
  if (compiled == nullptr) {
    return Error{
        Code::invalid_argument,
        "pattern '" + pattern + "' at byte " + std::to_string(offset) + ": " + error_text(code)};
  }
  return Pattern(compiled);
}

Result<bool> Pattern::matches(std::string_view text) const {
  const std::unique_ptr<pcre2_match_context, FreeMatch> context(
      pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, FreeMatch> data(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  if (!context || !data) return Error{Code::exhausted, "no memory to match a pattern"};
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_depth_limit(context.get(), kDepthLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKiB);
  Budget budget{kStepsFixed + kStepsPerByte * text.size(), 0};
  pcre2_set_callout(context.get(), spend, &budget);
  const int found = pcre2_match(code_.get(),
                                reinterpret_cast<PCRE2_SPTR>(text.data()),
                                text.size(),
                                0,
                                0,
                                data.get(),
                                context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  return Error{Code::exhausted, "matching a pattern: " + error_text(found)};
}

}  // namespace luna::pattern
