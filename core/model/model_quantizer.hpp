// Makes a smaller model of a model: `luna quantize`.
#pragma once

#include "core/model/packed_quantizer.hpp"
#include "core/model/shard_writer.hpp"
#include "core/model/weight_source.hpp"

#include <luna/result.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace luna::model {

struct QuantizeOptions {
  std::filesystem::path source;  // a model of any format that a plugin decodes
  std::filesystem::path out;     // a file for GGUF types, a folder for the others
  std::string type;              // q4_0, q4_1, q8_0, q4_k; awq, gptq, int8
  std::uint32_t group = 128;     // awq, gptq, int8: columns that share a scale; 0: the whole row
  // Token ids of a text by which inputs are weighed; empty: round to nearest.
  std::vector<std::uint32_t> calibration;
  bool force = false;           // replace what is there
  std::uint32_t n_threads = 0;  // 0: one per usable hardware thread
  ShardProgress progress;       // may be empty
};

/// What was written.
struct QuantizeReport {
  std::uint64_t n_weights = 0;     // that were quantized
  std::uint64_t source_bytes = 0;  // of all tensors
  std::uint64_t n_bytes = 0;
};

/// Decodes the matrices of the layers, rounds them to nearest in another type, and writes the model
/// with them. With a calibration text each layer's inputs are scaled first (awq_scales.hpp), which
/// changes its norms and nothing that it computes. Of GGUF files embedding and head become Q8_0, of
/// folders they stay; vectors stay. The files get their names when all are on the disk; whatever
/// fails before leaves nothing. [start-up]
///
/// Errors   not_found, corrupt, unsupported: of the source; invalid_argument: type, group, or a
///          place that is taken; unsupported: a shape that the type cannot hold (tensor, numbers),
///          a folder to a GGUF type or the other way round; exhausted: the disk has too little
///          room; cancelled: by `progress`; io
/// Cost     reads the source once; memory for one weight, of folders for a gibibyte of output; with
/// a
///          calibration text for a layer in FP32, and of GGUF files for all layers that are written
Result<QuantizeReport> quantize_model(const QuantizeOptions& options, QuantInstances quants);

}  // namespace luna::model
