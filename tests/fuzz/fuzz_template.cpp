// Any bytes as a chat template, run over a conversation: a prompt or an error, never a crash, a
// hang, or a word of the request that counts as the template's.
#include "core/base/assert.hpp"
#include "core/text/template_eval.hpp"
#include "core/text/template_parser.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace {

using namespace luna::text;
using jinja::Value;

// A letter that the client sends and that no valid UTF-8 template can spell but by an escape.
constexpr std::string_view kClientText = "\xF4\x8F\xBF\xBD";

Value untrusted(std::string_view text) {
  return Value::text(text, false);
}

jinja::Variables conversation() {
  std::vector<Value> messages;
  for (const char* role : {"system", "user", "assistant"}) {
    auto message = std::make_shared<jinja::Dict>();
    message->trusted = false;
    message->set(untrusted("role"), untrusted(role));
    message->set(untrusted("content"), untrusted(kClientText));
    messages.push_back(Value::of(std::move(message)));
  }
  auto list = jinja::make_list(std::move(messages));
  list->trusted = false;
  return {{"messages", Value::of(std::move(list))},
          {"add_generation_prompt", Value::boolean(true, false)},
          {"n", Value::integer(3, false)},
          {"x", Value::real(2.5, false)},
          {"bos_token", Value::text("<s>", true)}};
}

bool holds_escape(std::string_view source) {
  return source.find('\\') != std::string_view::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = jinja::parse_template(source);
  if (!parsed) {
    LUNA_VERIFY(!parsed.error().message().empty());
    return 0;
  }
  // A small budget, so that many inputs are tried; that the large one holds is a unit test.
  jinja::RenderLimits limits;
  limits.n_units_max = 1U << 20U;
  limits.output_bytes_max = 1U << 16U;
  const std::chrono::system_clock::time_point now{std::chrono::seconds{1'700'000'000}};
  const auto rendered = jinja::run_template(*parsed, conversation(), now, limits);
  if (!rendered) return 0;
  LUNA_VERIFY(rendered->size() <= limits.output_bytes_max);
  const bool may_spell_it = holds_escape(source) || source.find(kClientText) != source.npos;
  for (const TextRun& run : rendered->runs()) {
    if (!may_spell_it && run.trusted) {
      LUNA_VERIFY(run.text.find(kClientText) == std::string::npos);
    }
  }
  return 0;
}
