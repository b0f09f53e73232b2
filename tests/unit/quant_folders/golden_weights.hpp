// The weights of tests/golden/quant/formats.safetensors, each as a plugin is shown it.
#pragma once

#include "core/model/safetensors_file.hpp"
#include "support/plugin_fixture.hpp"

#include <luna/quant.hpp>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace luna::test {

/// A weight with its parts and what a folder's configuration says. Parts may be changed.
class GoldenWeight {
 public:
  std::string form;    // "awq": the plugin's short name
  std::string module;  // "awq.0"
  std::vector<luna_tensor_entry> entries;
  std::vector<float> values;      // [n_rows, n_cols], row-major
  std::deque<std::string> texts;  // of entries and metadata
  std::vector<luna_kv> metadata;

  [[nodiscard]] std::string name() const { return module + ".weight"; }
  luna_tensor_entry& part(std::string_view wanted) {
    for (luna_tensor_entry& entry : entries)
      if (view(entry.name) == module + "." + std::string(wanted)) return entry;
    ADD_FAILURE() << module << " has no " << wanted;
    return entries.front();
  }
  void add_part(const std::string& part, const luna_tensor_entry& like) {
    luna_tensor_entry entry = like;
    entry.name = to_abi(texts.emplace_back(module + "." + part));
    entries.push_back(entry);
  }
  void set_number(const std::string& key, std::int64_t value) {
    luna_kv& row = row_of("quantization_config." + key);
    row.type = LUNA_TYPE_INT;
    row.i = value;
  }
  void set_text(const std::string& key, const std::string& value) {
    luna_kv& row = row_of("quantization_config." + key);
    row.type = LUNA_TYPE_STRING;
    row.s = to_abi(texts.emplace_back(value));
  }
  [[nodiscard]] luna_tensor_table table() const {
    luna_tensor_table table{};
    table.struct_size = sizeof(table);
    table.entry_stride = sizeof(luna_tensor_entry);
    table.n_entries = entries.size();
    table.entries = entries.data();
    table.n_metadata = metadata.size();
    table.metadata = metadata.data();
    return table;
  }
  /// The place of the entry of the weight's own name; UINT64_MAX: there is none.
  [[nodiscard]] std::uint64_t own_entry() const {
    for (std::size_t i = 0; i < entries.size(); ++i)
      if (view(entries[i].name) == name()) return i;
    return UINT64_MAX;
  }

 private:
  luna_kv& row_of(const std::string& key) {
    for (luna_kv& row : metadata)
      if (view(row.key) == key) return row;
    luna_kv& row = metadata.emplace_back();
    row.key = to_abi(texts.emplace_back(key));
    return row;
  }
};

/// The file, mapped for as long as the tests run.
inline const model::SafetensorsFile& golden_file() {
  static const model::SafetensorsFile file = [] {
    auto mapped =
        MappedFile::open(LUNA_SOURCE_DIR "/tests/golden/quant/formats.safetensors").value();
    return model::SafetensorsFile::adopt(std::move(mapped)).value();
  }();
  return file;
}

/// All weights of a form, in order.
inline std::vector<std::unique_ptr<GoldenWeight>> golden_weights(const std::string& form) {
  std::vector<std::unique_ptr<GoldenWeight>> weights;
  const model::SafetensorsFile& file = golden_file();
  for (int n = 0;; ++n) {
    const std::string number = std::to_string(n);
    const auto* expected = file.find_tensor(form + "_expected_" + number + ".values");
    if (expected == nullptr) break;
    auto weight = std::make_unique<GoldenWeight>();
    weight->form = form;
    weight->module = form + "." + number;
    weight->values.resize(expected->n_elements());
    std::memcpy(weight->values.data(), expected->bytes.data(), expected->bytes.size());
    for (const model::TensorInfo& tensor : file.tensors()) {
      if (!tensor.name.starts_with(weight->module + ".")) continue;
      luna_tensor_entry entry{};
      entry.name = to_abi(weight->texts.emplace_back(tensor.name));
      entry.container = LUNA_CONTAINER_SAFETENSORS;
      entry.type = tensor.type;
      entry.rank = tensor.rank;
      std::copy(tensor.dims.begin(), tensor.dims.end(), entry.dims);
      entry.bytes = tensor.bytes.data();
      entry.n_bytes = tensor.bytes.size();
      weight->entries.push_back(entry);
    }
    const auto* text = file.find_metadata(weight->module);
    const auto config =
        boost::json::parse(std::string(std::get<std::string_view>(text->value))).as_object();
    for (const auto& [key, value] : config) {
      if (const auto* number_value = value.if_int64()) weight->set_number(key, *number_value);
      if (const auto* string = value.if_string())
        weight->set_text(key, std::string(string->data(), string->size()));
    }
    weights.push_back(std::move(weight));
  }
  return weights;
}

/// Memory for rows of canonical planes, exactly as large as promised.
class ExactPlanes {
 public:
  ExactPlanes(const luna_weight_desc& desc, std::uint64_t first_row, std::uint64_t n_rows) {
    rows_.struct_size = sizeof(rows_);
    rows_.first_row = first_row;
    rows_.n_rows = n_rows;
    for (std::uint32_t plane = 0; plane < LUNA_N_PLANES; ++plane) {
      if (desc.row_bytes[plane] == 0) continue;
      memory_[plane] = std::make_unique<std::byte[]>(desc.row_bytes[plane] * n_rows);
      rows_.planes[plane] = memory_[plane].get();
    }
  }
  luna_weight_rows rows_{};

 private:
  std::array<std::unique_ptr<std::byte[]>, LUNA_N_PLANES> memory_;
};

/// A format's plugin, asked about one weight at a time.
class FormatPlugin {
 public:
  explicit FormatPlugin(const std::string& form)
      : table_(load_table<luna_quant_if>("quant_" + form, LUNA_KIND_QUANT)),
        self_(make_instance(*table_, host_, {}).value()) {}
  FormatPlugin(const FormatPlugin&) = delete;
  FormatPlugin& operator=(const FormatPlugin&) = delete;
  ~FormatPlugin() { table_->head.destroy(self_); }

  std::int32_t score(const GoldenWeight& weight) {
    const luna_tensor_table entries = weight.table();
    return table_->score(self_, &entries, 0);
  }
  Result<luna_weight_desc> describe(const GoldenWeight& weight) {
    const luna_tensor_table entries = weight.table();
    luna_weight_desc desc{};
    desc.struct_size = sizeof(desc);
    luna_err err = make_err();
    LUNA_TRY(to_result(
        table_->describe(self_, &entries, to_abi(weight.name()), weight.own_entry(), &desc, &err),
        err,
        "describe"));
    return desc;
  }
  Result<void> decode(const GoldenWeight& weight,
                      const luna_weight_desc& desc,
                      luna_weight_rows& rows) {
    const luna_tensor_table entries = weight.table();
    luna_err err = make_err();
    return to_result(
        table_->decode(
            self_, &entries, to_abi(weight.name()), weight.own_entry(), &desc, &rows, &err),
        err,
        "decode");
  }
  Result<void> row(const GoldenWeight& weight, std::uint64_t row, std::vector<float>& out) {
    const luna_tensor_table entries = weight.table();
    luna_err err = make_err();
    return to_result(
        table_->row_f32(
            self_, &entries, to_abi(weight.name()), weight.own_entry(), row, out.data(), &err),
        err,
        "row_f32");
  }

 private:
  FakeHost host_;
  const luna_quant_if* table_;
  void* self_;
};

}  // namespace luna::test
