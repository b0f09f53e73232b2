// What has been measured so far, in a file: a campaign goes on where the last invocation stopped.
#pragma once

#include "run_figures.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace luna::sol_against_luna {

/// Runs by a key that says all that decides their outcome. [main]
class Journal {
 public:
  /// Reads the file if it is there.
  ///
  /// path    empty: nothing is kept
  /// Errors  io; corrupt
  static Result<Journal> open(std::filesystem::path path);

  [[nodiscard]] const RunFigures* find_run(const std::string& key) const;
  [[nodiscard]] std::optional<double> find_number(const std::string& key) const;
  [[nodiscard]] const std::map<std::string, RunFigures>& runs() const { return runs_; }

  /// Adds or replaces, and writes the file.
  /// Errors  io
  Result<void> add_run(const std::string& key, RunFigures figures);
  Result<void> add_number(const std::string& key, double number);

 private:
  [[nodiscard]] Result<void> save() const;

  std::filesystem::path path_;
  std::map<std::string, RunFigures> runs_;
  std::map<std::string, double> numbers_;
};

/// Writes a whole file or nothing. Errors  io
Result<void> write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace luna::sol_against_luna
