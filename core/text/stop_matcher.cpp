#include "core/text/stop_matcher.hpp"

#include <algorithm>

namespace luna::text {

StopMatcher::StopMatcher(std::span<const std::string> stops, std::size_t piece_bytes_max) {
  std::size_t stop_bytes_max = 0;
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    add(stop);
    stop_bytes_max = std::max(stop_bytes_max, stop.size());
  }
  link_failures();
  // Less than a stop string is held, what the last answer gave out is still there, and a piece
  // comes.
  held_.reserve(stop_bytes_max + 2 * piece_bytes_max);
}

std::uint32_t StopMatcher::child(std::uint32_t node, unsigned char byte) const {
  std::uint32_t at = nodes_[node].first_child;
  while (at != 0 && nodes_[at].byte != byte)
    at = nodes_[at].next_sibling;
  return at;
}

std::uint32_t StopMatcher::next(std::uint32_t node, unsigned char byte) const {
  for (;;) {
    if (const std::uint32_t down = child(node, byte); down != 0) return down;
    if (node == 0) return 0;
    node = nodes_[node].failure;
  }
}

void StopMatcher::add(std::string_view stop) {
  std::uint32_t node = 0;
  for (const char c : stop) {
    const auto byte = static_cast<unsigned char>(c);
    std::uint32_t down = child(node, byte);
    if (down == 0) {
      down = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back({.next_sibling = nodes_[node].first_child,
                        .depth = nodes_[node].depth + 1,
                        .byte = byte});
      nodes_[node].first_child = down;
    }
    node = down;
  }
  nodes_[node].match_bytes = nodes_[node].depth;
}

void StopMatcher::link_failures() {
  std::vector<std::uint32_t> queue = {0};  // breadth first: a failure link points to less depth
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const std::uint32_t node = queue[i];
    for (std::uint32_t at = nodes_[node].first_child; at != 0; at = nodes_[at].next_sibling) {
      if (node != 0) nodes_[at].failure = next(nodes_[node].failure, nodes_[at].byte);
      const std::uint32_t shorter = nodes_[nodes_[at].failure].match_bytes;
      nodes_[at].match_bytes = std::max(nodes_[at].match_bytes, shorter);
      queue.push_back(at);
    }
  }
}

void StopMatcher::note_match(std::size_t end, std::uint32_t match_bytes) {
  const std::size_t begin = end - match_bytes;
  if (!match_ || begin < match_->begin) match_ = Match{begin, n_pushed_};
}

StopMatcher::Answer StopMatcher::push(std::string_view piece) {
  held_.erase(0, n_sent_);
  if (match_) match_->begin -= n_sent_;
  n_sent_ = 0;
  ++n_pushed_;
  std::size_t pos = held_.size();
  held_.append(piece);
  bool stopped = false;
  while (pos < held_.size() && !stopped) {
    state_ = next(state_, static_cast<unsigned char>(held_[pos]));
    ++pos;
    const Node& node = nodes_[state_];
    if (node.match_bytes > 0) note_match(pos, node.match_bytes);
    // The state is the longest beginning of a stop string that may still grow: once it starts no
    // earlier than the match, nothing can come before the match any more.
    stopped = match_ && pos - node.depth >= match_->begin;
  }
  n_sent_ = pos - nodes_[state_].depth;
  if (match_) n_sent_ = std::min(n_sent_, match_->begin);
  return {std::string_view(held_).substr(0, n_sent_), stopped};
}

StopMatcher::Answer StopMatcher::flush() {
  const std::size_t end = match_ ? match_->begin : held_.size();
  const std::string_view text = std::string_view(held_).substr(n_sent_, end - n_sent_);
  n_sent_ = end;
  state_ = 0;
  return {text, match_.has_value()};
}

}  // namespace luna::text
