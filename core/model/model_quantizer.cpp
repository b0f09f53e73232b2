#include "core/model/model_quantizer.hpp"

#include "core/base/output_file.hpp"
#include "core/base/parallel_for.hpp"
#include "core/base/units.hpp"
#include "core/model/architecture.hpp"
#include "core/model/awq_scales.hpp"
#include "core/model/block_quantizer.hpp"
#include "core/model/block_values.hpp"
#include "core/model/gguf_types.hpp"
#include "core/model/gguf_writer.hpp"
#include "core/model/local_shard.hpp"
#include "core/model/memory_plan.hpp"
#include "core/model/packed_folder.hpp"
#include "core/model/weight_names.hpp"
#include "core/model/weight_values.hpp"

#include <luna/abi/quant.h>

#include <algorithm>
#include <functional>
#include <map>
#include <thread>

namespace luna::model {
namespace {

constexpr std::size_t kCalibrationTokensMin = 32;
constexpr std::string_view kFileTypeKey = "general.file_type";
constexpr std::uint64_t kRoomKept = kMiB;  // of the disk: headers and the folder itself

std::optional<PackedForm> packed_form(std::string_view name) {
  if (name == "awq") return PackedForm::awq;
  if (name == "gptq") return PackedForm::gptq;
  if (name == "int8") return PackedForm::int8;
  return std::nullopt;
}

}  // namespace

/// One quantization. Everything it writes has a temporary name until the end.
class ModelQuantizer {
 public:
  ModelQuantizer(const QuantizeOptions& options, QuantInstances quants)
      : options_(options),
        quants_(quants),
        n_threads_(options.n_threads != 0 ? options.n_threads
                                          : std::max(1U, std::thread::hardware_concurrency())) {}

  Result<QuantizeReport> run() {
    const BlockQuantizer* block = block_quantizer(options_.type);
    const auto form = packed_form(options_.type);
    if (block == nullptr && !form) {
      return Error{
          Code::invalid_argument,
          "--type " + options_.type + ": must be q4_0, q4_1, q8_0, q4_k, awq, gptq or int8"};
    }
    if (form && options_.group % 8 != 0)
      return Error{Code::invalid_argument,
                   "--group " + std::to_string(options_.group) + ": must be a multiple of 8, or 0"};
    LUNA_TRY(open());
    LUNA_TRY(check_calibration());
    LUNA_TRY(check_place(block != nullptr));
    if (block != nullptr) {
      LUNA_TRY(write_gguf(*block));
    } else {
      LUNA_TRY(write_folder({*form, options_.group}));
    }
    return report_;
  }

 private:
  [[nodiscard]] WeightFile& file() const { return *source_file_->file; }

  Result<void> open() {
    auto opened = ModelFile::open(options_.source);
    if (!opened) return opened.error();
    source_file_.emplace(std::move(*opened));
    std::vector<std::string> names;
    for (const TensorInfo& tensor : file().tensors()) {
      names.push_back(tensor.name);
      report_.source_bytes += tensor.n_bytes;
    }
    LUNA_TRY(file().open_tensors(names));
    source_.emplace(file(), source_file_->config, quants_);
    return {};
  }

  /// A GGUF file's vocabulary and a folder's are written in other ways: neither becomes the other.
  Result<void> check_place(bool to_gguf) const {
    if (to_gguf != (file().container() == LUNA_CONTAINER_GGUF)) {
      return Error{Code::unsupported,
                   "--type " + options_.type + ": " + options_.source.string() +
                       (to_gguf ? " is a folder; awq, gptq and int8 are made of those"
                                : " is GGUF; q4_0, q4_1, q8_0 and q4_k are made of that")};
    }
    if (!to_gguf && source_file_->config.experts.n > 0) {
      return Error{Code::unsupported,
                   "--type " + options_.type + ": folders of mixtures of experts are not written"};
    }
    if (!to_gguf && architecture_of(source_file_->config).has_hf_norms_less_one) {
      return Error{Code::unsupported,
                   "--type " + options_.type + ": folders of " + source_file_->config.architecture +
                       " models, whose norms are kept less one, are not written"};
    }
    std::error_code error;
    if (std::filesystem::exists(options_.out, error) && !options_.force) {
      const bool is_free = !to_gguf && std::filesystem::is_directory(options_.out, error) &&
                           std::filesystem::is_empty(options_.out, error);
      if (!is_free)
        return Error{Code::invalid_argument,
                     options_.out.string() + ": there already; --force replaces it"};
    }
    if (std::filesystem::equivalent(options_.out, options_.source, error))
      return Error{Code::invalid_argument, options_.out.string() + ": is the source itself"};
    return {};
  }

