// What the validator leaves beside a plugin: that it was checked, by whom, and what came of it.
#pragma once

#include <luna/result.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace luna::plugin {

inline constexpr std::size_t kCheckRecordBytesMax = 4096;

/// One record. It speaks of one very file, one version of the validator and one version of the
/// contract. Whoever can write beside a plugin can write a record: it is a guard against accidents.
struct CheckRecord {
  std::string sha256;   ///< of the plugin's file: 64 lower-case hexadecimal digits
  std::string id;       ///< of the plugin: reverse DNS
  std::string checker;  ///< version of the program that checked
  std::uint32_t abi_major = 0;
  std::uint32_t abi_minor = 0;
  std::string verdict;  ///< kCheckPassed, or what came of it instead
  std::uint64_t n_cases = 0;
  std::uint64_t seed = 0;  ///< the first
  std::uint64_t n_seeds = 0;

  friend bool operator==(const CheckRecord&, const CheckRecord&) = default;
};
inline constexpr std::string_view kCheckPassed = "passed";

/// "scheduler_srf.lunacheck" beside scheduler_srf.so.
std::filesystem::path record_path(const std::filesystem::path& plugin);

/// Lines of a word and a value, and a last one with the SHA-256 of those before it.
std::string print_record(const CheckRecord& record);

/// Errors  corrupt: not what print_record() writes, to the byte
Result<CheckRecord> parse_record(std::string_view text);

/// The version of this program, by which it checks plugins and is checked.
std::string_view program_version();

/// 64 lower-case hexadecimal digits.
std::string sha256_text(std::span<const std::byte> bytes);

}  // namespace luna::plugin
