// Reading the fields of a config.json, and writing what they say as the keys of a GGUF file.
#pragma once

#include "core/model/hf_config.hpp"

#include <luna/result.hpp>

#include <boost/json/object.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::model {

/// Reads the members of one object, which outlives it; `prefix` says in messages where it stands.
/// A member that is null is one that is not there. Errors are `corrupt`, with field, value and what
/// is allowed, unless said otherwise.
class HfFields {
 public:
  explicit HfFields(const boost::json::object& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  [[nodiscard]] std::string full(std::string_view name) const {
    return prefix_ + std::string(name);
  }
  [[nodiscard]] const boost::json::value* find(std::string_view name) const;

  /// A whole number in 1..max.
  [[nodiscard]] Result<std::optional<std::uint32_t>> find_count(std::string_view name,
                                                                std::uint64_t max) const;
  [[nodiscard]] Result<std::uint32_t> count(std::string_view name, std::uint64_t max) const;
  /// A finite number above 0.
  [[nodiscard]] Result<std::optional<double>> find_positive(std::string_view name) const;
  [[nodiscard]] Result<double> positive(std::string_view name) const;
  [[nodiscard]] Result<bool> flag_or(std::string_view name, bool otherwise) const;
  [[nodiscard]] Result<std::optional<std::string_view>> find_text(std::string_view name) const;
  /// Whether it is there, be it null.
  [[nodiscard]] bool has(std::string_view name) const;
  /// Finite numbers above 0; it must be there and not empty.
  [[nodiscard]] Result<std::vector<float>> positive_list(std::string_view name) const;
  /// By "layer_types": each so many-th layer sees everything, the others have a window. Where all
  /// have one it is larger than n_layers. Errors  unsupported: another order
  [[nodiscard]] Result<std::uint32_t> window_period(std::uint32_t n_layers,
                                                    std::uint32_t otherwise) const;
  /// An object within this one; nothing where it is absent.
  [[nodiscard]] Result<std::optional<HfFields>> find_object(std::string_view name) const;

  // ---- What families refuse. Errors  unsupported

  /// A text that may be absent, but is nothing else than `built`.
  [[nodiscard]] Result<void> need_text(std::string_view name, std::string_view built) const;
  /// "sliding_window", unless no position is beyond it.
  [[nodiscard]] Result<void> refuse_window_below(std::uint32_t context_length) const;
  /// "partial_rotary_factor" other than 1.
  [[nodiscard]] Result<void> refuse_partial_rotary() const;
  /// A flag that is true: the feature is not built.
  [[nodiscard]] Result<void> refuse_flag(std::string_view name) const;

  /// The field must be there. `corrupt`: its value is not allowed.
  [[nodiscard]] Error refused(std::string_view name, const std::string& allowed) const;
  /// The field must be there. `unsupported`: its value is not built.
  [[nodiscard]] Error unsupported(std::string_view name, const std::string& why) const;

 private:
  const boost::json::object& object_;
  const std::string prefix_;
};

/// Appends keys to a configuration, under the prefix of its architecture.
class HfKeys {
 public:
  HfKeys(HfConfig& config, std::string_view architecture)
      : config_(config), prefix_(std::string(architecture) + ".") {}

  void add_count(std::string_view name, std::uint32_t value) {
    add(prefix_ + std::string(name), ValueType::u32, std::uint64_t{value});
  }
  void add_number(std::string_view name, double value) {
    add(prefix_ + std::string(name), ValueType::f64, value);
  }
  void add_flag(std::string_view name, bool value) {
    add(prefix_ + std::string(name), ValueType::boolean, value);
  }
  void add_text(std::string_view name, std::string_view text) {
    add_whole_text(prefix_ + std::string(name), text);
  }
  /// Without the prefix.
  void add_whole_text(const std::string& key, std::string_view text);
  void add(const std::string& key, ValueType type, decltype(MetadataEntry::value) value);

  // What the common part has read already, for what depends on it.
  std::uint32_t context_length = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t n_layers = 0;

 private:
  HfConfig& config_;
  const std::string prefix_;
};

}  // namespace luna::model