  Result<void> check_calibration() const {
    if (options_.calibration.empty()) return {};
    // The pass that keeps a layer's inputs computes a Llama's.
    if (source_file_->config.architecture != "llama") {
      return Error{Code::unsupported,
                   "--calibration: a " + source_file_->config.architecture +
                       " model is rounded to nearest only; llama is calibrated"};
    }
    const std::uint32_t n_vocab = source_file_->config.vocab_size;
    if (options_.calibration.size() < kCalibrationTokensMin ||
        std::ranges::any_of(options_.calibration, [&](auto id) { return id >= n_vocab; })) {
      return Error{Code::invalid_argument,
                   "--calibration: " + std::to_string(options_.calibration.size()) +
                       " tokens; needed are " + std::to_string(kCalibrationTokensMin) +
                       " or more, each below " + std::to_string(n_vocab)};
    }
    return {};
  }

  Result<void> check_room(const std::filesystem::path& folder, std::uint64_t n_bytes) const {
    std::error_code error;
    const std::filesystem::space_info space =
        std::filesystem::space(folder.empty() ? "." : folder, error);
    if (error) return Error{Code::io, folder.string() + ": " + error.message()};
    if (space.available >= n_bytes + kRoomKept) return {};
    return Error{Code::exhausted,
                 folder.string() + ": the model takes " + bytes_text(n_bytes) + ", the disk has " +
                     bytes_text(space.available) + " free"};
  }

  Result<void> tell(std::uint64_t n_bytes) {
    n_read_ += n_bytes;
    const double share = static_cast<double>(n_read_) /
                         static_cast<double>(std::max<std::uint64_t>(1, report_.source_bytes));
    if (options_.progress && !options_.progress(std::min(share, 1.0)))
      return Error{Code::cancelled, "stopped before the end"};
    return {};
  }

  /// What a tensor of a GGUF file becomes; nullptr: it stays.
  [[nodiscard]] const BlockQuantizer* target_of(const TensorInfo& tensor,
                                                const BlockQuantizer& block) const {
    if (tensor.rank != 2) return nullptr;
    if (tensor.name == kEmbeddingName || tensor.name == kHeadName) return block_quantizer("q8_0");
    return weight_shape(source_file_->config, tensor.name) ? &block : nullptr;
  }

  Result<void> write_gguf(const BlockQuantizer& block) {
    GgufLayout layout;
    for (const MetadataEntry& entry : file().metadata())
      if (entry.key != kFileTypeKey) LUNA_TRY(layout.add_key(entry));
    LUNA_TRY(layout.add_count(kFileTypeKey, block.file_type));
    for (const TensorInfo& tensor : file().tensors()) {
      const BlockQuantizer* target = target_of(tensor, block);
      const std::uint32_t type = target == nullptr ? tensor.type : target->type;
      const std::span<const std::uint64_t> dims(tensor.dims.data(), tensor.rank);
      const std::uint32_t n_values = gguf_type_by_number(type)->block_values;
      if (target != nullptr && tensor.dims[1] % n_values != 0) {
        return Error{Code::unsupported,
                     "tensor " + printable(tensor.name) + ": rows of " +
                         std::to_string(tensor.dims[1]) + " values are no whole blocks of " +
                         std::string(target->name) + ", which have " + std::to_string(n_values)};
      }
      LUNA_TRY(layout.add_tensor(tensor.name, type, dims));
    }
    LUNA_TRY(report_.n_bytes, layout.n_file_bytes());
    LUNA_TRY(check_room(options_.out.parent_path(), report_.n_bytes));
    LUNA_TRY(OutputFile out, OutputFile::create(options_.out));
    if (!options_.calibration.empty()) LUNA_TRY(scale_blocks(block));
    GgufWriter writer(layout, [&](std::span<const std::byte> bytes) { return out.append(bytes); });
    LUNA_TRY(writer.write_header());
    for (const TensorInfo& tensor : file().tensors()) {
      if (const auto scaled = scaled_.find(tensor.name); scaled != scaled_.end()) {
        LUNA_TRY(writer.append(scaled->second));
        scaled_.erase(scaled);
        continue;
      }
      if (const BlockQuantizer* target = target_of(tensor, block)) {
        LUNA_TRY(const auto bytes, quantize_blocks(tensor, *target));
        LUNA_TRY(writer.append(bytes));
        ++report_.n_weights;
      } else {
        LUNA_TRY(writer.append(tensor.bytes));
      }
      LUNA_TRY(tell(tensor.n_bytes));
    }
    LUNA_TRY(writer.finish());
    LUNA_TRY(out.close());
    LUNA_TRY(out.commit());
    const auto parent = options_.out.parent_path();
    return sync_folder(parent.empty() ? "." : parent);
  }

