// The command line of `luna quantize`.
#include "core/app/command_line.hpp"
#include "core/app/known_models.hpp"
#include "core/app/stop_signal.hpp"
#include "core/model/weight_file.hpp"

#include <CLI/CLI.hpp>

namespace luna::app {

void add_quantize_command(CLI::App& app, CommandLine& line) {
  CLI::App* command = add(app,
                          line,
                          "quantize",
                          "Make a smaller model of a model",
                          [](CommandLine& l, const CommandStreams& s) {
                            auto path = model::is_model_folder(l.model)
                                            ? Result<std::filesystem::path>(l.model)
                                            : resolve_model(l.model);
                            if (!path) return fail(s, path.error());
                            l.quantize.model = *path;
                            l.quantize.json = l.json;
                            l.quantize.plugin_folders = l.plugin_folders;
                            l.quantize.is_stopped = StopSignal::is_set;
                            return run_quantize(l.quantize, s);
                          });
  command
      ->add_option("model",
                   line.model,
                   "a GGUF file, a folder of shards or of Hugging Face, or a "
                   "known name")
      ->required();
  command
      ->add_option("--type",
                   line.quantize.type,
                   "of GGUF: q4_0, q4_1, q8_0, q4_k; of a Hugging Face folder: awq, gptq, int8")
      ->required();
  command
      ->add_option("--group",
                   line.quantize.group,
                   "awq, gptq, int8: columns that share a scale; 0: the whole row")
      ->capture_default_str();
  command->add_option("--calibration",
                      line.quantize.calibration,
                      "a text by which inputs are weighed (AWQ); without: round to nearest");
  command->add_option("--out", line.quantize.out, "the file, or the folder, to write")->required();
  command->add_flag("--force", line.quantize.force, "replace what is there");
  command->add_flag("--json", line.json, "for programs");
}

}  // namespace luna::app
