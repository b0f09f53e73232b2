#include "core/engine/plan_file.hpp"

#include "core/base/assert.hpp"
#include "core/engine/snapshot_check.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace luna::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's integers are the machine's");
// A snapshot that grows by a table needs it in PlanTable too.
static_assert(sizeof(luna_snapshot) == 128);

constexpr std::string_view kMagic = "LUNAPLAN";
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kTextBytesMax = 1U << 20U;  // settings of a policy
constexpr std::uint32_t kRecordBytesMax = 1U << 30U;
constexpr std::uint32_t kPlanRecord = 1;
constexpr std::uint32_t kEndRecord = 2;
constexpr std::uint32_t kLiteral = UINT32_MAX;  // a run's rows follow
constexpr std::size_t kRecordHeadBytes = 2 * sizeof(std::uint32_t);

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const std::size_t n_before = to.size();
  to.resize(n_before + bytes.size());
  std::memcpy(to.data() + n_before, bytes.data(), bytes.size());
}
template <typename T>
requires std::is_trivially_copyable_v<T>
void append(std::vector<std::byte>& to, const T& value) {
  append(to, std::as_bytes(std::span(&value, 1)));
}

Sha256Digest chained(const Sha256Digest& before, std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(before);
  hash.update(bytes);
  return hash.finish();
}

/// Bytes from outside, taken from the front. Once something was missing, everything is.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : rest_(bytes) {}

  std::span<const std::byte> take(std::uint64_t n) {
    if (n > rest_.size()) {
      is_short_ = true;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(static_cast<std::size_t>(n));
    rest_ = rest_.subspan(static_cast<std::size_t>(n));
    return taken;
  }
  /// A value of which `n_bytes` were written; of a larger one the end is zero.
  template <typename T>
  T value(std::size_t n_bytes = sizeof(T)) {
    static_assert(std::is_trivially_copyable_v<T>);
    T read{};
    const auto bytes = take(n_bytes);
    if (!bytes.empty()) std::memcpy(&read, bytes.data(), bytes.size());
    return read;
  }
  [[nodiscard]] bool is_short() const { return is_short_; }
  [[nodiscard]] std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
  bool is_short_ = false;
};

std::uint64_t row_id(std::span<const std::byte> rows, std::size_t i) {
  std::uint64_t id = 0;
  std::memcpy(&id, rows.data() + i * sizeof(luna_req_row) + offsetof(luna_req_row, id), sizeof(id));
  return id;
}

/// Finds the row of the plan before that a row may be equal to. Requests are found by their id,
/// which ascends; of the other tables the same row.
class LikeBefore {
 public:
  LikeBefore(PlanTable table, std::span<const std::byte> before, std::span<const std::byte> now)
      : has_ids_(table == PlanTable::reqs),
        row_bytes_(kPlanRowBytes[static_cast<std::size_t>(table)]),
        n_before_(before.size() / row_bytes_),
        before_(before),
        now_(now) {}

  /// The equal row before, or kLiteral. Rows are asked for in their order.
  std::uint32_t of(std::size_t i) {
    if (has_ids_) {
      while (next_ < n_before_ && row_id(before_, next_) < row_id(now_, i))
        ++next_;
    } else {
      next_ = i;
    }
    if (next_ >= n_before_) return kLiteral;
    const bool is_equal =
        std::memcmp(
            before_.data() + next_ * row_bytes_, now_.data() + i * row_bytes_, row_bytes_) == 0;
    return is_equal ? static_cast<std::uint32_t>(next_) : kLiteral;
  }

 private:
  const bool has_ids_;
  const std::size_t row_bytes_;
  const std::size_t n_before_;
  const std::span<const std::byte> before_;
  const std::span<const std::byte> now_;
  std::size_t next_ = 0;
};

}  // namespace

std::string_view record_end_name(RecordEnd end) {
  switch (end) {
    case RecordEnd::stopped:
      return "stopped";
    case RecordEnd::file_full:
      return "file_full";
    case RecordEnd::too_slow:
      return "too_slow";
    case RecordEnd::write_failed:
      return "write_failed";
    case RecordEnd::policy_replaced:
      return "policy_replaced";
  }
  return "unknown";
}

