#include "core/model/weight_source.hpp"

#include "core/model/weight_names.hpp"

#include <luna/backend_blocks.hpp>
#include <luna/plugin.hpp>

#include <algorithm>
#include <cstring>

namespace luna::model {
namespace {

luna_tensor_entry to_entry(const TensorInfo& tensor, std::uint32_t container) {
  luna_tensor_entry entry{};
  entry.name = to_abi(tensor.name);
  entry.container = container;
  entry.type = tensor.type;
  entry.rank = tensor.rank;
  for (std::size_t i = 0; i < tensor.dims.size(); ++i)
    entry.dims[i] = tensor.dims[i];
  entry.bytes = tensor.bytes.data();
  entry.n_bytes = tensor.bytes.size();
  return entry;
}

/// A scalar or string as the contract has it; nothing for arrays.
std::optional<luna_kv> to_row(const MetadataEntry& entry) {
  luna_kv row{};
  row.key = to_abi(entry.key);
  if (const auto* flag = std::get_if<bool>(&entry.value)) {
    row.type = LUNA_TYPE_BOOL;
    row.i = *flag ? 1 : 0;
  } else if (const auto* integer = std::get_if<std::int64_t>(&entry.value)) {
    row.type = LUNA_TYPE_INT;
    row.i = *integer;
  } else if (const auto* count = std::get_if<std::uint64_t>(&entry.value)) {
    row.type = LUNA_TYPE_INT;
    row.i = static_cast<std::int64_t>(*count);
  } else if (const auto* number = std::get_if<double>(&entry.value)) {
    row.type = LUNA_TYPE_FLOAT;
    row.f = *number;
  } else if (const auto* text = std::get_if<std::string_view>(&entry.value)) {
    row.type = LUNA_TYPE_STRING;
    row.s = to_abi(*text);
  } else {
    return std::nullopt;
  }
  return row;
}

/// "type BF16", or "qweight I32, scales F16": what lies in the file.
std::string parts_text(std::span<const TensorInfo* const> parts) {
  if (parts.size() == 1) return "type " + std::string(parts.front()->type_name);
  std::string text;
  for (const TensorInfo* part : parts) {
    text += (text.empty() ? "" : ", ") + printable(part->name.substr(part->name.rfind('.') + 1)) +
            " " + std::string(part->type_name);
  }
  return text;
}

}  // namespace

WeightSource::WeightSource(const WeightFile& file, const ModelConfig& config, QuantInstances quants)
    : file_(file), config_(config), quants_(quants) {
  for (const TensorInfo& tensor : file.tensors())
    entries_.push_back(to_entry(tensor, file.container()));
  for (const MetadataEntry& entry : file.metadata())
    if (const auto row = to_row(entry)) metadata_.push_back(*row);
  table_.struct_size = sizeof(table_);
  table_.entry_stride = sizeof(luna_tensor_entry);
  table_.n_entries = entries_.size();
  table_.entries = entries_.data();
  table_.n_metadata = metadata_.size();
  table_.metadata = metadata_.data();
}

Result<WeightSource::Decoder> WeightSource::find_decoder(const std::string& name) const {
  const auto parts = file_.parts_of(name);
  if (parts.empty()) return Error{Code::not_found, "tensor " + name + ": not in the file"};
  const TensorInfo* whole = file_.find_tensor(name);
  if (whole != nullptr && whole->bytes.empty())
    return Error{Code::internal, "tensor " + name + ": its shard is closed"};
  const TensorInfo* tensor = whole != nullptr ? whole : parts.front();
  const auto idx_of = [this](const TensorInfo* info) {
    return static_cast<std::uint64_t>(info - file_.tensors().data());
  };
  Decoder decoder;
  if (whole != nullptr) decoder.entry = idx_of(whole);
  for (const TensorInfo* part : parts)
    decoder.file_bytes += part->n_bytes;
  std::int32_t best = 0;
  std::string asked;
  for (const auto& quant : quants_) {
    asked += (asked.empty() ? "" : ", ") + quant.name();
    const std::int32_t score = quant->score(quant.self(), &table_, idx_of(tensor));
    if (score > best) {
      best = score;
      decoder.quant = &quant;
    }
  }
  if (decoder.quant == nullptr) {
    return Error{Code::unsupported,
                 "tensor " + printable(file_.name_in_file(name)) +
                     ": no quantization plugin decodes " + parts_text(parts) +
                     " (asked: " + (asked.empty() ? "none" : asked) + ")"};
  }
  return decoder;
}

Result<ShardWeight> WeightSource::describe(const std::string& name) {
  const std::vector<std::string> stack = file_.stack_of(name);
  LUNA_TRY(ShardWeight weight, stack.empty() ? describe_one(name) : describe_stack(name, stack));
  if (Result<void> fits = check_shape(name, weight.desc); !fits)
    return fits.error().in(stack.empty() ? "plugin " + decoders_[name].quant->name()
                                         : "its experts together");
  return weight;
}

/// Weights of one form, one below the other.
Result<ShardWeight> WeightSource::describe_stack(const std::string& name,
                                                 std::span<const std::string> stack) {
  LUNA_TRY(ShardWeight weight, describe_one(stack.front()));
  weight.name = name;
  const luna_weight_desc first = weight.desc;
  for (const std::string& one : stack.subspan(1)) {
    LUNA_TRY(const ShardWeight next, describe_one(one));
    if (std::memcmp(&next.desc, &first, sizeof(first)) != 0) {
      return Error{Code::unsupported,
                   "tensor " + printable(file_.name_in_file(one)) +
                       ": of another form than the first expert's"};
    }
    weight.file_bytes += next.file_bytes;
    weight.desc.n_rows += first.n_rows;
  }
  if (Result<void> sane = check_weight_desc(&weight.desc); !sane)
    return sane.error().in("tensor " + name);
  stacks_[name].assign(stack.begin(), stack.end());
  return weight;
}

Result<ShardWeight> WeightSource::describe_one(const std::string& name) {
  LUNA_TRY(const Decoder decoder, find_decoder(name));
  ShardWeight weight;
  weight.name = name;
  weight.file_bytes = decoder.file_bytes;
  weight.desc.struct_size = sizeof(weight.desc);
  luna_err err = make_err();
  const auto& quant = *decoder.quant;
  const luna_status status =
      quant->describe(quant.self(), &table_, to_abi(name), decoder.entry, &weight.desc, &err);
  LUNA_TRY(to_result(status, err, "plugin " + quant.name() + ": describe"));
  // Memory is sized and shared out by what the plugin said.
  if (Result<void> sane = check_weight_desc(&weight.desc); !sane)
    return sane.error().in("tensor " + name + ": plugin " + quant.name() + ": describe");
  decoders_[name] = decoder;
  return weight;
}

/// A weight with an entry of its name has that entry's shape; one that is spread over others, what
/// the model needs.
Result<void> WeightSource::check_shape(const std::string& name,
                                       const luna_weight_desc& desc) const {
  const TensorInfo* tensor = file_.find_tensor(name);
  WeightShape expected;
  if (tensor == nullptr) {
    const auto needed = weight_shape(config_, name);
    if (!needed) return Error{Code::internal, "tensor " + name + ": not a weight of the model"};
    expected = *needed;
  } else {
    expected = shape_of(*tensor);
  }
  if (expected == WeightShape{desc.n_rows, desc.n_cols}) return {};
  return Error{tensor == nullptr ? Code::corrupt : Code::internal,
               "tensor " + printable(file_.name_in_file(name)) + ": described as " +
                   std::to_string(desc.n_rows) + " x " + std::to_string(desc.n_cols) +
                   ", expected " + std::to_string(expected.n_rows) + " x " +
                   std::to_string(expected.n_cols)};
}

/// Rows of the weights that a range reaches into, each into its part of the planes.
Result<void> WeightSource::decode_stack(std::span<const std::string> stack,
                                        const ShardWeight& weight,
                                        const luna_weight_rows& rows) const {
  const std::uint64_t n_each = weight.n_rows_total() / stack.size();
  const std::uint64_t begin = weight.first_row + rows.first_row;
  for (std::uint64_t done = 0; done < rows.n_rows;) {
    const std::uint64_t row = begin + done;
    ShardWeight one = weight;
    one.name = stack[row / n_each];
    one.desc.n_rows = n_each;
    one.n_rows_elsewhere = 0;
    one.first_row = 0;
    luna_weight_rows part = rows;
    part.first_row = row % n_each;
    part.n_rows = std::min(rows.n_rows - done, n_each - part.first_row);
    for (std::size_t plane = 0; plane < LUNA_N_PLANES; ++plane)
      if (rows.planes[plane] != nullptr)
        part.planes[plane] =
            static_cast<std::byte*>(rows.planes[plane]) + done * weight.desc.row_bytes[plane];
    LUNA_TRY(decode(one, part));
    done += part.n_rows;
  }
  return {};
}

Result<void> WeightSource::decode(const ShardWeight& weight, const luna_weight_rows& rows) const {
  if (const auto stack = stacks_.find(weight.name); stack != stacks_.end())
    return decode_stack(stack->second, weight, rows);
  const auto found = decoders_.find(weight.name);
  if (found == decoders_.end())
    return Error{Code::internal, "tensor " + weight.name + ": decoded before it was described"};
  const auto& quant = *found->second.quant;
  luna_weight_desc whole = weight.desc;
  whole.n_rows = weight.n_rows_total();
  luna_weight_rows wanted = rows;
  wanted.first_row += weight.first_row;
  luna_err err = make_err();
  const luna_status status = quant->decode(
      quant.self(), &table_, to_abi(weight.name), found->second.entry, &whole, &wanted, &err);
  return to_result(status, err, "plugin " + quant.name() + ": decode");
}

}  // namespace luna::model
