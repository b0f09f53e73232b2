// The settings of the role, checked.
#pragma once

#include "../role_pattern/pattern.hpp"

#include <luna/plugin.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace luna::intent {

inline constexpr luna_param kParams[] = {
    param(LUNA_TYPE_STRING_LIST,
          "labels",
          nullptr,
          nullptr,
          nullptr,
          nullptr,
          "The intents a request can have; by model they must differ in their first token."),
    param(LUNA_TYPE_STRING,
          "method",
          "model",
          nullptr,
          nullptr,
          "model|regex",
          "How a request is classified: one token of the stage's model, or patterns."),
    param(LUNA_TYPE_STRING,
          "default_label",
          "",
          nullptr,
          nullptr,
          nullptr,
          "The intent of a request that cannot be classified; empty: the last of the labels."),
    param(LUNA_TYPE_STRING_MAP,
          "patterns",
          "",
          nullptr,
          nullptr,
          nullptr,
          "By method regex: label = pattern (PCRE2); the first that matches decides."),
    param(LUNA_TYPE_STRING_MAP,
          "updates",
          "",
          nullptr,
          nullptr,
          nullptr,
          "label = JSON object of limits and sampling for the later stages: "
          "'{\"max_tokens\": 256, \"temperature\": 0.2}'."),
    param(LUNA_TYPE_STRING,
          "prompt",
          "Classify the request below as one of: {labels}.\n\nRequest: {text}\n\n"
          "Answer with one word.",
          nullptr,
          nullptr,
          nullptr,
          "By method model: the question, with {labels} and {text} in it."),
    param(LUNA_TYPE_INT,
          "text_bytes_max",
          "4096",
          "1",
          "1048576",
          nullptr,
          "How much of a request is looked at, from its beginning."),
};

/// One intent.
struct Label {
  std::string name;
  std::string update_json;                  ///< {"intent": name, ...}, what its UPDATE says
  std::optional<pattern::Pattern> pattern;  ///< by patterns; none: never matched
};

struct IntentSettings {
  enum class Method { model, regex };

  Method method = Method::model;
  std::vector<Label> labels;       ///< as listed
  std::vector<std::size_t> order;  ///< by patterns: indices of labels, in the order of the patterns
  std::size_t default_idx = 0;     ///< of the label of what cannot be classified
  std::string prompt;
  std::size_t text_bytes_max = 0;
  std::string labels_text;  ///< "a, b, c", for {labels}
  std::string labels_json;  ///< ["a","b","c"]
  std::string choices;      ///< each label and a zero byte

  /// Errors  invalid_argument (the key, the label, what is wrong)
  static Result<IntentSettings> read(const Settings& settings);
};

}  // namespace luna::intent
