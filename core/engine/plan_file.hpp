// The file of a recorded session of plans: what each plan saw, what it answered, and a chain of
// hashes over all of them.
//
//   head    "LUNAPLAN", version, bytes of each struct and row, n_text, text, digest of all of that
//   plan    n_bytes, kind, body, digest = SHA-256(digest before, n_bytes, kind, body)
//   body    luna_snapshot and luna_plan with null pointers, status, n_actions; then the tables
//   table   runs of rows: n_rows, from; from = kLiteral: the rows follow, otherwise they are those
//           of the plan before from row `from` on
//   end     the same with kind 2 and a byte: why the recording ended
//
// Integers are little-endian. A reader with larger structs reads the missing ends as zeros.
#pragma once

#include "core/base/sha256.hpp"

#include <luna/abi/scheduler.h>
#include <luna/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luna::engine {

/// Why a recording ended.
enum class RecordEnd : std::uint8_t {
  stopped = 1,         ///< with its engine
  file_full = 2,       ///< the file has reached its bound
  too_slow = 3,        ///< the file fell behind the plans
  write_failed = 4,    ///< only told in the log: the end could not be written either
  policy_replaced = 5  ///< what follows are plans of another policy
};
std::string_view record_end_name(RecordEnd end);

/// The tables of a snapshot, in the order of the file.
enum class PlanTable : std::uint8_t { reqs, devices, links, slices, prefixes };
inline constexpr std::size_t kPlanTables = 5;
inline constexpr std::array<std::uint32_t, kPlanTables> kPlanRowBytes = {sizeof(luna_req_row),
                                                                         sizeof(luna_device_row),
                                                                         sizeof(luna_link_row),
                                                                         sizeof(luna_slice_row),
                                                                         sizeof(luna_prefix_row)};

/// What a plan saw and answered, in one piece of memory: this head, the tables' rows, the actions.
struct PlanHead {
  luna_snapshot snapshot;   ///< its pointers are null
  luna_plan plan;           ///< likewise
  luna_status status;       ///< of the call
  std::uint32_t n_actions;  ///< of plan.n_actions those that its table holds
};

/// Rows of each table.
std::array<std::uint32_t, kPlanTables> plan_row_counts(const luna_snapshot& snapshot);
/// Bytes of head, tables and actions together.
std::size_t plan_bytes(const PlanHead& head);

/// Makes the file's bytes, piece by piece. It trusts what it is given. [writer]
class PlanEncoder {
 public:
  /// The file's first bytes. `text` tells people and `luna replay` what was recorded.
  std::vector<std::byte> begin(std::string_view text);
  /// The next plan. Valid until the next call.
  ///
  /// flat  a PlanHead, the rows of its tables, its actions
  std::span<const std::byte> add(std::span<const std::byte> flat);
  /// The plan added last is not in the file: the next record follows the one before it.
  void withdraw() { chain_ = chain_before_; }
  /// The file's last bytes.
  std::span<const std::byte> end(RecordEnd why);

 private:
  void begin_record(std::uint32_t kind);
  std::span<const std::byte> close_record();
  void add_table(PlanTable table, std::span<const std::byte> rows);

  Sha256Digest chain_{};
  Sha256Digest chain_before_{};
  std::vector<std::byte> record_;
  std::array<std::vector<std::byte>, kPlanTables> last_;  // rows of the plan before
};

/// One plan of a file. A value; the pointers of its snapshot lead into its own tables.
struct RecordedPlan {
  luna_snapshot snapshot{};
  luna_plan plan{};  ///< as it was answered; no pointer
  luna_status status = LUNA_OK;
  std::vector<luna_action> actions;
  std::array<std::vector<std::byte>, kPlanTables> tables;
};

/// Reads a file from its beginning to its end. Whatever the bytes, a plan that it gives is one that
/// an engine could have asked for (check_snapshot), and its memory is bounded.
class PlanFileReader {
 public:
  /// bytes   outlive the reader
  /// Errors  corrupt (not such a file, or its head is broken); unsupported (a newer version)
  static Result<PlanFileReader> open(std::span<const std::byte> bytes);

  /// What was recorded, as the recorder told it.
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Reads the next plan. False: there is none any more.
  /// Errors  corrupt, with the plan's number: the chain is broken, or the plan is impossible
  Result<bool> next();
  [[nodiscard]] const RecordedPlan& plan() const { return plan_; }
  /// Plans read so far.
  [[nodiscard]] std::uint64_t n_plans() const { return n_plans_; }
  /// After the last plan: why the recording ended; none: the file is cut off behind it.
  [[nodiscard]] std::optional<RecordEnd> end() const { return end_; }
  /// Of all that was read so far.
  [[nodiscard]] const Sha256Digest& chain() const { return chain_; }

 private:
  struct RowBytes {
    std::uint32_t snapshot = 0, plan = 0, action = 0;
    std::array<std::uint32_t, kPlanTables> rows{};
  };
  explicit PlanFileReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  Result<void> read_head();
  Result<void> read_plan(std::span<const std::byte> body);
  [[nodiscard]] Error corrupt(std::string_view what) const;

  std::span<const std::byte> rest_;
  std::string text_;
  RowBytes sizes_;
  Sha256Digest chain_{};
  RecordedPlan plan_;
  std::array<std::vector<std::byte>, kPlanTables> last_;
  std::uint64_t n_plans_ = 0;
  std::optional<RecordEnd> end_;
};

}  // namespace luna::engine
