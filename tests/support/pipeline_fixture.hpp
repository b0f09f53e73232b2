// A pipeline of real roles over a model whose words are the test's, driven turn by turn.
#pragma once

#include "core/engine/engine.hpp"
#include "core/pipeline/staged_pipeline.hpp"
#include "support/plugin_fixture.hpp"
#include "support/tiny_vocabulary.hpp"

#include <luna/role.hpp>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace luna::test {

inline constexpr pipeline::TokenId kStartToken = 256;
inline constexpr pipeline::TokenId kEndOfTurnToken = 257;

/// <|im_start|>role\ncontent<|im_end|>\n, and the assistant's beginning.
class FakeChat final : public pipeline::ChatRenderer {
 public:
  [[nodiscard]] Result<std::vector<text::TextRun>> render(
      const boost::json::object& variables) const override {
    const auto* messages = variables.if_contains("messages");
    if (messages == nullptr || !messages->is_array()) {
      return Error{Code::invalid_argument, "no messages"};
    }
    std::vector<text::TextRun> runs;
    for (const auto& message : messages->get_array()) {
      runs.push_back({"<|im_start|>", true});
      runs.push_back({std::string(message.at("role").as_string()) + "\n", false});
      runs.push_back({std::string(message.at("content").as_string()), false});
      runs.push_back({"<|im_end|>\n", true});
    }
    runs.push_back({"<|im_start|>assistant\n", true});
    return runs;
  }
};

/// A model run that was submitted; the test says what the model says.
class ScriptedRun {
 public:
  explicit ScriptedRun(std::unique_ptr<engine::SequenceRequest> asked) : asked_(std::move(asked)) {}

  [[nodiscard]] const engine::SequenceRequest& asked() const { return *asked_; }
  [[nodiscard]] bool is_cancelled() const { return is_cancelled_; }
  void cancel() { is_cancelled_ = true; }

  /// One token for each byte.
  void say(std::string_view text, std::size_t choice = 0) {
    pipeline::TokenStream& stream = *asked_->streams.at(choice);
    for (const char byte : text) {
      const auto id = static_cast<pipeline::TokenId>(static_cast<unsigned char>(byte));
      stream.append(id, -0.5F, {}, std::string_view(&byte, 1));
    }
    stream.publish();
  }
  void end(pipeline::StreamEnd end = {}, std::size_t choice = 0) {
    pipeline::TokenStream& stream = *asked_->streams.at(choice);
    stream.finish(end);
    stream.publish();
  }
  void fail(Code code, std::string_view why) {
    end({pipeline::FinishReason::failed, 0, code, why});
  }

 private:
  std::unique_ptr<engine::SequenceRequest> asked_;
  bool is_cancelled_ = false;
};

/// A model whose runs are played by the test.
class ScriptedRunner final : public pipeline::SequenceRunner {
 public:
  [[nodiscard]] Result<void> can_fit(std::uint32_t n_prompt,
                                     std::uint32_t n_generated_max,
                                     std::uint32_t n_choices) const override {
    if (n_prompt + n_generated_max <= n_kv_tokens && n_choices <= 8) return {};
    return Error{Code::invalid_argument, "needs more blocks than there are"};
  }
  Result<void> submit(std::unique_ptr<engine::SequenceRequest> request) override {
    if (is_full) return Error{Code::exhausted, "the queue is full"};
    runs.emplace_back(std::move(request));
    return {};
  }
  void cancel(std::uint64_t id) override {
    for (ScriptedRun& run : runs)
      if (run.asked().id == id) run.cancel();
  }
  [[nodiscard]] std::chrono::nanoseconds queue_wait() const override { return wait; }

  std::list<ScriptedRun> runs;
  std::uint32_t n_kv_tokens = 1000;
  std::chrono::nanoseconds wait{0};
  bool is_full = false;
};

/// Keeps what a client was told.
class RecordingSink final : public pipeline::OutputSink {
 public:
  void on_output(std::span<pipeline::OutputEvent> events,
                 std::optional<pipeline::OutputEnd> last) override {
    EXPECT_FALSE(end.has_value()) << "output after the end";
    ++n_calls;
    for (pipeline::OutputEvent& event : events) {
      if (texts.size() <= event.choice) {
        texts.resize(event.choice + 1);
        finishes.resize(event.choice + 1);
        tokens.resize(event.choice + 1);
      }
      EXPECT_FALSE(finishes[event.choice].has_value()) << "an event after the last";
      texts[event.choice] += event.text;
      finishes[event.choice] = event.finish;
      for (const pipeline::OutputToken& token : event.tokens)
        tokens[event.choice].push_back(token.token_id);
    }
    if (last) end = std::move(last);
  }
  [[nodiscard]] std::string text() const { return texts.empty() ? "" : texts[0]; }
  [[nodiscard]] std::optional<pipeline::FinishReason> finish() const {
    return finishes.empty() ? std::nullopt : finishes[0];
  }

