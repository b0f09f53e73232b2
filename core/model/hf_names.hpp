// The names of tensors in Hugging Face folders, and ours, which are GGUF's.
#pragma once

#include "core/model/architecture.hpp"

#include <string>
#include <string_view>

namespace luna::model {

/// "model.layers.3.self_attn.q_proj.qweight" -> "blk.3.attn_q.qweight": the module is translated,
/// what a format calls the part stays. A name that is not known stays as it is.
std::string name_from_hf(const Architecture& architecture, std::string_view hf_name);

/// The way back; a name that no folder has stays as it is.
std::string name_to_hf(const Architecture& architecture, std::string_view name);

}  // namespace luna::model
