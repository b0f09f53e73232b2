#include "core/model/architecture.hpp"

#include "core/base/assert.hpp"
#include "core/model/architectures/all.hpp"
#include "core/model/model_config.hpp"

#include <algorithm>
#include <array>

namespace luna::model {
namespace {

constexpr std::array<const Architecture*, 8> kArchitectures = {
    &kLlama, &kMixtral, &kQwen2, &kQwen3, &kQwen3Moe, &kGemma2, &kGemma3, &kPhi3};

}  // namespace

std::span<const Architecture* const> architectures() {
  return kArchitectures;
}

const Architecture* find_architecture(std::string_view name) {
  const auto found = std::ranges::find(kArchitectures, name, &Architecture::name);
  return found == kArchitectures.end() ? nullptr : *found;
}

const Architecture& architecture_of(const ModelConfig& config) {
  const Architecture* found = find_architecture(config.architecture);
  LUNA_VERIFY(found != nullptr);
  return *found;
}

std::string known_architectures() {
  std::string known;
  for (const Architecture* architecture : kArchitectures)
    if (architecture != &kMixtral)  // whose files say "llama"
      known += (known.empty() ? "" : ", ") + std::string(architecture->gguf_name);
  return known;
}

}  // namespace luna::model
