// Numbers as they lie on the wire: little-endian, at fixed places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace luna::tcp {

template <typename Number>
void store(std::span<std::byte> bytes, std::size_t offset, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    bytes[offset + i] = static_cast<std::byte>(static_cast<std::uint64_t>(number) >> (8 * i));
}

template <typename Number>
Number load(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    number |= std::to_integer<std::uint64_t>(bytes[offset + i]) << (8 * i);
  return static_cast<Number>(number);
}

template <typename Number>
void append(std::vector<std::byte>& bytes, Number number) {
  bytes.resize(bytes.size() + sizeof(Number));
  store(std::span(bytes), bytes.size() - sizeof(Number), number);
}

inline void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  // Not insert(): GCC 12 sees it write beyond an empty vector.
  for (const std::byte byte : more)
    bytes.push_back(byte);
}

}  // namespace luna::tcp
