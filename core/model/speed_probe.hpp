// How fast a device computes the parts of a model: measured at start, by its own programs.
#pragma once

#include "core/model/device.hpp"
#include "core/model/load_forecast.hpp"
#include "core/model/program_builder.hpp"
#include "core/model/weight_source.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <string>

namespace luna::model {

/// What is measured: the model's first layer and a part of its head, as they lie in the file.
struct ProbeSubject {
  const ModelConfig* config = nullptr;
  WeightSource* source = nullptr;  ///< the tensors of probe_tensors() are open
  ProgramOptions program;          ///< numerics and KV as the model will have them
};

/// Names of the tensors that a probe reads.
std::vector<std::string> probe_tensors(const ModelConfig& config);

/// Runs one layer at 1, 32 and 256 rows and the head at 1 and 32, each a few times with the caches
/// swept in between, since in a whole model every layer comes from memory. [start-up]
///
/// Errors  exhausted: the device's budget has no room for a layer beside what it holds; what the
///         backend answers
/// Cost    0.1 to 0.2 s for a layer of some million weights; packs that layer
Result<DeviceSpeed> probe_speed(const Device& device, const ProbeSubject& subject);

/// As probe_speed(), from a file of the cache where an equal device was measured with an equal
/// model before; else the file is written. A cache that cannot be read or written costs a log line.
/// Processes that share a cache measure one after the other, and so not each other: of equal
/// devices the first one measures for all.
///
/// cache    a folder, made when it is not there; empty: no cache
Result<DeviceSpeed> probe_speed(const Device& device,
                                const ProbeSubject& subject,
                                const std::filesystem::path& cache);

/// What a measurement depends on: backend, device, threads, shapes, formats, arithmetic.
Result<std::string> probe_key(const Device& device, const ProbeSubject& subject);

/// What somebody else says of a device.
/// Errors  corrupt: numbers that no device can have, more points than anybody measures
Result<void> check_speed(const DeviceSpeed& speed);

/// A measurement as JSON under its key, and back.
/// Errors  corrupt: not such a text, or numbers that no device can have; not_found: of another key
std::string speed_text(const std::string& key, const DeviceSpeed& speed);
Result<DeviceSpeed> read_speed(const std::string& text, const std::string& key);

}  // namespace luna::model
