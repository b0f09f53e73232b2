// Group E of quantization: entries of every type and shape, true and false ones, held against the
// format's own definition.
#include "core/check/answer_room.hpp"
#include "core/check/cases.hpp"
#include "core/check/guarded_memory.hpp"
#include "core/check/packed_weights.hpp"
#include "core/check/subject.hpp"

#include <luna/backend_blocks.hpp>
#include <luna/quant.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace luna::check {
namespace {

constexpr std::string_view kName = "layer.weight";
constexpr std::uint32_t kTypesMax = 64;  // of a container: more than any has
constexpr std::array kContainers = {LUNA_CONTAINER_GGUF, LUNA_CONTAINER_SAFETENSORS};
// Bytes of an element at most: what a file of that shape could have.
constexpr std::uint64_t kElementBytesMax = 8;
// Values that a few thousand bytes could be, at a bit a value.
constexpr std::uint64_t kValuesMax = 100'000;

struct Shape {
  std::uint64_t n_rows;
  std::uint64_t n_cols;
};
constexpr std::array kShapes = {Shape{1, 256}, Shape{3, 512}, Shape{65, 256}, Shape{7, 1024}};

/// What a format is asked about.
struct Asked {
  const luna_tensor_table* table;
  std::string_view name;
  std::uint64_t entry;  ///< that is called so; UINT64_MAX: none is
  std::string who;      ///< for messages
};

/// One entry "layer.weight" whose bytes end at the end of a page.
class Entry {
 public:
  Entry(std::uint32_t container, std::uint32_t type, const Shape& shape, std::uint64_t n_bytes)
      : memory_(static_cast<std::size_t>(n_bytes)) {
    entry.name = to_abi(kName);
    entry.container = container;
    entry.type = type;
    entry.rank = 2;
    entry.dims[0] = shape.n_rows;
    entry.dims[1] = shape.n_cols;
    entry.bytes = memory_.bytes().data();
    entry.n_bytes = n_bytes;
    table.struct_size = sizeof(table);
    table.entry_stride = sizeof(entry);
    table.n_entries = 1;
    table.entries = &entry;
  }
  [[nodiscard]] Asked asked() const {
    return {&table,
            kName,
            0,
            "container " + std::to_string(entry.container) + " type " + std::to_string(entry.type) +
                " [" + std::to_string(entry.dims[0]) + ", " + std::to_string(entry.dims[1]) +
                "] of " + std::to_string(entry.n_bytes) + " bytes"};
  }
  void fill(std::mt19937_64& random) {
    for (std::byte& byte : memory_.bytes())
      byte = static_cast<std::byte>(random());
    memory_.make_read_only();
  }

  luna_tensor_entry entry{};
  luna_tensor_table table{};

 private:
  GuardedMemory memory_;
};

/// Memory for rows of canonical planes, each plane with an end of its own.
class Planes {
 public:
  Planes(const luna_weight_desc& desc, std::uint64_t first_row, std::uint64_t n_rows) {
    rows.struct_size = sizeof(rows);
    rows.first_row = first_row;
    rows.n_rows = n_rows;
    for (std::uint32_t plane = 0; plane < LUNA_N_PLANES; ++plane) {
      if (desc.row_bytes[plane] == 0) continue;
      memory_[plane] = std::make_unique<GuardedMemory>(desc.row_bytes[plane] * n_rows);
      rows.planes[plane] = memory_[plane]->bytes().data();
    }
  }
  luna_weight_rows rows{};

 private:
  std::array<std::unique_ptr<GuardedMemory>, LUNA_N_PLANES> memory_;
};

/// A format, asked about one entry at a time.
class Format {
 public:
  Format(CaseRun& run, plugin::Instance<luna_quant_if> quant)
      : run_(run), quant_(std::move(quant)) {}