std::array<std::uint32_t, kPlanTables> plan_row_counts(const luna_snapshot& snapshot) {
  return {snapshot.n_reqs,
          snapshot.n_devices,
          snapshot.n_links,
          snapshot.n_slices,
          snapshot.n_prefixes};
}

std::size_t plan_bytes(const PlanHead& head) {
  std::size_t n = sizeof(head) + std::size_t{head.n_actions} * sizeof(luna_action);
  const auto counts = plan_row_counts(head.snapshot);
  for (std::size_t t = 0; t < kPlanTables; ++t)
    n += std::size_t{counts[t]} * kPlanRowBytes[t];
  return n;
}

std::vector<std::byte> PlanEncoder::begin(std::string_view text) {
  std::vector<std::byte> head;
  append(head, std::as_bytes(std::span(kMagic)));
  append(head, kVersion);
  append(head, static_cast<std::uint32_t>(sizeof(luna_snapshot)));
  append(head, static_cast<std::uint32_t>(sizeof(luna_plan)));
  append(head, static_cast<std::uint32_t>(sizeof(luna_action)));
  append(head, kPlanRowBytes);
  const std::string_view kept = text.substr(0, kTextBytesMax);
  append(head, static_cast<std::uint32_t>(kept.size()));
  append(head, std::as_bytes(std::span(kept)));
  chain_ = chained({}, head);
  append(head, chain_);
  return head;
}

void PlanEncoder::begin_record(std::uint32_t kind) {
  record_.clear();
  append(record_, std::uint32_t{0});  // bytes of the body, when they are known
  append(record_, kind);
}

std::span<const std::byte> PlanEncoder::close_record() {
  const auto n_bytes = static_cast<std::uint32_t>(record_.size() - kRecordHeadBytes);
  std::memcpy(record_.data(), &n_bytes, sizeof(n_bytes));
  chain_before_ = chain_;
  chain_ = chained(chain_, record_);
  append(record_, chain_);
  return record_;
}

std::span<const std::byte> PlanEncoder::add(std::span<const std::byte> flat) {
  Bytes bytes(flat);
  const auto head = bytes.value<PlanHead>();
  begin_record(kPlanRecord);
  append(record_, head.snapshot);
  append(record_, head.plan);
  append(record_, head.status);
  append(record_, head.n_actions);
  const auto counts = plan_row_counts(head.snapshot);
  for (std::size_t t = 0; t < kPlanTables; ++t)
    add_table(static_cast<PlanTable>(t), bytes.take(std::size_t{counts[t]} * kPlanRowBytes[t]));
  append(record_, bytes.take(std::size_t{head.n_actions} * sizeof(luna_action)));
  LUNA_VERIFY(!bytes.is_short() && bytes.rest().empty());
  return close_record();
}

void PlanEncoder::add_table(PlanTable table, std::span<const std::byte> rows) {
  const auto t = static_cast<std::size_t>(table);
  const std::size_t row_bytes = kPlanRowBytes[t];
  const std::size_t n_rows = rows.size() / row_bytes;
  LikeBefore like(table, last_[t], rows);
  std::uint32_t from = n_rows > 0 ? like.of(0) : kLiteral;
  for (std::size_t first = 0; first < n_rows;) {
    const std::uint32_t run_from = from;
    std::size_t end = first + 1;
    for (; end < n_rows; ++end) {
      from = like.of(end);
      const bool goes_on =
          run_from == kLiteral ? from == kLiteral : from == run_from + (end - first);
      if (!goes_on) break;
    }
    append(record_, static_cast<std::uint32_t>(end - first));
    append(record_, run_from);
    if (run_from == kLiteral)
      append(record_, rows.subspan(first * row_bytes, (end - first) * row_bytes));
    first = end;
  }
  last_[t].assign(rows.begin(), rows.end());
}

