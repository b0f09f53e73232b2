// A run of a model that a role asked for, while it goes on.
#pragma once

#include "core/pipeline/pipeline_model.hpp"
#include "core/pipeline/role_stage.hpp"
#include "core/pipeline/token_stream.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace luna::pipeline {

/// One stream of a run: what the role of the stage has been told of it.
struct RunStream {
  std::uint32_t choice = 0;
  std::uint64_t item_id = 0;            ///< identity of the choice
  std::shared_ptr<TokenStream> stream;  ///< shared with the engine
  std::size_t n_text_bytes = 0;
  bool has_ended = false;
};

/// [pipeline]
class ModelRun {
 public:
  ModelRun(std::uint64_t id, std::size_t stage, SequenceRunner& runner)
      : id_(id), stage_(stage), runner_(&runner) {}

  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] std::size_t stage() const { return stage_; }

  void add_stream(RunStream stream) { streams_.push_back(std::move(stream)); }
  /// The model chooses one of these texts: by its first token, the whole text is told.
  void choose_among(std::vector<std::pair<TokenId, std::string>> first_tokens) {
    first_tokens_ = std::move(first_tokens);
  }
  [[nodiscard]] bool serves(std::uint32_t choice) const;

  /// Hands what is new in the streams to the stage as items. Returns the failure of a stream that
  /// ended by one.
  std::optional<Error> read(RoleStage& stage);
  [[nodiscard]] bool has_ended() const;
  void cancel() { runner_->cancel(id_); }

 private:
  std::string new_text(RunStream& stream, const TokenStream::View& view) const;

  std::uint64_t id_;
  std::size_t stage_;
  SequenceRunner* runner_;
  std::vector<RunStream> streams_;
  std::vector<std::pair<TokenId, std::string>> first_tokens_;
};

}  // namespace luna::pipeline
