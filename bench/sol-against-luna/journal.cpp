#include "journal.hpp"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

namespace luna::sol_against_luna {
namespace {

namespace json = boost::json;

Error corrupt(const std::filesystem::path& path, const std::string& what) {
  return {Code::corrupt, path.string() + ": " + what};
}

}  // namespace

Result<Journal> Journal::open(std::filesystem::path path) {
  Journal journal;
  journal.path_ = std::move(path);
  std::error_code ignored;
  if (journal.path_.empty() || !std::filesystem::exists(journal.path_, ignored)) return journal;
  std::ifstream file(journal.path_, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return Error{Code::io, journal.path_.string() + ": " + std::strerror(errno)};
  boost::system::error_code failed;
  const json::value root = json::parse(text.str(), failed);
  const json::object* object = failed ? nullptr : root.if_object();
  const json::value* runs = object == nullptr ? nullptr : object->if_contains("runs");
  const json::value* numbers = object == nullptr ? nullptr : object->if_contains("numbers");
  if (runs == nullptr || !runs->is_object() || numbers == nullptr || !numbers->is_object())
    return corrupt(journal.path_, "no journal: needs the objects \"runs\" and \"numbers\"");
  for (const auto& [key, value] : runs->get_object()) {
    if (!value.is_object()) return corrupt(journal.path_, std::string(key) + ": no object");
    auto figures = figures_from_json(value.get_object());
    if (!figures) return figures.error().in(journal.path_.string() + ": " + std::string(key));
    journal.runs_[key] = std::move(*figures);
  }
  for (const auto& [key, value] : numbers->get_object()) {
    if (!value.is_number()) return corrupt(journal.path_, std::string(key) + ": no number");
    journal.numbers_[key] = value.to_number<double>();
  }
  return journal;
}

const RunFigures* Journal::find_run(const std::string& key) const {
  const auto found = runs_.find(key);
  return found == runs_.end() ? nullptr : &found->second;
}

std::optional<double> Journal::find_number(const std::string& key) const {
  const auto found = numbers_.find(key);
  if (found == numbers_.end()) return std::nullopt;
  return found->second;
}

Result<void> Journal::add_run(const std::string& key, RunFigures figures) {
  runs_[key] = std::move(figures);
  return save();
}

Result<void> Journal::add_number(const std::string& key, double number) {
  numbers_[key] = number;
  return save();
}

Result<void> Journal::save() const {
  if (path_.empty()) return {};
  json::object runs, numbers;
  for (const auto& [key, figures] : runs_)
    runs[key] = to_json(figures);
  for (const auto& [key, number] : numbers_)
    numbers[key] = number;
  const json::object root = {{"runs", std::move(runs)}, {"numbers", std::move(numbers)}};
  return write_file(path_, json::serialize(root) + '\n');
}

Result<void> write_file(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path part = path.string() + ".part";
  std::ofstream file(part, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Error{Code::io, part.string() + ": " + std::strerror(errno)};
  std::error_code failed;
  std::filesystem::rename(part, path, failed);
  if (failed) return Error{Code::io, path.string() + ": " + failed.message()};
  return {};
}

}  // namespace luna::sol_against_luna
