// What the engine does for the check of outputs.
#include "core/engine/engine_impl.hpp"

#include <utility>

namespace luna::engine {

void Engine::check_outputs() {
  Impl& impl = *impl_;
  impl.reclaim();
  if (!impl.output_check) return;
  impl.output_check->read_ended();
  // What came and went since the last turn may come again: it shall find the devices free.
  const std::uint64_t n_steps = impl.parts.stats.n_steps.load(std::memory_order_relaxed);
  const bool has_rested = std::exchange(impl.n_steps_checked, n_steps) == n_steps;
  if (impl.output_check->is_replaying() || !has_rested || impl.n_live.load() > 0) return;
  if (impl.has_busy_neighbours()) return;
  if (impl.output_check->has_waiting()) impl.start_replay();
}

void Engine::Impl::start_replay() {
  auto request = output_check->make_replay();
  const std::uint32_t n_generated_max = request->stop.n_generated_max;
  request->arrival = parts.clock.now();
  request->streams.push_back(std::make_shared<pipeline::TokenStream>(
      n_generated_max,
      pipeline::TokenStream::text_bytes_for(n_generated_max, parts.tokenizer.token_bytes_max()),
      0));
  auto live = LiveRequest::make(std::move(request), limits_alone(), parts.tokenizer);
  if (!live) {
    // Everything else was checked when its request came.
    output_check->give_up_too_large();
    return;
  }
  (*live)->is_replay = true;
  (*live)->first_choice = output_check->replay_choice();
  // An inbox that is full is full of requests.
  if (push(std::move(*live))) output_check->note_started();
}

RequestLimits Engine::Impl::limits_alone() const {
  RequestLimits alone = limits;
  alone.n_kv_blocks = n_blocks_alone.load(std::memory_order_relaxed);
  return alone;
}

}  // namespace luna::engine
