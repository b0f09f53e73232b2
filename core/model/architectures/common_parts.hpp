// Halves of layers, and fields, that families have in common. A family writes what it has alone.
#pragma once

#include "core/model/layer_ops.hpp"

#include <luna/result.hpp>

namespace luna::model {

class HfFields;
class HfKeys;

/// x += attention(norm(x)), by four plain matrices.   x: [n, hidden_size]
void write_attention(LayerOps& ops, ViewId x);
/// The same, with query and key heads normed before they are rotated.
void write_head_normed_attention(LayerOps& ops, ViewId x);
/// x += down(silu(gate(a)) * up(a)), a = norm(x).   x: [n, hidden_size]
void write_silu_ffn(LayerOps& ops, ViewId x);

/// Qwen's folders: the field "sliding_window" stands in all of them, and counts where
/// "use_sliding_window" is true.
Result<void> translate_qwen_fields(const HfFields& fields, HfKeys& keys);

}  // namespace luna::model