  std::vector<std::string> texts;
  std::vector<std::optional<pipeline::FinishReason>> finishes;
  std::vector<std::vector<pipeline::TokenId>> tokens;
  std::optional<pipeline::OutputEnd> end;
  int n_calls = 0;
};

/// A role whose behaviour is a function of the test.
class FunctionRole final : public Role {
 public:
  using Function = std::function<void(const Item&, ItemSink&)>;
  explicit FunctionRole(Function function) : function_(std::move(function)) {}
  static Result<std::unique_ptr<FunctionRole>> create(Host, const Settings&) {
    return Error{Code::unsupported, "made by the test"};
  }
  void on_item(const Item& item, ItemSink& out) override { function_(item, out); }
  void drop(std::uint64_t) override {}

 private:
  Function function_;
};

inline plugin::Instance<luna_role_if> function_role(FunctionRole::Function function) {
  static constexpr luna_role_if kTable = role_table<FunctionRole>();
  return {&kTable, new FunctionRole(std::move(function)), "test"};
}

/// A role plugin of the build, by its short name.
inline plugin::Instance<luna_role_if> load_role(const std::string& name,
                                                const SettingValues& settings = {}) {
  static const FakeHost host;
  const auto* table = load_table<luna_role_if>("role_" + name, LUNA_KIND_ROLE);
  auto self = make_instance(*table, host, settings);
  EXPECT_TRUE(self) << (self ? "" : self.error().message());
  return {table, *self, name};
}

class PipelineRig {
 public:
  /// Adds a stage; with_model: that of the rig.
  PipelineRig& stage(plugin::Instance<luna_role_if> role, bool with_model = false) {
    roles_.push_back(std::move(role));
    setup_.stages.push_back({&roles_.back(), std::nullopt});
    if (with_model) setup_.stages.back().model = "main";
    return *this;
  }
  PipelineRig& generate() { return stage(load_role("generate"), true); }

  Result<void> try_make() {
    setup_.models.push_back({"main", runner_, &tokenizer, &chat, context_tokens});
    setup_.n_requests_max = n_requests_max;
    LUNA_TRY(pipeline, pipeline::StagedPipeline::create(std::move(setup_), clock, wake, stats));
    return {};
  }
  PipelineRig& make() {
    const auto made = try_make();
    EXPECT_TRUE(made) << (made ? "" : made.error().message());
    return *this;
  }
  PipelineRig& on(pipeline::SequenceRunner& other) {
    runner_ = &other;
    return *this;
  }

  static pipeline::Request chat_request(const std::string& content) {
    pipeline::Request request;
    request.id = "chatcmpl-1";
    boost::json::object message;
    message["role"] = "user";
    message["content"] = content;
    request.template_variables["messages"] = boost::json::array{message};
    return request;
  }
  static pipeline::Request completion(const std::string& prompt) {
    pipeline::Request request;
    request.id = "cmpl-1";
    request.endpoint = pipeline::Endpoint::completion;
    request.prompt_text = prompt;
    return request;
  }

  /// A request that the pipeline took, and what its client has heard.
  struct Client {
    std::shared_ptr<RecordingSink> sink = std::make_shared<RecordingSink>();
    std::unique_ptr<pipeline::RunningRequest> running;
  };
  Client start(pipeline::Request request) {
    Client client;
    auto started = pipeline->start(std::move(request), client.sink);
    EXPECT_TRUE(started) << (started ? "" : started.error().message());
    if (started) client.running = *std::move(started);
    return client;
  }
  Error refusal(pipeline::Request request) {
    auto started = pipeline->start(std::move(request), std::make_shared<RecordingSink>());
    EXPECT_FALSE(started);
    return started ? Error{Code::internal, "it was accepted"} : started.error();
  }

  void turn() { pipeline->advance(); }
  ScriptedRun& run(std::size_t idx = 0) {
    EXPECT_LT(idx, runner.runs.size());
    return *std::next(runner.runs.begin(), static_cast<std::ptrdiff_t>(idx));
  }

  ScriptedRunner runner;
  text::Tokenizer tokenizer = text::Tokenizer::create(tiny_vocabulary()).value();
  FakeChat chat;
  RealClock clock;
  WakeSignal wake;
  pipeline::PipelineStats stats;
  std::uint32_t context_tokens = 500;
  std::uint32_t n_requests_max = 64;

 private:
  pipeline::SequenceRunner* runner_ = &runner;
  std::list<plugin::Instance<luna_role_if>> roles_;
  pipeline::PipelineSetup setup_;

 public:
  std::unique_ptr<pipeline::StagedPipeline> pipeline;  // last: goes before its roles
};

}  // namespace luna::test
