#include "core/app/text_command.hpp"

#include "core/text/vocabulary_json.hpp"

#include <istream>
#include <iterator>
#include <ostream>

namespace luna::app {

Result<text::Vocabulary> load_vocabulary(const std::filesystem::path& path,
                                         const VocabularyLoader& loader) {
  std::error_code ignored;  // a path that cannot be asked for is no folder: the loader says why
  const bool is_shards = std::filesystem::exists(path / "manifest.json", ignored);
  if (!is_shards && std::filesystem::is_directory(path, ignored))
    return text::read_vocabulary_folder(path);
  return loader(path);
}

std::string read_all(std::istream& in) {
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

int fail(const CommandStreams& streams, const Error& error) {
  streams.err << "luna: " << error.message() << '\n';
  return kExitFailed;
}

}  // namespace luna::app
