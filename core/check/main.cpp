// luna-check: the validator alone, for authors who have the sdk and no more.
#include "core/base/log.hpp"
#include "core/check/check_command.hpp"

#include <CLI/CLI.hpp>

#include <exception>
#include <iostream>

namespace {

constexpr int kWrongUse = 2;

int run(int argc, char** argv) {
  CLI::App app("Holds a Luna plugin against the contract, each case in a process of its own.",
               "luna-check");
  app.set_version_flag("--version", "luna-check " LUNA_VERSION);
  luna::check::CheckCommand command;
  luna::check::add_check_options(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error, std::cout, std::cerr);
    return status == 0 ? 0 : kWrongUse;
  }
  luna::init_logging(spdlog::level::info);
  return luna::check::run_check(command, "luna-check", std::cout, std::cerr);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "luna-check: " << error.what() << '\n';
  } catch (...) {
    std::cerr << "luna-check: an unknown exception\n";
  }
  return 1;
}
