// Finds stop strings in a stream of text, over any border between pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::text {

/// Watches the text of one sequence for its stop strings and holds back the shortest end that may
/// still become one. The match that begins earliest in the text wins, whatever the order of the
/// strings and however the text is cut; it is not sent, nor anything after it.
///
/// One per sequence, owned by it. Thread [engine]. Allocates at construction only.
/// Source  Aho and Corasick 1975, an automaton with failure links
class StopMatcher {
 public:
  /// stops            empty strings are passed over
  /// piece_bytes_max  the longest piece that push() will get
  StopMatcher(std::span<const std::string> stops, std::size_t piece_bytes_max);

  struct Answer {
    std::string_view text;  // to send now; valid until the next call
    bool stopped = false;   // a stop string was found: the sequence ends here
  };

  /// The text of one more token, which may be empty. Nothing may be pushed after a stop.
  Answer push(std::string_view piece);

  /// The end of the text: gives out what was held, unless a stop string was found in it.
  Answer flush();

  /// Tokens that count: all that were pushed, or those up to the one that completed the match. A
  /// stop string that is complete waits for one that began earlier to end or to fail; the tokens
  /// pushed meanwhile do not count.
  [[nodiscard]] std::size_t n_tokens() const { return match_ ? match_->n_tokens : n_pushed_; }

 private:
  struct Node {
    std::uint32_t first_child = 0;  // 0: none
    std::uint32_t next_sibling = 0;
    std::uint32_t failure = 0;  // the longest proper end of this text that begins a stop string
    std::uint32_t depth = 0;
    std::uint32_t match_bytes = 0;  // the longest stop string that ends here; 0: none
    unsigned char byte = 0;
  };
  struct Match {
    std::size_t begin;     // in held_
    std::size_t n_tokens;  // pushed when it was complete
  };

  [[nodiscard]] std::uint32_t child(std::uint32_t node, unsigned char byte) const;
  [[nodiscard]] std::uint32_t next(std::uint32_t node, unsigned char byte) const;
  void add(std::string_view stop);
  void link_failures();
  void note_match(std::size_t end, std::uint32_t match_bytes);

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::uint32_t state_ = 0;
  std::string held_;  // sent_ bytes that the last answer gave out, then those not sent
  std::size_t n_sent_ = 0;
  std::size_t n_pushed_ = 0;    // tokens
  std::optional<Match> match_;  // the earliest so far
};

}  // namespace luna::text
