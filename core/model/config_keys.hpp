// Reading the keys of one architecture, "llama." + name, with what each may hold.
#pragma once

#include "core/model/weight_file.hpp"

#include <luna/result.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace luna::model {

inline constexpr std::uint64_t kSizeMax = 1U
                                          << 24;  // widths: above any model, products fit 64 bits
inline constexpr std::uint64_t kLayersMax = 1U << 20;  // check_weights() finds missing layers soon
inline constexpr std::uint64_t kWindowMax = std::numeric_limits<std::uint32_t>::max();

/// The file outlives it. All errors are `corrupt` with key, value and what is allowed, unless said.
class ConfigKeys {
 public:
  ConfigKeys(const WeightFile& file, const std::string& architecture)
      : file_(file), prefix_(architecture + ".") {}

  [[nodiscard]] std::string full(std::string_view name) const {
    return prefix_ + std::string(name);
  }

  /// A count in 1..max, or nothing where the key is absent.
  [[nodiscard]] Result<std::optional<std::uint32_t>> find_count(std::string_view name,
                                                                std::uint64_t max) const {
    LUNA_TRY(const auto value, find_unsigned(file_, full(name)));
    if (!value) return std::optional<std::uint32_t>{};
    if (*value == 0 || *value > max) {
      return Error{
          Code::corrupt,
          full(name) + " = " + std::to_string(*value) + ": must be in 1.." + std::to_string(max)};
    }
    return std::optional<std::uint32_t>{static_cast<std::uint32_t>(*value)};
  }

  [[nodiscard]] Result<std::uint32_t> count(std::string_view name, std::uint64_t max) const {
    LUNA_TRY(const auto value, find_count(name, max));
    if (!value) return Error{Code::corrupt, full(name) + ": the key is missing"};
    return *value;
  }

  /// A finite number above 0, or nothing where the key is absent.
  [[nodiscard]] Result<std::optional<double>> find_positive(std::string_view name) const {
    LUNA_TRY(const auto value, find_number(file_, full(name)));
    if (!value) return std::optional<double>{};
    if (!std::isfinite(*value) || *value <= 0.0) {
      return Error{Code::corrupt,
                   full(name) + " = " + std::to_string(*value) + ": must be finite and above 0"};
    }
    return std::optional<double>{*value};
  }

  [[nodiscard]] Result<double> positive(std::string_view name, double fallback) const {
    LUNA_TRY(const auto value, find_positive(name));
    return value.value_or(fallback);
  }

  /// Refuses a feature that is switched on by a number other than 0. Errors  unsupported
  [[nodiscard]] Result<void> refuse(std::string_view name, std::string_view feature) const {
    LUNA_TRY(const auto value, find_unsigned(file_, full(name)));
    if (value.value_or(0) == 0) return {};
    return Error{Code::unsupported,
                 full(name) + " = " + std::to_string(*value) + ": " + std::string(feature) +
                     " is not built"};
  }

  [[nodiscard]] const WeightFile& file() const { return file_; }

 private:
  const WeightFile& file_;
  const std::string prefix_;
};

}  // namespace luna::model
