// Writes GGUF bytes in memory, right ones and wrong ones.
#pragma once

#include "core/model/weight_file.hpp"

#include <luna/float16.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace luna::test {

/// Bytes under construction.
class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return append(&value, sizeof(T));
  }
  Bytes& text(std::string_view s) {
    put<std::uint64_t>(s.size());
    return raw(s);
  }
  Bytes& raw(std::string_view s) { return append(s.data(), s.size()); }
  Bytes& raw(std::span<const std::byte> s) { return append(s.data(), s.size()); }
  Bytes& pad(std::size_t alignment) {
    while (bytes_.size() % alignment != 0)
      bytes_.push_back(std::byte{0});
    return *this;
  }
  std::vector<std::byte> bytes_;

 private:
  Bytes& append(const void* from, std::size_t n) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + n);
    if (n != 0) std::memcpy(bytes_.data() + at, from, n);
    return *this;
  }
};

using model::ValueType;

struct GgufKey {
  std::string key;
  std::vector<std::byte> value;  // type number, then the value
};

inline GgufKey raw_key(std::string key, Bytes value) {
  return {std::move(key), std::move(value.bytes_)};
}
inline Bytes typed(ValueType type) {
  Bytes bytes;
  bytes.put(static_cast<std::uint32_t>(type));
  return bytes;
}
inline GgufKey key_u32(std::string key, std::uint32_t value) {
  return raw_key(std::move(key), typed(ValueType::u32).put(value));
}
inline GgufKey key_f32(std::string key, float value) {
  return raw_key(std::move(key), typed(ValueType::f32).put(value));
}
inline GgufKey key_bool(std::string key, bool value) {
  return raw_key(std::move(key), typed(ValueType::boolean).put<std::uint8_t>(value ? 1 : 0));
}
inline GgufKey key_text(std::string key, std::string_view value) {
  return raw_key(std::move(key), typed(ValueType::string).text(value));
}
inline Bytes array_of(ValueType element, std::uint64_t n) {
  return typed(ValueType::array).put(static_cast<std::uint32_t>(element)).put(n);
}
inline GgufKey key_texts(std::string key, const std::vector<std::string>& values) {
  Bytes bytes = array_of(ValueType::string, values.size());
  for (const std::string& value : values)
    bytes.text(value);
  return raw_key(std::move(key), std::move(bytes));
}
template <typename T>
GgufKey key_numbers(std::string key, ValueType element, const std::vector<T>& values) {
  Bytes bytes = array_of(element, values.size());
  for (const T value : values)
    bytes.put(value);
  return raw_key(std::move(key), std::move(bytes));
}

struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> dims;  // fastest first, as in the file
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

/// A file by its parts; every part may be set wrong.
struct GgufParts {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::vector<GgufKey> keys;
  std::vector<GgufTensor> tensors;
  std::vector<std::byte> data;
  std::size_t alignment = 32;
  std::uint64_t extra_tensors = 0;  // added to the count of the header
  std::uint64_t extra_keys = 0;

  /// Appends a tensor and its bytes at the next aligned offset.
  void add_tensor(std::string name,
                  std::vector<std::uint64_t> dims,
                  std::uint32_t type,
                  std::span<const std::byte> bytes) {
    tensors.push_back({std::move(name), std::move(dims), type, data.size()});
    data.insert(data.end(), bytes.begin(), bytes.end());
    while (data.size() % alignment != 0)
      data.push_back(std::byte{0});
  }
  void set(GgufKey key) {
    for (GgufKey& present : keys) {
      if (present.key == key.key) {
        present = std::move(key);
        return;
      }
    }
    keys.push_back(std::move(key));
  }
  void drop(std::string_view key) {
    std::erase_if(keys, [&](const GgufKey& present) { return present.key == key; });
  }
  GgufTensor& tensor(std::string_view name) {
    for (GgufTensor& t : tensors)
      if (t.name == name) return t;
    std::abort();
  }

  [[nodiscard]] std::vector<std::byte> write() const {
    Bytes out;
    out.raw(magic).put(version);
    out.put<std::uint64_t>(tensors.size() + extra_tensors);
    out.put<std::uint64_t>(keys.size() + extra_keys);
    for (const GgufKey& key : keys)
      out.text(key.key).raw(key.value);
    for (const GgufTensor& t : tensors) {
      out.text(t.name).put(static_cast<std::uint32_t>(t.dims.size()));
      for (const std::uint64_t dim : t.dims)
        out.put(dim);
      out.put(t.type).put(t.offset);
    }
    if (!tensors.empty()) out.pad(alignment);
    return std::move(out.raw(data).bytes_);
  }
};

