// Any bytes as config.json, generation_config.json and model.safetensors.index.json: what they say
// within its bounds, or the field named.
#include "core/model/hf_folder.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)luna::model::parse_generation_end_ids(text);
  if (const auto config = luna::model::parse_hf_config(text)) {
    if (config->vocab_size == 0) __builtin_trap();
    for (const float factor : config->rope_factors)
      if (!(factor > 0.0F)) __builtin_trap();
  }
  if (const auto files = luna::model::parse_hf_index(text)) {
    for (const auto& [tensor, file] : *files)
      if (file.find('/') != std::string::npos || file.front() == '.') __builtin_trap();
  }
  return 0;
}
