// The text of a token in this benchmark: when it was due, so that whoever receives it knows its
// age.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace luna::bench {

/// Six base-36 digits of microseconds and a space: about as long as a word, and one run of this
/// benchmark (36 minutes at most) has no stamp twice.
inline constexpr std::size_t kStampDigits = 6;
inline constexpr std::size_t kTokenBytes = kStampDigits + 1;
inline constexpr std::uint32_t kStampMod = 2'176'782'336;  // 36^6

/// The clock that both processes read.
inline std::uint64_t now_us() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

inline std::array<char, kTokenBytes> token_of(std::uint64_t due_us) {
  std::array<char, kTokenBytes> token{};
  std::uint64_t rest = due_us % kStampMod;
  for (std::size_t i = kStampDigits; i-- > 0; rest /= 36)
    token[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[rest % 36];
  token[kStampDigits] = ' ';
  return token;
}

/// Microseconds since the token was due.
inline std::uint32_t age_us(std::string_view token, std::uint64_t now) {
  std::uint64_t due = 0;
  for (const char c : token.substr(0, kStampDigits))
    due = due * 36 + static_cast<std::uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  return static_cast<std::uint32_t>((now % kStampMod + kStampMod - due) % kStampMod);
}

}  // namespace luna::bench