/// The sizes of a small llama.
struct TinyShape {
  std::uint32_t n_layers = 1;
  std::uint32_t hidden_size = 32;
  std::uint32_t n_heads = 2;
  std::uint32_t n_kv_heads = 1;
  std::uint32_t ffn_size = 64;
  std::uint32_t vocab_size = 260;
  bool tied_head = true;
  std::uint32_t context_length = 64;
  bool is_quantized = false;  // matrices as Q8_0, their rows a multiple of 32
};

/// Makes the F32 values of a tensor from its name and count.
using TinyValues = std::function<std::vector<float>(const std::string& name, std::size_t n)>;

inline std::vector<float> zeros(const std::string& /*name*/, std::size_t n) {
  return std::vector<float>(n, 0.0F);
}

/// Blocks of 32 values: an FP16 scale and 32 integers of 8 bits.
inline std::vector<std::byte> to_q8_0(std::span<const float> values) {
  Bytes out;
  for (std::size_t first = 0; first + 32 <= values.size(); first += 32) {
    const auto block = values.subspan(first, 32);
    float largest = 0.0F;
    for (const float value : block)
      largest = std::max(largest, std::fabs(value));
    const std::uint16_t scale = f32_to_f16(largest / 127.0F);
    out.put(scale);
    for (const float value : block)
      out.put(static_cast<std::int8_t>(largest == 0.0F ? 0.0F
                                                       : std::nearbyint(value / largest * 127.0F)));
  }
  return std::move(out.bytes_);
}

/// A whole and right llama with F32 or Q8_0 weights and a byte-level vocabulary.
inline GgufParts tiny_llama(const TinyShape& shape = {}, const TinyValues& values = zeros) {
  GgufParts parts;
  parts.keys = {key_text("general.architecture", "llama"),
                key_text("general.name", "tiny"),
                key_u32("general.alignment", 32),
                key_u32("llama.block_count", shape.n_layers),
                key_u32("llama.context_length", shape.context_length),
                key_u32("llama.embedding_length", shape.hidden_size),
                key_u32("llama.feed_forward_length", shape.ffn_size),
                key_u32("llama.attention.head_count", shape.n_heads),
                key_u32("llama.attention.head_count_kv", shape.n_kv_heads),
                key_f32("llama.attention.layer_norm_rms_epsilon", 1e-5F),
                key_u32("llama.rope.dimension_count", shape.hidden_size / shape.n_heads),
                key_f32("llama.rope.freq_base", 10000.0F),
                key_u32("llama.vocab_size", shape.vocab_size),
                key_text("tokenizer.ggml.model", "gpt2"),
                key_text("tokenizer.ggml.pre", "smollm")};
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  for (std::uint32_t i = 0; i < shape.vocab_size; ++i) {
    tokens.push_back("t" + std::to_string(i));
    types.push_back(i < 4 ? 3 : 1);
  }
  parts.keys.push_back(key_texts("tokenizer.ggml.tokens", tokens));
  parts.keys.push_back(key_numbers("tokenizer.ggml.token_type", ValueType::i32, types));
  parts.keys.push_back(key_texts("tokenizer.ggml.merges", {"t h"}));
  parts.keys.push_back(key_u32("tokenizer.ggml.bos_token_id", 1));
  parts.keys.push_back(key_u32("tokenizer.ggml.eos_token_id", 2));
  parts.keys.push_back(key_text("tokenizer.chat_template", "{{ messages }}"));

  const auto add = [&](const std::string& name, std::vector<std::uint64_t> dims) {
    std::size_t n = 1;
    for (const std::uint64_t dim : dims)
      n *= dim;
    const std::vector<float> floats = values(name, n);
    if (shape.is_quantized && dims.size() == 2) {
      constexpr std::uint32_t kQ8_0 = 8;
      parts.add_tensor(name, std::move(dims), kQ8_0, to_q8_0(floats));
    } else {
      parts.add_tensor(name, std::move(dims), 0, std::as_bytes(std::span(floats)));
    }
  };
  const std::uint64_t hidden = shape.hidden_size;
  const std::uint64_t kv = hidden / shape.n_heads * shape.n_kv_heads;
  add("token_embd.weight", {hidden, shape.vocab_size});
  add("output_norm.weight", {hidden});
  if (!shape.tied_head) add("output.weight", {hidden, shape.vocab_size});
  for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    add(blk + "attn_norm.weight", {hidden});
    add(blk + "attn_q.weight", {hidden, hidden});
    add(blk + "attn_k.weight", {hidden, kv});
    add(blk + "attn_v.weight", {hidden, kv});
    add(blk + "attn_output.weight", {hidden, hidden});
    add(blk + "ffn_norm.weight", {hidden});
    add(blk + "ffn_gate.weight", {hidden, shape.ffn_size});
    add(blk + "ffn_up.weight", {hidden, shape.ffn_size});
    add(blk + "ffn_down.weight", {shape.ffn_size, hidden});
  }
  return parts;
}

}  // namespace luna::test
