// The weights that layers of all families are made of.
#pragma once

#include <cstddef>
#include <cstdint>

namespace luna::model {

/// A weight of a layer. Which of them a family has, and in which order, is in its Architecture.
enum class LayerWeight : std::uint8_t {
  attention_norm,       // [hidden_size]
  query,                // [n_heads * head_dim, hidden_size]
  key,                  // [n_kv_heads * head_dim, hidden_size]
  value,                // [n_kv_heads * head_dim, hidden_size]
  attention_out,        // [hidden_size, n_heads * head_dim]
  ffn_norm,             // [hidden_size]
  gate,                 // [ffn_size, hidden_size]
  up,                   // [ffn_size, hidden_size]
  down,                 // [hidden_size, ffn_size]
  query_bias,           // [n_heads * head_dim]
  key_bias,             // [n_kv_heads * head_dim]
  value_bias,           // [n_kv_heads * head_dim]
  query_norm,           // [head_dim]
  key_norm,             // [head_dim]
  attention_post_norm,  // [hidden_size], of what attention adds
  ffn_post_norm,        // [hidden_size], of what the FFN adds
  query_key_value,      // [(n_heads + 2 * n_kv_heads) * head_dim, hidden_size], in this order
  gate_up,              // [2 * ffn_size, hidden_size], in this order
  router,               // [n_experts, hidden_size]
  expert_gate,          // [n_experts * expert_ffn_size, hidden_size], expert after expert
  expert_up,            // [n_experts * expert_ffn_size, hidden_size]
  expert_down,          // [n_experts * hidden_size, expert_ffn_size]
};
inline constexpr std::size_t kNLayerWeights = 22;

/// Rows and columns of a weight; vectors have one row.
struct WeightShape {
  std::uint64_t n_rows = 0;
  std::uint64_t n_cols = 0;
  friend bool operator==(const WeightShape&, const WeightShape&) = default;
};

}  // namespace luna::model
