// Steps that are drawn: sequences that grow in chunks of any size, in batches of any kind.
#pragma once

#include "core/check/program_draft.hpp"

#include <luna/abi/backend.h>

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace luna::check {

/// Inputs of one step. A value; what abi() gives points into it.
struct DrawnStep {
  std::vector<std::uint32_t> token_ids;
  std::vector<std::uint32_t> positions;
  std::vector<std::uint32_t> seq_first_row = {0};
  std::vector<std::uint32_t> tables;  ///< [n_seqs, table_stride]
  std::vector<std::uint32_t> out_rows;
  std::vector<std::uint32_t> out_flags;
  std::vector<luna_kv_copy> kv_copies;
  std::vector<luna_seq_prune> seq_prunes;  ///< empty, or one a sequence
  std::vector<std::uint32_t> seq_of_row;   ///< which of the conversation's
  std::uint32_t table_stride = 0;

  /// Without binds and `done`.
  [[nodiscard]] luna_step abi() const;
};

/// What is asked of a program: sequences of tokens.
struct Conversation {
  std::vector<std::vector<std::uint32_t>> sequences;  ///< each longer than none
  std::uint32_t n_kv_blocks = 0;                      ///< enough for four at a time
};

Conversation draw_conversation(const DrawnProgram& drawn, std::mt19937_64& random);

/// The conversation as a busy server runs it: chunks of any size, prompts beside decoding rows,
/// blocks in any order, given back and taken again, copied where the program copies, pruned where
/// it prunes. Some rows are outputs, the last of each sequence among them.
std::vector<DrawnStep> draw_batches(const DrawnProgram& drawn,
                                    const Conversation& conversation,
                                    std::mt19937_64& random);
/// One sequence by itself in the largest chunks, every row an output.
std::vector<DrawnStep> steps_alone(const DrawnProgram& drawn,
                                   const Conversation& conversation,
                                   std::uint32_t sequence);

}  // namespace luna::check