std::span<const std::byte> PlanEncoder::end(RecordEnd why) {
  begin_record(kEndRecord);
  append(record_, static_cast<std::uint8_t>(why));
  return close_record();
}

Error PlanFileReader::corrupt(std::string_view what) const {
  return Error{Code::corrupt, "plan " + std::to_string(n_plans_) + ": " + std::string(what)};
}

Result<PlanFileReader> PlanFileReader::open(std::span<const std::byte> bytes) {
  PlanFileReader reader(bytes);
  LUNA_TRY(reader.read_head());
  return reader;
}

Result<void> PlanFileReader::read_head() {
  Bytes bytes(rest_);
  const auto magic = bytes.take(kMagic.size());
  if (bytes.is_short() || std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0)
    return Error{Code::corrupt, "not a recording of plans"};
  const auto version = bytes.value<std::uint32_t>();
  if (!bytes.is_short() && version != kVersion)
    return Error{Code::unsupported,
                 "version " + std::to_string(version) + " of the format; this is " +
                     std::to_string(kVersion)};
  sizes_.snapshot = bytes.value<std::uint32_t>();
  sizes_.plan = bytes.value<std::uint32_t>();
  sizes_.action = bytes.value<std::uint32_t>();
  sizes_.rows = bytes.value<decltype(sizes_.rows)>();
  const auto n_text = bytes.value<std::uint32_t>();
  if (bytes.is_short() || n_text > kTextBytesMax) return Error{Code::corrupt, "its head is broken"};
  const auto text = bytes.take(n_text);
  const auto head = rest_.first(rest_.size() - bytes.rest().size());
  const auto digest = bytes.value<Sha256Digest>();
  if (bytes.is_short()) return Error{Code::corrupt, "its head is cut off"};
  chain_ = chained({}, head);
  if (digest != chain_) return Error{Code::corrupt, "its head does not match its hash"};
  bool fits = sizes_.snapshot <= sizeof(luna_snapshot) && sizes_.plan <= sizeof(luna_plan) &&
              sizes_.action <= sizeof(luna_action);
  fits &= sizes_.snapshot > 0 && sizes_.plan > 0 && sizes_.action > 0;
  for (std::size_t t = 0; t < kPlanTables; ++t)
    fits &= sizes_.rows[t] > 0 && sizes_.rows[t] <= kPlanRowBytes[t];
  if (!fits)
    return Error{Code::unsupported, "recorded with tables that this version does not know"};
  text_.assign(reinterpret_cast<const char*>(text.data()), text.size());
  rest_ = bytes.rest();
  return {};
}

Result<bool> PlanFileReader::next() {
  if (end_ || rest_.empty()) return false;
  Bytes bytes(rest_);
  const auto n_bytes = bytes.value<std::uint32_t>();
  const auto kind = bytes.value<std::uint32_t>();
  if (n_bytes > kRecordBytesMax) return corrupt("its length is impossible");
  const auto body = bytes.take(n_bytes);
  const auto digest = bytes.value<Sha256Digest>();
  if (bytes.is_short()) {  // the process that wrote it was killed
    rest_ = {};
    return false;
  }
  const Sha256Digest next_chain = chained(chain_, rest_.first(kRecordHeadBytes + n_bytes));
  if (digest != next_chain) return corrupt("the chain of hashes is broken");
  if (kind == kEndRecord) {
    if (body.size() != 1 || !bytes.rest().empty()) return corrupt("the end is not the end");
    const auto why = static_cast<RecordEnd>(body[0]);
    if (why != RecordEnd::stopped && why != RecordEnd::file_full && why != RecordEnd::too_slow &&
        why != RecordEnd::policy_replaced)
      return corrupt("it ends for an unknown reason");
    end_ = why;
  } else if (kind == kPlanRecord) {
    LUNA_TRY(read_plan(body));
    ++n_plans_;
  } else {
    return corrupt("a record of unknown kind");
  }
  chain_ = next_chain;
  rest_ = bytes.rest();
  return !end_.has_value();
}

