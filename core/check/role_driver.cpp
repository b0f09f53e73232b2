#include "core/check/role_driver.hpp"

#include <boost/json.hpp>

#include <algorithm>
#include <utility>

namespace luna::check {
namespace {

namespace json = boost::json;

bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

/// Whole characters of UTF-8, by their lengths.
bool is_whole_text(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const std::size_t n = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (continues(text[at]) || first > 0xF4 || n > text.size() - at) return false;
    for (std::size_t i = 1; i < n; ++i)
      if (!continues(text[at + i])) return false;
    at += n;
  }
  return true;
}

std::string request_json(std::uint64_t request) {
  return R"({"id":"request-)" + std::to_string(request) +
         R"(","endpoint":"chat","stage":0,"choice":0,"n":2,)"
         R"("messages":[{"role":"user","content":"Say something."}],"max_tokens":100,)"
         R"("temperature":0.0,"top_p":1.0,"top_k":0,"min_p":0.0,"stop":[]})";
}

}  // namespace

void RoleDriver::add(std::uint64_t request, std::string before, std::string answer) {
  open_[request] = {std::move(answer)};
  answers_[request] = {};
  waiting_.push_back({request, LUNA_ITEM_REQUEST, request_json(request)});
  if (!before.empty()) waiting_.push_back({request, LUNA_ITEM_TEXT, std::move(before)});
  waiting_.push_back({request, LUNA_ITEM_END, "stop"});
}

void RoleDriver::add_choice(std::uint64_t request, std::uint64_t choice, std::string answer) {
  open_[request].choice = choice;
  open_[request].choice_answer = std::move(answer);
}

// A stream comes in pieces of whole characters.
void RoleDriver::push_pieces(std::uint64_t request, std::uint32_t kind, std::string_view text) {
  const std::uint32_t n_pieces = 1 + below(cuts_);
  for (std::uint32_t p = 0; p < n_pieces && !text.empty(); ++p) {
    std::size_t n =
        p + 1 == n_pieces ? text.size() : 1 + below(static_cast<std::uint32_t>(text.size()));
    while (n < text.size() && continues(text[n]))
      ++n;
    if (cuts_ > 1 && below(4) == 0) waiting_.push_back({request, kind, ""});
    waiting_.push_back({request, kind, std::string(text.substr(0, n))});
    text.remove_prefix(n);
  }
}

bool RoleDriver::step(std::uint32_t cuts) {
  if (waiting_.empty() || run_.has_failed()) return false;
  cuts_ = cuts;
  std::deque<Waiting> batch;
  // Some or all of what waits, and pieces of what an earlier stage wrote.
  const std::size_t n_taken =
      cuts == 1 ? waiting_.size() : 1 + below(static_cast<std::uint32_t>(waiting_.size()));
  std::deque<Waiting> rest(waiting_.begin() + static_cast<std::ptrdiff_t>(n_taken), waiting_.end());
  waiting_.resize(n_taken);
  batch.swap(waiting_);
  for (Waiting& item : batch) {
    if (item.kind == LUNA_ITEM_TEXT && cuts > 1)
      push_pieces(item.request, item.kind, item.text);
    else
      waiting_.push_back(std::move(item));
  }
  batch.swap(waiting_);
  waiting_ = std::move(rest);
  std::vector<luna_item> rows;
  for (const Waiting& item : batch) {
    if (const auto open = open_.find(item.request);
        item.kind == LUNA_ITEM_MODEL_END && open != open_.end())
      open->second.model_runs = false;
    rows.push_back({item.request, item.kind, 0, to_abi(item.text), nullptr, 0, 0});
  }
  const luna_item_sink sink{sizeof(luna_item_sink), 0, this, collect};
  luna_err err = make_err();
  luna_status status = LUNA_OK;
  run_.phase("run");
  if (!call_fenced(run_, "run", [&] {
        status = role_->run(
            role_.self(), rows.data(), static_cast<std::uint32_t>(rows.size()), &sink, &err);
      }))
    return false;
  if (status < 0)
    run_.fail(
        err.text[0] == '\0' ? "E2" : "R1",
        "run() failed with status " + std::to_string(status) + ": " + std::string(text_of(err)));
  return !run_.has_failed();
}

void RoleDriver::drop(std::uint64_t request) {
  std::erase_if(waiting_, [request](const Waiting& item) { return item.request == request; });
  open_.erase(request);
  run_.phase("drop");
  call_fenced(run_, "drop", [&] { role_->drop(role_.self(), &request, 1); });
}

luna_status RoleDriver::collect(void* self, const luna_item* item) noexcept {
  static_cast<RoleDriver*>(self)->take(*item);
  return LUNA_OK;
}

bool RoleDriver::check_json(const char* what, std::string_view text) {
  boost::system::error_code error;
  const json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (!error && value.is_object()) return true;
  run_.fail("R4", std::string(what) + " is no JSON object: " + std::string(text.substr(0, 100)));
  return false;
}

// The model's answer, and that of a further choice where the prompt is the client's own.
void RoleDriver::run_model(std::uint64_t request, Open& open, std::string_view text) {
  if (!check_json("MODEL_REQUEST", text)) return;
  if (open.model_runs)
    return run_.fail("R4", "request " + std::to_string(request) + " asks the model while it runs");
  open.model_runs = true;
  push_pieces(request, LUNA_ITEM_MODEL_TEXT, open.answer);
  waiting_.push_back({request, LUNA_ITEM_MODEL_END, "stop"});
  const json::object asked = json::parse(json::string_view(text.data(), text.size())).as_object();
  const bool is_own =
      asked.contains("messages") || asked.contains("prompt") || asked.contains("allowed_text");
  if (open.choice == 0 || is_own) return;
  const std::uint64_t choice = std::exchange(open.choice, 0);
  const std::string answer = open.choice_answer;
  open_[choice] = {answer, true};
  answers_[choice] = {};
  push_pieces(choice, LUNA_ITEM_MODEL_TEXT, answer);
  waiting_.push_back({choice, LUNA_ITEM_MODEL_END, "stop"});
}

void RoleDriver::take(const luna_item& item) {
  const std::string who = "request " + std::to_string(item.request);
  const auto found = open_.find(item.request);
  if (found == open_.end()) return run_.fail("R3", who + " is not open, and gets an item");
  Open& open = found->second;
  RoleAnswer& answer = answers_[item.request];
  const std::string_view text = view(item.text);
  if (answer.has_ended) return run_.fail("R1", who + " has ended, and gets an item");
  if (!is_whole_text(text)) return run_.fail("R4", who + " gets a part of a character");
  switch (item.kind) {
    case LUNA_ITEM_TEXT:
      open.has_output = true;
      answer.text += text;
      return;
    case LUNA_ITEM_END:
    case LUNA_ITEM_ERROR:
      (item.kind == LUNA_ITEM_END ? answer.end : answer.error) = text;
      answer.has_ended = true;
      ++answer.n_ends;
      return;
    case LUNA_ITEM_MODEL_REQUEST:
      return run_model(item.request, open, text);
    case LUNA_ITEM_UPDATE:
      check_json("UPDATE", text);
      if (open.has_output) run_.fail("R4", who + " gets an UPDATE after its first output");
      return;
    default:
      run_.fail("R4", who + " gets an item of kind " + std::to_string(item.kind));
  }
}

}  // namespace luna::check