  Result<std::vector<std::byte>> quantize_blocks(const TensorInfo& tensor,
                                                 const BlockQuantizer& target) {
    LUNA_TRY(const ShardWeight weight, source_->describe(tensor.name));
    const GgufType& type = *gguf_type_by_number(target.type);
    const std::uint64_t n_row_blocks = weight.desc.n_cols / type.block_values;
    std::vector<std::byte> bytes(weight.desc.n_rows * n_row_blocks * type.block_bytes);
    LUNA_TRY(for_each_rows(
        *source_, weight, n_threads_, [&](std::uint64_t first, std::span<const float> values) {
          target.quantize(values.data(),
                          values.size() / type.block_values,
                          bytes.data() + first * n_row_blocks * type.block_bytes);
          return Result<void>{};
        }));
    return bytes;
  }

  /// Values in memory as blocks; `values` are whole rows.
  std::vector<std::byte> to_blocks(const BlockQuantizer& target, std::span<const float> values) {
    constexpr std::uint64_t kBlocks = 1024;  // of a piece of work
    const GgufType& type = *gguf_type_by_number(target.type);
    const std::uint64_t n_blocks = values.size() / type.block_values;
    std::vector<std::byte> bytes(n_blocks * type.block_bytes);
    parallel_for(n_threads_,
                 (n_blocks + kBlocks - 1) / kBlocks,
                 [&](std::uint32_t /*thread_idx*/, std::uint64_t piece) {
                   const std::uint64_t first = piece * kBlocks;
                   target.quantize(values.data() + first * type.block_values,
                                   std::min(kBlocks, n_blocks - first),
                                   bytes.data() + first * type.block_bytes);
                 });
    return bytes;
  }

  /// The layers of a GGUF file, scaled, for when their turn comes in the file.
  Result<void> scale_blocks(const BlockQuantizer& block) {
    std::optional<Error> failed;
    const Rounding rounding = [&](auto values, std::uint64_t n_rows, std::uint64_t n_cols) {
      auto worth = values_of_blocks(quants_, block.type, to_blocks(block, values), n_rows, n_cols);
      if (!worth && !failed) failed = worth.error();
      return worth ? std::move(*worth) : std::vector<float>(values.begin(), values.end());
    };
    return for_each_scaled(rounding, [&](const std::string& name, std::span<const float> values) {
      if (failed) return Result<void>(*failed);
      const TensorInfo& tensor = *file().find_tensor(name);
      if (tensor.rank == 2) {
        scaled_[name] = to_blocks(block, values);
        ++report_.n_weights;
      } else if (tensor.type_name == "F32") {
        const auto bytes = std::as_bytes(values);
        scaled_[name].assign(bytes.begin(), bytes.end());
      } else {
        return Result<void>(Error{Code::unsupported,
                                  "tensor " + name + ": a norm of type " +
                                      std::string(tensor.type_name) + " cannot be scaled"});
      }
      return Result<void>{};
    });
  }

  Result<void> write_folder(const PackedOptions& packed) {
    PackedFolder out(options_.source, options_.out, architecture_of(source_file_->config));
    LUNA_TRY(out.begin(quantization_config(packed)));
    LUNA_TRY(check_room(options_.out, report_.source_bytes / 2));
    const bool is_scaled = !options_.calibration.empty();
    if (is_scaled) LUNA_TRY(write_scaled_layers(packed, out));
    std::vector<std::string> done;
    for (const TensorInfo& tensor : file().tensors()) {
      if (is_rope_factors(tensor.name)) continue;  // computed from config.json, again
      if (is_scaled && tensor.name.starts_with("blk.")) continue;  // written already
      const std::string weight_name =
          tensor.name.substr(0, tensor.name.rfind('.')) + std::string(".weight");
      const auto shape = weight_shape(source_file_->config, weight_name);
      const bool is_matrix = shape && shape->n_rows > 1 && weight_name.starts_with("blk.");
      if (!is_matrix && file().parts_of(weight_name).size() > 1) {
        return Error{Code::unsupported,
                     "tensor " + printable(file().name_in_file(tensor.name)) +
                         ": quantized already, and not a weight that is quantized again"};
      }
      if (!is_matrix) {
        LUNA_TRY(out.copy(tensor));
      } else if (std::ranges::find(done, weight_name) == done.end()) {
        LUNA_TRY(pack(packed, weight_name, out));
        done.push_back(weight_name);
      }
      LUNA_TRY(tell(tensor.n_bytes));
    }
    LUNA_TRY(report_.n_bytes, out.finish());
    return {};
  }

