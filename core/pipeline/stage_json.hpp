// The JSON that core and roles exchange, as <luna/role.hpp> describes it.
#pragma once

#include "core/pipeline/request.hpp"

#include <luna/result.hpp>

#include <boost/json/value.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace luna::pipeline {

/// Limits and sampling that a role may set, each only when it did.
struct RunOverrides {
  std::optional<std::uint32_t> n_generated_max;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<std::uint32_t> top_k;

  void apply(SamplingParams& sampling) const;
};

/// What the UPDATE items of earlier stages say about a choice.
class StageUpdates {
 public:
  /// Errors  invalid_argument (not an object, a name that is core's, a value of a wrong type or
  ///         range); unsupported (too many keys)
  Result<void> merge(std::string_view update_json);

  /// The lower of the client's limit and the updates'.
  [[nodiscard]] std::uint32_t settle_length(std::uint32_t n_generated_max) const;
  [[nodiscard]] const RunOverrides& overrides() const { return overrides_; }
  /// Keys that mean nothing to core, and their values as JSON.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& notes() const {
    return notes_;
  }
  /// The text of a note, if it is one.
  [[nodiscard]] std::string note(std::string_view key) const;

 private:
  RunOverrides overrides_;
  std::vector<std::pair<std::string, std::string>> notes_;
};

/// What a MODEL_REQUEST item asks for.
struct ModelWish {
  std::optional<boost::json::object> template_variables;  ///< messages of the role's own
  std::optional<std::string> prompt;                      ///< text of the role's own
  std::vector<std::string> allowed_text;
  std::optional<std::vector<std::string>> stop_strings;
  RunOverrides overrides;

  [[nodiscard]] bool is_clients_prompt() const { return !template_variables && !prompt; }

  /// Errors  invalid_argument (what is wrong with which key)
  static Result<ModelWish> parse(std::string_view wish_json);
};

/// Makes the REQUEST items of one request. What never changes is written once, since a prompt can
/// be megabytes and the stages many.
class RequestItemWriter {
 public:
  /// On the client's thread.
  explicit RequestItemWriter(const Request& request);

  struct Place {
    std::size_t stage = 0;
    std::uint32_t choice = 0;
  };
  [[nodiscard]] std::string write(Place place,
                                  const Request& request,
                                  const StageUpdates& updates) const;

 private:
  std::string head_;  // an object without its closing brace
};

}  // namespace luna::pipeline
