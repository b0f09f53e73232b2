#include "core/app/command_pull.hpp"

#include "core/app/known_models.hpp"
#include "core/app/stop_signal.hpp"
#include "core/base/sha256.hpp"
#include "core/http/download.hpp"
#include "core/model/gguf_file.hpp"

#include <cstdint>
#include <fstream>
#include <ostream>
#include <span>
#include <unistd.h>
#include <utility>
#include <vector>

namespace luna::app {
namespace {

bool is_url(std::string_view source) {
  return source.starts_with("http://") || source.starts_with("https://");
}

/// The last part of a path or URL.
std::string file_name(std::string_view source) {
  source = source.substr(0, source.find_first_of("?#"));
  return std::string(source.substr(source.rfind('/') + 1));
}

std::string progress_line(std::uint64_t n_done, std::uint64_t n_total) {
  std::string line = "\r" + std::to_string(n_done / 1'000'000);
  if (n_total > 0)
    line += " of " + std::to_string(n_total / 1'000'000) + " MB, " +
            std::to_string(n_done * 100 / n_total) + " %";
  else
    line += " MB";
  return line + "   ";
}

Result<std::string> sha256_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Code::io, path.string() + ": cannot be read"};
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.update(std::as_bytes(std::span(buffer.data(), static_cast<std::size_t>(file.gcount()))));
  }
  return hex_of(hash.finish());
}

Result<void> copy_into(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(from, error))
    return Error{Code::not_found, from.string() + ": no such file"};
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, error);
  if (error) return Error{Code::io, to.string() + ": " + error.message()};
  return {};
}

/// Brings the bytes to `arrival`, which is checked before it gets its name.
Result<void> bring(const PullOptions& options,
                   const std::filesystem::path& arrival,
                   const CommandStreams& streams) {
  if (!is_url(options.source)) return copy_into(options.source, arrival);
  const bool shows = !options.quiet && isatty(STDERR_FILENO) == 1;
  std::uint64_t shown = 0;
  const auto progress = [&](std::uint64_t n_done, std::uint64_t n_total) {
    if (shows && n_done - shown >= 1'000'000) {
      shown = n_done;
      streams.err << progress_line(n_done, n_total) << std::flush;
    }
    return !StopSignal::is_set();
  };
  auto result = http::download(options.source, arrival, progress);
  if (shows) streams.err << '\n';
  return result;
}

Result<void> check(const PullOptions& options, const std::filesystem::path& arrival) {
  if (!options.sha256.empty()) {
    LUNA_TRY(const std::string digest, sha256_of(arrival));
    if (digest != options.sha256)
      return Error{Code::corrupt,
                   options.source + ": its SHA-256 is " + digest + ", not " + options.sha256};
  }
  const auto file = model::GgufFile::open(arrival);
  if (!file) return file.error().in(options.source);
  return {};
}

Result<std::string> pull(const PullOptions& options, const CommandStreams& streams) {
  const std::string file = file_name(options.source);
  if (!file.ends_with(".gguf") || file.size() <= 5)
    return Error{Code::invalid_argument, options.source + ": only .gguf files are pulled"};
  const std::string name = file.substr(0, file.size() - 5);
  const auto folder = model_cache() / name;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Error{Code::io, folder.string() + ": " + error.message()};
  const auto arrival = folder / (file + ".arrived");
  LUNA_TRY(bring(options, arrival, streams));
  if (const auto good = check(options, arrival); !good) {
    std::filesystem::remove(arrival, error);
    return good.error();
  }
  std::filesystem::rename(arrival, folder / file, error);
  if (error) return Error{Code::io, (folder / file).string() + ": " + error.message()};
  return name;
}

}  // namespace

int run_pull(const PullOptions& options, const CommandStreams& streams) {
  const bool is_name = !is_url(options.source) && options.source.find('/') == std::string::npos &&
                       !options.source.ends_with(".gguf");
  if (is_name) {
    const auto found = find_model(options.source);
    if (found) {
      streams.out << found->string() << '\n';
      return kExitFine;
    }
    for (const KnownModel& model : known_models()) {
      if (model.name != options.source) continue;
      return fail(
          streams,
          Error{Code::unavailable,
                options.source + " comes in the Python package " + std::string(model.package) +
                    " " + std::string(model.version) +
                    ", which the launcher ./luna of the source tree fetches: ./luna pull " +
                    options.source + "; or download the package, unpack it, and pull the file " +
                    std::string(model.file)});
    }
    return fail(streams, found.error());
  }
  const auto name = pull(options, streams);
  if (!name) return fail(streams, name.error());
  streams.out << (model_cache() / *name).string() << '\n';
  streams.err << "luna: use it as path = \"" << *name << "\" in a TOML file, or with --model "
              << *name << '\n';
  return kExitFine;
}

}  // namespace luna::app
