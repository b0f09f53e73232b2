// Every family that is built. architecture.cpp lists them.
#pragma once

#include "core/model/architecture.hpp"

namespace luna::model {

extern const Architecture kLlama;    // Llama 2 and 3, Mistral, and what else GGUF calls "llama"
extern const Architecture kMixtral;  // "llama" with experts
extern const Architecture kQwen2;
extern const Architecture kQwen3;
extern const Architecture kQwen3Moe;
extern const Architecture kGemma2;
extern const Architecture kGemma3;  // its text models
extern const Architecture kPhi3;

}  // namespace luna::model