namespace {

/// The rows of a table, widened to this build's. Empty and `ok` false: the runs do not hold
/// together.
///
/// n_max  memory is taken for rows only that the body or the plan before can hold
struct TableRead {
  std::uint32_t n_rows;
  std::uint32_t file_row_bytes;
  std::uint32_t row_bytes;
};

bool read_table(Bytes& bytes,
                const TableRead& wanted,
                std::span<const std::byte> before,
                std::vector<std::byte>& rows) {
  rows.clear();
  const std::size_t n_before = before.size() / wanted.row_bytes;
  for (std::uint32_t n_read = 0; n_read < wanted.n_rows;) {
    const auto n_run = bytes.value<std::uint32_t>();
    const auto from = bytes.value<std::uint32_t>();
    if (bytes.is_short() || n_run == 0 || n_run > wanted.n_rows - n_read) return false;
    if (from != kLiteral) {
      if (from > n_before || n_run > n_before - from) return false;
      append(rows,
             before.subspan(std::size_t{from} * wanted.row_bytes,
                            std::size_t{n_run} * wanted.row_bytes));
    } else {
      auto literal = bytes.take(std::uint64_t{n_run} * wanted.file_row_bytes);
      if (bytes.is_short()) return false;
      for (std::uint32_t i = 0; i < n_run; ++i) {
        append(rows,
               literal.subspan(std::size_t{i} * wanted.file_row_bytes, wanted.file_row_bytes));
        rows.resize(rows.size() + wanted.row_bytes - wanted.file_row_bytes);
      }
    }
    n_read += n_run;
  }
  return true;
}

}  // namespace

Result<void> PlanFileReader::read_plan(std::span<const std::byte> body) {
  Bytes bytes(body);
  luna_snapshot s = bytes.value<luna_snapshot>(sizes_.snapshot);
  plan_.plan = bytes.value<luna_plan>(sizes_.plan);
  plan_.status = bytes.value<luna_status>();
  const auto n_actions = bytes.value<std::uint32_t>();
  const luna_plan& answer = plan_.plan;
  if (bytes.is_short() || s.n_reqs > kSnapshotReqsMax || s.n_devices > kSnapshotDevicesMax)
    return corrupt("its head is broken");
  if (answer.n_actions_max < s.n_reqs || answer.n_actions_max > kSnapshotRowsMax ||
      n_actions > answer.n_actions_max ||
      n_actions != std::min(answer.n_actions, answer.n_actions_max))
    return corrupt("a number of actions that cannot be");
  const auto counts = plan_row_counts(s);
  plan_.tables.swap(last_);
  for (std::size_t t = 0; t < kPlanTables; ++t)
    if (!read_table(
            bytes, {counts[t], sizes_.rows[t], kPlanRowBytes[t]}, last_[t], plan_.tables[t]))
      return corrupt("its tables do not hold together");
  plan_.actions.clear();
  for (std::uint32_t a = 0; a < n_actions && !bytes.is_short(); ++a)
    plan_.actions.push_back(bytes.value<luna_action>(sizes_.action));
  if (bytes.is_short() || !bytes.rest().empty()) return corrupt("its length is wrong");
  s.struct_size = sizeof(s);
  s.req_stride = sizeof(luna_req_row);
  s.device_stride = sizeof(luna_device_row);
  s.link_stride = sizeof(luna_link_row);
  s.slice_stride = sizeof(luna_slice_row);
  s.prefix_stride = sizeof(luna_prefix_row);
  s.reqs = reinterpret_cast<const luna_req_row*>(plan_.tables[0].data());
  s.devices = reinterpret_cast<const luna_device_row*>(plan_.tables[1].data());
  s.links = reinterpret_cast<const luna_link_row*>(plan_.tables[2].data());
  s.slices = reinterpret_cast<const luna_slice_row*>(plan_.tables[3].data());
  s.prefixes = reinterpret_cast<const luna_prefix_row*>(plan_.tables[4].data());
  if (const auto possible = check_snapshot(s); !possible)
    return corrupt(possible.error().message());
  plan_.snapshot = s;
  plan_.plan.actions = nullptr;
  return {};
}

}  // namespace luna::engine