  /// All values of a weight, row-major.
  Result<std::vector<float>> values_of(const std::string& name) {
    LUNA_TRY(const ShardWeight weight, source_->describe(name));
    std::vector<float> values(weight.desc.n_rows * weight.desc.n_cols);
    LUNA_TRY(for_each_rows(
        *source_, weight, n_threads_, [&](std::uint64_t first, std::span<const float> rows) {
          std::ranges::copy(
              rows, values.begin() + static_cast<std::ptrdiff_t>(first * weight.desc.n_cols));
          return Result<void>{};
        }));
    return values;
  }

  Result<void> pack(const PackedOptions& packed, const std::string& name, PackedFolder& out) {
    LUNA_TRY(const std::vector<float> values, values_of(name));
    return pack_values(packed, name, values, out);
  }

  Result<void> pack_values(const PackedOptions& packed,
                           const std::string& name,
                           std::span<const float> values,
                           PackedFolder& out) {
    const auto shape = weight_shape(source_file_->config, name);
    auto parts = pack_weight(packed, values, shape->n_rows, shape->n_cols);
    if (!parts) return parts.error().in("tensor " + file().name_in_file(name));
    ++report_.n_weights;
    return out.add(name, std::move(*parts));
  }

  /// The hidden states of the calibration text before the first layer.
  Result<Activations> embed() {
    LUNA_TRY(const ShardWeight weight, source_->describe(std::string(kEmbeddingName)));
    const std::uint64_t n_cols = weight.desc.n_cols;
    Activations x(n_cols, options_.calibration.size());
    LUNA_TRY(for_each_rows(
        *source_, weight, n_threads_, [&](std::uint64_t first, std::span<const float> rows) {
          for (std::size_t t = 0; t < options_.calibration.size(); ++t) {
            const std::uint64_t id = options_.calibration[t];
            if (id < first || id >= first + rows.size() / n_cols) continue;
            for (std::uint64_t f = 0; f < n_cols; ++f)
              x.of(f)[t] = rows[(id - first) * n_cols + f];
          }
          return Result<void>{};
        }));
    return x;
  }

  using ScaledSink =
      std::function<Result<void>(const std::string& name, std::span<const float> values)>;

  /// Hands over the weights of one layer after the other, scaled by what the text makes of it.
  Result<void> for_each_scaled(const Rounding& rounding, const ScaledSink& sink) {
    const ModelConfig& config = source_file_->config;
    LUNA_TRY(Activations x, embed());
    for (std::uint32_t layer = 0; layer < config.n_layers; ++layer) {
      LayerValues values;
      std::uint64_t n_bytes = 0;
      for (const LayerWeight weight : architecture_of(config).layer_weights) {
        const std::string name = layer_weight_name(layer, weight);
        LUNA_TRY(values[static_cast<std::size_t>(weight)], values_of(name));
        for (const TensorInfo* part : file().parts_of(name))
          n_bytes += part->n_bytes;
      }
      const LayerInputs inputs = run_layer(config, values, n_threads_, x);
      scale_layer(config, inputs, rounding, n_threads_, values);
      for (const LayerWeight weight : architecture_of(config).layer_weights)
        LUNA_TRY(sink(layer_weight_name(layer, weight), values[static_cast<std::size_t>(weight)]));
      LUNA_TRY(tell(n_bytes));
    }
    return {};
  }

  Result<void> write_scaled_layers(const PackedOptions& packed, PackedFolder& out) {
    const Rounding rounding = [&](auto values, std::uint64_t n_rows, std::uint64_t n_cols) {
      return rounded_values(packed, values, n_rows, n_cols);
    };
    return for_each_scaled(rounding, [&](const std::string& name, std::span<const float> values) {
      if (weight_shape(source_file_->config, name)->n_rows > 1)
        return pack_values(packed, name, values, out);
      const auto bytes = std::as_bytes(values);
      std::vector<PackedPart> parts;
      parts.push_back({"weight", "F32", {values.size()}, {bytes.begin(), bytes.end()}});
      return out.add(name, std::move(parts));
    });
  }

  const QuantizeOptions& options_;
  const QuantInstances quants_;
  const std::uint32_t n_threads_;
  std::optional<ModelFile> source_file_;
  std::optional<WeightSource> source_;
  QuantizeReport report_;
  std::uint64_t n_read_ = 0;
  std::map<std::string, std::vector<std::byte>> scaled_;  // tensors of GGUF, by name
};

Result<QuantizeReport> quantize_model(const QuantizeOptions& options, QuantInstances quants) {
  return ModelQuantizer(options, quants).run();
}

}  // namespace luna::model
