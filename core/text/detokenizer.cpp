#include "core/text/detokenizer.hpp"

#include "core/base/assert.hpp"
#include "core/text/utf8.hpp"

namespace luna::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::size_t kHeldBytesMax = 3;

}  // namespace

Utf8Stream::Utf8Stream(std::size_t piece_bytes_max) {
  held_.reserve(kHeldBytesMax);
  input_.reserve(piece_bytes_max + kHeldBytesMax);
  // At worst each byte becomes a U+FFFD.
  output_.reserve((piece_bytes_max + kHeldBytesMax) * kReplacement.size());
}

std::string_view Utf8Stream::push(std::string_view piece) {
  input_.assign(held_);
  input_.append(piece);
  held_.clear();
  output_.clear();
  for (std::string_view rest = input_; !rest.empty();) {
    const Utf8Prefix front = utf8_front(rest);
    switch (front.kind) {
      case Utf8Front::character:
        output_.append(rest.substr(0, front.n_bytes));
        break;
      case Utf8Front::broken:
        output_.append(kReplacement);
        break;
      case Utf8Front::incomplete:
        held_.assign(rest);
        break;
    }
    rest.remove_prefix(front.n_bytes);
  }
  return output_;
}

std::string_view Utf8Stream::flush() {
  const bool begun = !held_.empty();
  held_.clear();
  return begun ? kReplacement : std::string_view{};
}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, ControlText control_text)
    : tokenizer_(&tokenizer), control_text_(control_text), stream_(tokenizer.token_bytes_max()) {}

std::string_view Detokenizer::push(TokenId id) {
  LUNA_ASSERT(id < tokenizer_->vocab_size());
  const bool hidden = control_text_ == ControlText::hidden && tokenizer_->is_control(id);
  return stream_.push(hidden ? std::string_view{} : tokenizer_->bytes(id));
}

}  // namespace luna::text
