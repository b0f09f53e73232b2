// Starts a scheduler plugin as the program would: scan, load, init, create, destroy, fini.
//   zoo_driver FOLDER LIMIT_MS [NAME]
// Status 0: it was created; 1: it was not, and standard error says why.
#include "core/base/clock.hpp"
#include "core/plugin/catalog.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string name = argc > 3 ? argv[3] : "zoo";
  const luna::RealClock clock;
  luna::plugin::HostServices services({&clock, 1, {}});
  const auto catalog = luna::plugin::Catalog::scan(
      {{argv[1]}, &services, std::chrono::milliseconds(std::atoi(argv[2]))});
  const luna::config::RawGroup settings{"t.toml", "scheduler." + name, {1, 1}, {}, {}};
  const auto made = catalog->create<luna_scheduler_if>(name, settings);
  if (!made) {
    std::fprintf(stderr, "luna: %s\n", made.error().message().c_str());
    return 1;
  }
  std::puts("created");
  return 0;
}
