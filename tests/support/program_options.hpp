// The command line of benchmarks and test drivers: pairs of a name and a value, all names known.
#pragma once

#include <luna/result.hpp>

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace luna {

/// Values by option name ("--model"). Reading one that read() was not told of aborts.
class ProgramOptions {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;

  /// `values` holds every option with its default; an empty default of a name in `required` means
  /// that the command line must give it.
  static Result<ProgramOptions> read(std::span<char*> arguments,
                                     Values values,
                                     std::initializer_list<const char*> required) {
    for (std::size_t i = 1; i < arguments.size(); i += 2) {
      const auto found = values.find(std::string_view(arguments[i]));
      if (found == values.end())
        return Error{Code::invalid_argument, std::string(arguments[i]) + " is not known"};
      if (i + 1 == arguments.size())
        return Error{Code::invalid_argument, std::string(arguments[i]) + " has no value"};
      found->second = arguments[i + 1];
    }
    for (const char* name : required)
      if (values.at(name).empty())
        return Error{Code::invalid_argument, std::string(name) + " is required"};
    return ProgramOptions(std::move(values));
  }

  [[nodiscard]] const std::string& text(std::string_view name) const {
    return values_.find(name)->second;
  }
  /// A number of 1..1,000,000.
  [[nodiscard]] Result<std::uint32_t> number(std::string_view name) const {
    constexpr std::uint32_t kMax = 1'000'000;
    const std::string& digits = text(name);
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value == 0 || value > kMax)
      return Error{Code::invalid_argument,
                   std::string(name) + " " + digits + ": must be a number of 1 to 1000000"};
    return value;
  }

 private:
  explicit ProgramOptions(Values values) : values_(std::move(values)) {}
  Values values_;
};

}  // namespace luna
