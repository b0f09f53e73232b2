// Finds the texts of control and user-defined tokens in an input.
#pragma once

#include "core/text/vocabulary.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace luna::text {

/// A half-open range of bytes of a text.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Where an added token stands, white space that it takes along included.
struct AddedMatch {
  ByteRange where;
  TokenId id = 0;
};

/// A trie of token texts. A value, read-only after it was built.
///
/// Of the texts that begin at the same place the longest wins; the search goes on behind it.
/// Source  AddedVocabulary of `tokenizers`
class AddedTokenFinder {
 public:
  /// Longer texts would make a search cost more than a scan: the tokenizer refuses them.
  static constexpr std::size_t kTextBytesMax = 1024;

  /// Adds a text that is not empty.
  void add(std::string_view text, const AddedToken& flags, bool is_control);

  /// The first match that begins at `from` or later and ends by the end of `text`.
  ///
  /// trusted  ranges in ascending order: a control token's text counts only wholly inside one
  [[nodiscard]] std::optional<AddedMatch> find(std::string_view text,
                                               std::size_t from,
                                               std::span<const ByteRange> trusted) const;

  [[nodiscard]] bool empty() const { return nodes_.size() <= 1; }

 private:
  struct Entry {
    AddedToken flags;
    bool is_control = false;
  };
  struct Node {
    std::uint32_t first_child = 0;  // 0: none, the root is nobody's child
    std::uint32_t next_sibling = 0;
    std::uint32_t entry = 0;  // index + 1 into entries_; 0: no text ends here
    unsigned char byte = 0;
  };

  [[nodiscard]] std::uint32_t child(std::uint32_t node, unsigned char byte) const;
  struct Candidate {
    ByteRange where;
    std::uint32_t entry = 0;  // index into entries_
  };

  [[nodiscard]] std::optional<Candidate> match_at(std::string_view text,
                                                  std::size_t pos,
                                                  std::size_t trusted_end) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<std::uint32_t> root_child_ = std::vector<std::uint32_t>(256);  // by byte
  std::vector<Entry> entries_;
};

}  // namespace luna::text
