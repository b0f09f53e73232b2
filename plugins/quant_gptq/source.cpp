#include "source.hpp"

#include <algorithm>
#include <string>

namespace luna::gptq {
namespace {

constexpr std::string_view kConfig = "quantization_config.";

/// A text of the configuration, or `otherwise`.
std::string_view text_or(const TensorTable& table,
                         const std::string& key,
                         std::string_view otherwise) {
  const luna_kv* row = table.find_metadata(std::string(kConfig) + key);
  return row != nullptr && row->type == LUNA_TYPE_STRING ? view(row->s) : otherwise;
}

const luna_kv* find_number(const TensorTable& table, const std::string& key) {
  const luna_kv* row = table.find_metadata(std::string(kConfig) + key);
  return row != nullptr && row->type == LUNA_TYPE_INT ? row : nullptr;
}

}  // namespace

Result<Source> Source::find(const TensorTable& table, std::string_view name) {
  const WeightParts parts(table, name);
  if (!parts.only({"qweight", "qzeros", "scales", "g_idx"}))
    return parts.unsupported("has parts that a GPTQ weight has not");
  Source source;
  LUNA_TRY(source.read_config(table, parts));
  LUNA_TRY(source.read_shapes(parts));
  LUNA_TRY(source.read_order(parts));
  return source;
}

Result<void> Source::read_config(const TensorTable& table, const WeightParts& parts) {
  const std::string_view format = text_or(table, "checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    return parts.unsupported(std::string(kConfig) + "checkpoint_format = \"" + std::string(format) +
                             "\": gptq and gptq_v2 are read");
  }
  zero_shift_ = format == "gptq" ? 1 : 0;
  const luna_kv* bits = find_number(table, "bits");
  if (bits == nullptr) return parts.wrong(std::string(kConfig) + "bits", "missing");
  if (bits->i != 2 && bits->i != 3 && bits->i != 4 && bits->i != 8) {
    return parts.unsupported(std::string(kConfig) + "bits = " + std::to_string(bits->i) +
                             ": must be 2, 3, 4 or 8");
  }
  bits_ = static_cast<std::uint32_t>(bits->i);
  const luna_kv* group = find_number(table, "group_size");
  if (group != nullptr && group->i > 0) stated_group_ = static_cast<std::uint64_t>(group->i);
  for (const luna_kv& row : table.metadata()) {
    if (view(row.key).starts_with(std::string(kConfig) + "dynamic."))
      return parts.unsupported(std::string(kConfig) + "dynamic: bits that differ by module");
  }
  return {};
}

Result<void> Source::read_shapes(const WeightParts& parts) {
  LUNA_TRY(const luna_tensor_entry* qweight, parts.need("qweight", LUNA_DTYPE_I32, 2));
  LUNA_TRY(const luna_tensor_entry* qzeros, parts.need("qzeros", LUNA_DTYPE_I32, 2));
  LUNA_TRY(const luna_tensor_entry* scales, parts.need_floats("scales"));
  n_rows_ = qweight->dims[1];
  n_cols_ = qweight->dims[0] * 32 / bits_;
  if (qweight->dims[0] * 32 % bits_ != 0) {
    return parts.wrong("qweight",
                       std::to_string(qweight->dims[0]) + " rows of words hold no whole codes of " +
                           std::to_string(bits_) + " bits");
  }
  if (scales->rank != 2 || scales->dims[1] != n_rows_) {
    return parts.wrong(
        "scales", "of shape " + shape_text(*scales) + " for " + std::to_string(n_rows_) + " rows");
  }
  n_groups_ = scales->dims[0];
  if (n_rows_ * bits_ % 32 != 0 || qzeros->dims[0] != n_groups_ ||
      qzeros->dims[1] != n_rows_ * bits_ / 32) {
    return parts.wrong("qzeros",
                       "of shape " + shape_text(*qzeros) + " for " + std::to_string(n_groups_) +
                           " groups of " + std::to_string(n_rows_) + " rows");
  }
  qweight_ = static_cast<const std::uint8_t*>(qweight->bytes);
  qzeros_ = static_cast<const std::uint8_t*>(qzeros->bytes);
  scales_ = FloatEntry(*scales);
  group_ = stated_group_.value_or((n_cols_ + n_groups_ - 1) / n_groups_);
  if ((n_cols_ + group_ - 1) / group_ != n_groups_) {
    return parts.wrong("scales",
                       "for " + std::to_string(n_groups_) + " groups, but " +
                           std::to_string(n_cols_) + " columns in groups of " +
                           std::to_string(group_) + " make another number");
  }
  group_ = std::min(group_, n_cols_);
  return {};
}

Result<void> Source::read_order(const WeightParts& parts) {
  if (parts.find("g_idx") == nullptr) return {};
  LUNA_TRY(const luna_tensor_entry* g_idx, parts.need("g_idx", LUNA_DTYPE_I32, 1));
  if (g_idx->dims[0] != n_cols_) {
    return parts.wrong(
        "g_idx",
        std::to_string(g_idx->dims[0]) + " entries for " + std::to_string(n_cols_) + " columns");
  }
  g_idx_ = static_cast<const std::uint8_t*>(g_idx->bytes);
  for (std::uint64_t col = 0; col < n_cols_; ++col) {
    const std::uint32_t group = load_word(g_idx_, col);
    if (group >= n_groups_) {
      return parts.wrong("g_idx",
                         "column " + std::to_string(col) + " is of group " + std::to_string(group) +
                             " of " + std::to_string(n_groups_));
    }
    is_mixed_ = is_mixed_ || group != col / group_;
  }
  return {};
}

}  // namespace luna::gptq
