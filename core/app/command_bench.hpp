// `luna bench`: latencies and rates of a server, or of a model in this process, under load.
#pragma once

#include "core/app/text_command.hpp"
#include "core/bench/load_run.hpp"
#include "core/bench/prompt_source.hpp"
#include "core/bench/report.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace luna::app {

struct BenchOptions {
  std::string url;               ///< of a server; empty: the model runs in this process
  std::string served_model;      ///< as the server names it; empty: its first
  std::filesystem::path config;  ///< in this process
  std::string model;             ///< in this process, without config: a path or a known name
  std::vector<std::filesystem::path> plugin_folders;

  std::filesystem::path prompts;  ///< a file; empty: synthetic
  bench::SyntheticPrompts synthetic;
  std::uint32_t n_output_tokens = 64;
  std::string body = R"({"ignore_eos": true, "add_special_tokens": false})";  ///< added fields

  bench::LoadOptions load;
  std::optional<std::uint64_t> seed;  ///< none: from the clock
  std::optional<double> duration_s;
  double timeout_s = 300;
  bench::LatencyLimits limits;

  std::filesystem::path json_file;
  std::filesystem::path plot_file;
  bool with_token_times = false;
};

/// Runs the load and prints the report; Ctrl-C ends the load and the report is of what came till
/// then.
/// Returns  the exit status: a failure also when no request was answered
int run_bench(const BenchOptions& options, const CommandStreams& streams);

}  // namespace luna::app
