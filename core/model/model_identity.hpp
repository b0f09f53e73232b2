// What tells two models apart, wherever their files lie.
#pragma once

#include <luna/result.hpp>

#include <filesystem>
#include <string>

namespace luna::model {

/// The SHA-256 of the model's file; a folder of shards knows that of the file it was split from,
/// so that both are the same model. Of a Hugging Face folder it is that of its configuration and
/// weights together. [start-up]
/// Errors  not_found, corrupt, io: of the file or the manifest
/// Cost    a file is read once, a folder's manifest only
Result<std::string> model_identity(const std::filesystem::path& path);

}  // namespace luna::model