  /// Whether it takes the weight, with its description.
  bool describe(const Asked& asked, luna_weight_desc& desc) {
    bool is_taken = false;
    for (std::uint64_t i = 0; i < asked.table->n_entries; ++i) {
      const std::int32_t score = quant_->score(quant_.self(), asked.table, i);
      if (score < 0 || score > 100) run_.fail("Q4", "a score of " + std::to_string(score));
      is_taken |= score > 0;
    }
    if (!is_taken) return false;
    AnswerRoom<luna_weight_desc> room;
    const bool is_described = answers("describe", [&](luna_err* err) {
      return quant_->describe(
          quant_.self(), asked.table, to_abi(asked.name), asked.entry, room.record(), err);
    });
    if (!room.is_kept()) run_.fail("O3", "describe() writes behind the description's struct_size");
    desc = *room.record();
    return is_described;
  }
  bool decode(const Asked& asked, const luna_weight_desc& desc, Planes& planes) {
    return answers("decode", [&](luna_err* err) {
      return quant_->decode(
          quant_.self(), asked.table, to_abi(asked.name), asked.entry, &desc, &planes.rows, err);
    });
  }
  /// On any thread: nothing is told to the run.
  luna_status decode_quietly(const Asked& asked,
                             const luna_weight_desc& desc,
                             Planes& planes) const {
    luna_err err = make_err();
    try {
      return quant_->decode(
          quant_.self(), asked.table, to_abi(asked.name), asked.entry, &desc, &planes.rows, &err);
    } catch (...) {
      return LUNA_INTERNAL;  // decode() has told it
    }
  }
  bool row_f32(const Asked& asked, std::uint64_t row, float* out) {
    return answers("row_f32", [&](luna_err* err) {
      return quant_->row_f32(
          quant_.self(), asked.table, to_abi(asked.name), asked.entry, row, out, err);
    });
  }

