#include "core/check/cases.hpp"

namespace luna::check {

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const std::span<const Case> some : {file_cases(),
                                           load_cases(),
                                           instance_cases(),
                                           answer_cases(),
                                           thread_cases(),
                                           scheduler_cases(),
                                           role_cases(),
                                           quant_cases(),
                                           transport_cases(),
                                           transport_sides_cases(),
                                           backend_cases(),
                                           op_cases(),
                                           step_cases(),
                                           memory_cases()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace luna::check
