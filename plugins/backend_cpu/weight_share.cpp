#include "weight_share.hpp"

#include <cstring>

namespace luna::cpu {
namespace {

/// Spreads well enough to tell weights apart; equality is decided by their bytes.
std::uint64_t hash_bytes(const std::byte* data, std::uint64_t n_bytes) {
  constexpr std::uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 / golden ratio
  std::uint64_t hash = n_bytes * kOdd;
  std::uint64_t at = 0;
  for (std::uint64_t word = 0; at + sizeof(word) <= n_bytes; at += sizeof(word)) {
    std::memcpy(&word, data + at, sizeof(word));
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 29U;
  }
  for (; at < n_bytes; ++at)
    hash = (hash ^ std::to_integer<std::uint64_t>(data[at])) * kOdd;
  return hash;
}

/// Field by field: padding says nothing. How the planes lay in the file does not matter any more.
bool is_same_form(const luna_weight_desc& a, const luna_weight_desc& b) {
  return a.klass == b.klass && a.dtype == b.dtype && a.n_rows == b.n_rows && a.n_cols == b.n_cols &&
         a.bits == b.bits && a.group == b.group && a.super == b.super &&
         a.has_offset == b.has_offset && a.zero == b.zero &&
         std::memcmp(a.lut, b.lut, sizeof(a.lut)) == 0;
}

}  // namespace

WeightShare& WeightShare::of_process() {
  static WeightShare share;
  return share;
}

bool WeightShare::share(Weight& weight) {
  const std::uint64_t bytes = kernels::packed_bytes(weight.form);
  const std::uint64_t hash = hash_bytes(weight.packed.data, bytes);
  const std::lock_guard lock(mutex_);
  for (auto [at, end] = entries_.equal_range(hash); at != end;) {
    const Entry& entry = at->second;
    std::shared_ptr<const Mapping> chunk = entry.chunk.lock();
    if (chunk == nullptr) {  // its last user has gone
      at = entries_.erase(at);
      continue;
    }
    if (entry.numerics == weight.numerics && is_same_form(entry.desc, weight.desc) &&
        std::memcmp(entry.data, weight.packed.data, bytes) == 0) {
      give_pages_back(weight.packed.data, bytes);
      weight.packed = {std::move(chunk), entry.data};
      return true;
    }
    ++at;
  }
  entries_.emplace(hash,
                   Entry{weight.packed.chunk, weight.packed.data, weight.desc, weight.numerics});
  return false;
}

}  // namespace luna::cpu