 private:
  template <typename Call>
  bool answers(const char* what, Call&& call) {
    luna_err err = make_err();
    luna_status status = LUNA_INTERNAL;
    if (!call_fenced(run_, what, [&] { status = call(&err); })) return false;
    if (status < 0 && err.text[0] == '\0')
      run_.fail("E2", std::string(what) + "() failed and gave no reason");
    return status >= 0;
  }
  CaseRun& run_;
  plugin::Instance<luna_quant_if> quant_;
};

bool is_equal(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

Asked asked_of(const PackedLayout& layout, const PackedWeight& weight) {
  return {&weight.table(), kName, weight.entry(), std::string(layout.name)};
}

/// Whole, in ranges, and by the definition: the same values.
void check_values(CaseRun& run, Format& format, const Asked& e, const luna_weight_desc& desc) {
  if (const auto checked = check_weight_desc(&desc); !checked)
    return run.fail("Q1", e.who + ": " + checked.error().message());
  Planes whole(desc, 0, desc.n_rows);
  if (!format.decode(e, desc, whole))
    return run.fail("Q1", e.who + ": it is described and cannot be decoded");
  const CanonicalRows canonical(desc, whole.rows);
  std::vector<float> defined(desc.n_cols);
  for (std::uint64_t row = 0; row < desc.n_rows; ++row) {
    if (!format.row_f32(e, row, defined.data()))
      return run.fail("Q1", e.who + ": row_f32 of row " + std::to_string(row) + " fails");
    for (std::uint64_t col = 0; col < desc.n_cols; ++col) {
      const float value = canonical.value(row, col);
      if ((desc.flags & LUNA_WEIGHT_EXACT) == 0 || is_equal(value, defined[col])) continue;
      return run.fail("Q1",
                      e.who + ": row " + std::to_string(row) + ", column " + std::to_string(col) +
                          " is " + std::to_string(value) + " in planes and " +
                          std::to_string(defined[col]) + " by the definition");
    }
  }
  for (std::uint64_t row = 0; row < desc.n_rows; row += 64) {
    const std::uint64_t n_rows = std::min<std::uint64_t>(64, desc.n_rows - row);
    Planes part(desc, row, n_rows);
    if (!format.decode(e, desc, part))
      return run.fail("Q2", e.who + ": rows from " + std::to_string(row) + " cannot be decoded");
    for (std::uint32_t plane = 0; plane < LUNA_N_PLANES; ++plane)
      if (desc.row_bytes[plane] != 0 &&
          std::memcmp(
              part.rows.planes[plane],
              static_cast<const std::byte*>(whole.rows.planes[plane]) + row * desc.row_bytes[plane],
              n_rows * desc.row_bytes[plane]) != 0)
        return run.fail("Q2",
                        e.who + ": rows from " + std::to_string(row) +
                            " are others when they are decoded alone");
  }
}

/// All ranges at once, as the host's loading threads ask for them.
void check_parallel_ranges(CaseRun& run,
                           Format& format,
                           const Asked& e,
                           const luna_weight_desc& desc) {
  constexpr std::uint64_t kRangeRows = 64;
  const std::uint64_t n_ranges = (desc.n_rows + kRangeRows - 1) / kRangeRows;
  if (n_ranges < 2) return;
  Planes whole(desc, 0, desc.n_rows);
  format.decode(e, desc, whole);
  std::vector<std::unique_ptr<Planes>> ranges;
  std::vector<luna_status> statuses(n_ranges, LUNA_INTERNAL);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < n_ranges; ++i) {
    const std::uint64_t row = i * kRangeRows;
    ranges.push_back(std::make_unique<Planes>(desc, row, std::min(kRangeRows, desc.n_rows - row)));
    threads.emplace_back([&, i, range = ranges.back().get()] {
      statuses[i] = format.decode_quietly(e, desc, *range);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (std::uint64_t i = 0; i < n_ranges; ++i) {
    const luna_weight_rows& rows = ranges[i]->rows;
    bool is_same = statuses[i] >= 0;
    for (std::uint32_t plane = 0; plane < LUNA_N_PLANES && is_same; ++plane)
      is_same = desc.row_bytes[plane] == 0 ||
                std::memcmp(rows.planes[plane],
                            static_cast<const std::byte*>(whole.rows.planes[plane]) +
                                rows.first_row * desc.row_bytes[plane],
                            rows.n_rows * desc.row_bytes[plane]) == 0;
    if (is_same) continue;
    return run.fail("T2",
                    e.who + ": rows from " + std::to_string(rows.first_row) +
                        " are others when all ranges are decoded at once");
  }
}

/// Bytes of an entry of that type and shape with which the format takes it; 0: with none.
std::uint64_t find_size(Format& format,
                        std::uint32_t container,
                        std::uint32_t type,
                        const Shape& shape) {
  const std::uint64_t n_values = shape.n_rows * shape.n_cols;
  Entry e(container, type, shape, n_values * kElementBytesMax);
  luna_weight_desc desc{};
  // Blocks have 256 values at most, so that these are all sizes that there are.
  for (std::uint64_t n = n_values / 32; n <= n_values * kElementBytesMax; n += n_values / 256) {
    e.entry.n_bytes = n;
    if (format.describe(e.asked(), desc)) return n;
  }
  return 0;
}

/// Whether the format takes entries of a type; those that it takes have the values that they
/// should.
bool try_type(CaseRun& run,
              Format& format,
              std::uint32_t container,
              std::uint32_t type,
              std::mt19937_64& random) {
  run.phase("type " + std::to_string(type) + " of container " + std::to_string(container));
  bool is_taken = false;
  for (const Shape& shape : kShapes) {
    const std::uint64_t n_bytes = find_size(format, container, type, shape);
    if (n_bytes == 0) continue;
    is_taken = true;
    Entry e(container, type, shape, n_bytes);
    e.fill(random);
    luna_weight_desc desc{};
    if (!format.describe(e.asked(), desc)) continue;
    check_values(run, format, e.asked(), desc);
    if (run.has_failed()) break;
    check_parallel_ranges(run, format, e.asked(), desc);
  }
  return is_taken;
}

void check_decoding(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  auto quant = subject->make<luna_quant_if>(LUNA_KIND_QUANT);
  if (!quant) return;
  Format format(run, std::move(quant));
  std::mt19937_64 random(run.input().seed);
  std::uint32_t n_types = 0;
  for (const std::uint32_t container : kContainers)
    for (std::uint32_t type = 0; type < kTypesMax && !run.has_failed(); ++type)
      n_types += try_type(run, format, container, type, random) ? 1 : 0;
  run.figure("types_decoded", std::to_string(n_types));
  std::uint32_t n_packed = 0;
  for (const PackedLayout& layout : packed_layouts()) {
    PackedWeight weight(layout, random);
    const Asked asked = asked_of(layout, weight);
    run.phase(asked.who);
    luna_weight_desc desc{};
    if (run.has_failed() || !format.describe(asked, desc)) continue;
    ++n_packed;
    check_values(run, format, asked, desc);
  }
  run.figure("packed_layouts_decoded", std::to_string(n_packed));
  if (n_types == 0 && n_packed == 0)
    run.skip("it takes no weight that the check can make: its own tests have to try it");
}

/// What is taken can be decoded with the bytes that are there, and no row behind the last.
void decode_all(CaseRun& run, Format& format, const Asked& e, const luna_weight_desc& desc) {
  if (desc.n_rows == 0 || desc.n_cols == 0) return;
  if (desc.n_cols > kValuesMax || desc.n_rows > kValuesMax / desc.n_cols)
    return run.fail("Q3",
                    e.who + " is taken as a weight of [" + std::to_string(desc.n_rows) + ", " +
                        std::to_string(desc.n_cols) + "]");
  Planes planes(desc, 0, desc.n_rows);
  format.decode(e, desc, planes);
  Planes behind(desc, desc.n_rows, 1);
  if (format.decode(e, desc, behind)) run.fail("Q3", e.who + ": a row behind the last is decoded");
}

/// An entry that was cut off, or goes on behind its last row.
void try_sizes(CaseRun& run, Format& format, const Entry& whole) {
  const std::uint64_t n_whole = whole.entry.n_bytes;
  for (const std::uint64_t n :
       {n_whole, n_whole - 1, n_whole / 2, std::uint64_t{1}, n_whole + 16}) {
    Entry e(whole.entry.container, whole.entry.type, {whole.entry.dims[0], whole.entry.dims[1]}, n);
    run.phase(e.asked().who + ", whole with " + std::to_string(n_whole));
    luna_weight_desc desc{};
    if (format.describe(e.asked(), desc)) decode_all(run, format, e.asked(), desc);
    if (run.has_failed()) return;
  }
}

/// Parts that were cut off, are of another shape, or hold anything.
void try_packed(CaseRun& run, Format& format, const PackedLayout& layout, std::mt19937_64& random) {
  constexpr std::array<std::uint64_t, 7> kSizes = {
      0, 1, 31, 128, 257, std::uint64_t{1} << 40, UINT64_MAX};
  for (int n = 0; n < 300 && !run.has_failed(); ++n) {
    PackedWeight weight(layout, random);
    const std::size_t i = random() % weight.entries().size();
    luna_tensor_entry& part = weight.entries()[i];
    const std::uint64_t n_bytes = part.n_bytes;
    switch (random() % 5) {
      case 0:
        weight.resize(i, random() % n_bytes, random);
        break;
      case 1:
        weight.resize(i, n_bytes, random);  // its own size, and any groups and scales
        break;
      case 2:
        part.dims[random() % 2] = kSizes[random() % kSizes.size()];
        break;
      case 3:
        part.rank = static_cast<std::uint32_t>(random() % 6);
        break;
      default:
        part.type = static_cast<std::uint32_t>(random() % 12);
    }
    const Asked asked = asked_of(layout, weight);
    run.phase(asked.who + ", part " + std::to_string(i) + " changed");
    luna_weight_desc desc{};
    if (format.describe(asked, desc)) decode_all(run, format, asked, desc);
  }
}

// Entries that lie about their shape or are cut off: refused, and nothing beyond them is read.
void check_hostile(CaseRun& run) {
  const auto subject = Subject::load(run);
  if (subject == nullptr) return;
  auto quant = subject->make<luna_quant_if>(LUNA_KIND_QUANT);
  if (!quant) return;
  Format format(run, std::move(quant));
  std::mt19937_64 random(run.input().seed);
  constexpr std::array<std::uint64_t, 10> kSizes = {
      0, 1, 31, 32, 255, 256, 257, std::uint64_t{1} << 28, std::uint64_t{1} << 40, UINT64_MAX};
  for (const std::uint32_t container : kContainers) {
    for (std::uint32_t n_type = 0; n_type < kTypesMax + 8; ++n_type) {
      const std::uint32_t type = n_type == kTypesMax + 7 ? UINT32_MAX : n_type;
      run.phase("type " + std::to_string(type) + " of container " + std::to_string(container));
      if (const std::uint64_t n = find_size(format, container, type, kShapes[1]); n > 0)
        try_sizes(run, format, Entry(container, type, kShapes[1], n));
      for (int n = 0; n < 40 && !run.has_failed(); ++n) {
        const Shape shape{kSizes[random() % kSizes.size()], kSizes[random() % kSizes.size()]};
        Entry e(container, type, shape, random() % 5000);
        e.fill(random);
        e.entry.rank = static_cast<std::uint32_t>(random() % 6);
        run.phase(e.asked().who + " rank " + std::to_string(e.entry.rank));
        luna_weight_desc desc{};
        if (format.describe(e.asked(), desc)) decode_all(run, format, e.asked(), desc);
      }
      if (run.has_failed()) return;
    }
  }
  for (const PackedLayout& layout : packed_layouts())
    try_packed(run, format, layout, random);
}

constexpr auto kCases = std::to_array<Case>({
    {"E.quant.decoding", LUNA_KIND_QUANT, "Q3", check_decoding},
    {"E.quant.hostile", LUNA_KIND_QUANT, "Q3", check_hostile},
});

}  // namespace

std::span<const Case> quant_cases() {
  return kCases;
}

}  // namespace luna::check
