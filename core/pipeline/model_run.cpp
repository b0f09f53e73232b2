#include "core/pipeline/model_run.hpp"

#include <luna/abi/role.h>

#include <algorithm>

namespace luna::pipeline {
namespace {

/// What the client is told of an end whose reason is FinishReason::failed.
std::string failure_text(const StreamEnd& end) {
  std::string text(end.error);
  if (end.queue_wait) {
    text += ": an estimated " + std::to_string(end.queue_wait->ms) + " ms, at most " +
            std::to_string(end.queue_wait->ms_max) + " ms";
  }
  return text;
}

std::string end_text(const StreamEnd& end) {
  const std::string name(finish_reason_name(end.reason));
  return end.reason == FinishReason::failed ? name + ": " + failure_text(end) : name;
}

}  // namespace

bool ModelRun::serves(std::uint32_t choice) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const RunStream& stream) {
    return stream.choice == choice && !stream.has_ended;
  });
}

bool ModelRun::has_ended() const {
  return std::all_of(
      streams_.begin(), streams_.end(), [](const RunStream& stream) { return stream.has_ended; });
}

std::optional<Error> ModelRun::read(RoleStage& stage) {
  std::optional<Error> failure;
  for (RunStream& stream : streams_) {
    if (stream.has_ended) continue;
    const TokenStream::View view = stream.stream->view();
    if (std::string text = new_text(stream, view); !text.empty()) {
      stage.push({stream.item_id, LUNA_ITEM_MODEL_TEXT, 0, std::move(text)});
    }
    if (!view.end) continue;
    stream.has_ended = true;
    if (view.end->reason == FinishReason::failed) {
      failure = Error{view.end->code, failure_text(*view.end)};
    }
    stage.push({stream.item_id, LUNA_ITEM_MODEL_END, 0, end_text(*view.end)});
  }
  return failure;
}

std::string ModelRun::new_text(RunStream& stream, const TokenStream::View& view) const {
  if (first_tokens_.empty()) {
    const std::string_view text = view.text.substr(stream.n_text_bytes);
    stream.n_text_bytes = view.text.size();
    return std::string(text);
  }
  if (!view.end || view.tokens.empty()) return {};
  for (const auto& [id, text] : first_tokens_)
    if (id == view.tokens.front().token_id) return text;
  return {};
}

}  // namespace luna::pipeline
