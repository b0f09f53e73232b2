// A pipeline without a model: its tokens come at a given rate, whether or not anybody keeps up.
#pragma once

#include "core/pipeline/pipeline.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace luna::bench {

/// When a PacedPipeline publishes, and how much.
struct Pace {
  std::uint32_t n_streams = 0;      ///< production begins when so many requests have come
  std::uint64_t tokens_per_s = 0;   ///< of all streams together; 0: as fast as it can
  std::uint32_t step_us = 1000;     ///< time between two steps, as an engine makes them
  std::uint32_t n_tokens_each = 0;  ///< of a stream, then it ends
};

/// Every step gives one token to each of the next rows in turn; a token is stamped with the time at
/// which its step was due, so that a late step counts as late. One thread, started by the last
/// request that is waited for.
class PacedPipeline final : public pipeline::Pipeline {
 public:
  explicit PacedPipeline(const Pace& pace);
  ~PacedPipeline() override;

  [[nodiscard]] std::vector<std::string> model_names() const override { return {"paced"}; }
  [[nodiscard]] std::uint32_t context_length(const std::string&) const override { return 1U << 20; }
  [[nodiscard]] std::uint32_t vocab_size(const std::string&) const override { return 1; }
  [[nodiscard]] Result<std::vector<pipeline::TokenId>> tokenize(
      const pipeline::Request&) const override {
    return std::vector<pipeline::TokenId>{0};
  }
  [[nodiscard]] std::string token_bytes(const std::string&, pipeline::TokenId) const override {
    return {};
  }
  Result<std::unique_ptr<pipeline::RunningRequest>> start(
      pipeline::Request request, std::shared_ptr<pipeline::OutputSink> sink) override;

  /// Waits until the last stream has ended. [main]
  void join();
  /// Requests that have come. [any]
  [[nodiscard]] std::uint32_t n_started() const { return n_started_.load(); }
  /// True once production has begun. [any]
  [[nodiscard]] bool is_producing() const { return is_producing_.load(); }

 private:
  void produce();
  void give(std::size_t stream, std::uint64_t due_us);

  const Pace pace_;
  std::mutex mutex_;  // guards streams_ until the thread starts, which then has them alone
  std::vector<std::shared_ptr<pipeline::OutputSink>> streams_;
  std::vector<std::uint32_t> n_given_;  // by stream
  std::atomic<std::uint32_t> n_started_{0};
  std::atomic<bool> is_producing_{false};
  std::thread thread_;
};

}  // namespace luna::bench
