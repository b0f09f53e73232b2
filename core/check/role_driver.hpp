// A stage's role as the pipeline drives it, with a model whose answers are known.
#pragma once

#include "core/check/subject.hpp"

#include <luna/abi/role.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace luna::check {

/// What came of a request.
struct RoleAnswer {
  std::string text;          ///< of its TEXT items, joined
  std::string end;           ///< of its END item
  std::string error;         ///< of its ERROR item
  std::uint32_t n_ends = 0;  ///< END and ERROR items
  bool has_ended = false;
};

/// Feeds requests and carries out what the role asks for. What breaks a rule is told to the run.
/// Used on one thread; `role` outlives it.
class RoleDriver {
 public:
  RoleDriver(CaseRun& run, const plugin::Instance<luna_role_if>& role, std::uint64_t seed)
      : run_(run), role_(role), random_(seed) {}

  /// A request enters the stage.
  ///
  /// before  what the stage before made of it; empty: this is the first stage
  /// answer  of the model, each time it is asked
  void add(std::uint64_t request, std::string before, std::string answer);
  /// A further choice of a request that was added: another identity, which begins where the role
  /// runs the model on the client's own prompt.
  void add_choice(std::uint64_t request, std::uint64_t choice, std::string answer);
  /// Runs one batch of the items that wait, of all requests. False: none does.
  ///
  /// cuts  the most pieces that a stream is cut into
  bool step(std::uint32_t cuts);
  /// Its client has gone.
  void drop(std::uint64_t request);

  [[nodiscard]] const std::map<std::uint64_t, RoleAnswer>& answers() const { return answers_; }

 private:
  struct Waiting {
    std::uint64_t request;
    std::uint32_t kind;
    std::string text;
  };
  struct Open {
    std::string answer;
    bool model_runs = false;
    bool has_output = false;   // TEXT or END, after which no UPDATE may come
    std::uint64_t choice = 0;  // a further one, that has not begun; 0: none
    std::string choice_answer = {};
  };

  void push_pieces(std::uint64_t request, std::uint32_t kind, std::string_view text);
  static luna_status collect(void* self, const luna_item* item) noexcept;
  void take(const luna_item& item);
  bool check_json(const char* what, std::string_view text);
  void run_model(std::uint64_t request, Open& open, std::string_view text);
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }

  CaseRun& run_;
  const plugin::Instance<luna_role_if>& role_;
  std::mt19937_64 random_;
  std::uint32_t cuts_ = 1;
  std::deque<Waiting> waiting_;
  std::map<std::uint64_t, Open> open_;
  std::map<std::uint64_t, RoleAnswer> answers_;
};

}  // namespace luna::check
