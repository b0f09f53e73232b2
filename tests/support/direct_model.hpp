// A model on one device without configuration, engine or server: for benchmarks and test drivers.
#pragma once

#include "core/base/clock.hpp"
#include "core/model/model_loader.hpp"
#include "core/plugin/catalog.hpp"

#include <luna/result.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace luna {

/// What holds the model, in the order in which the parts need each other.
class DirectModel {
 public:
  struct Options {
    std::string plugin_folder;
    std::string more_plugins = {};  // a further folder; empty: none
    std::string backend = "cpu";
    std::uint32_t n_threads = 1;
    std::uint64_t memory_bytes = std::uint64_t{16} << 30;
    model::ModelOptions model;
  };

  static Result<std::unique_ptr<DirectModel>> load(const Options& options) {
    std::unique_ptr<DirectModel> direct(new DirectModel);
    std::vector<std::filesystem::path> folders = {options.plugin_folder};
    if (!options.more_plugins.empty()) folders.emplace_back(options.more_plugins);
    direct->catalog_ = plugin::Catalog::scan({folders, &direct->services_});
    LUNA_TRY(direct->backend_, direct->catalog_->create<luna_backend_if>(options.backend, {}));
    for (const std::string& name : direct->catalog_->names(LUNA_KIND_QUANT)) {
      LUNA_TRY(auto quant, direct->catalog_->create<luna_quant_if>(name, {}));
      direct->quants_.push_back(std::move(quant));
    }
    model::DeviceOptions device;
    device.name = "a0";
    device.memory_bytes = options.memory_bytes;
    device.n_threads = options.n_threads;
    LUNA_TRY(direct->device_, model::Device::open(direct->backend_, device));
    model::Device* const devices[] = {direct->device_.get()};
    LUNA_TRY(direct->model_,
             model::Model::load(options.model, {direct->quants_, devices, std::nullopt}));
    return direct;
  }

  [[nodiscard]] const model::CompiledModel& compiled() const { return model_->compiled(); }
  [[nodiscard]] plugin::Catalog& catalog() { return *catalog_; }
  [[nodiscard]] Clock& clock() { return clock_; }

 private:
  DirectModel() = default;

  RealClock clock_;
  plugin::HostServices services_{{.clock = &clock_, .seed = 0, .parallel_for = {}}};
  std::unique_ptr<plugin::Catalog> catalog_;
  plugin::Instance<luna_backend_if> backend_;
  std::vector<plugin::Instance<luna_quant_if>> quants_;
  std::unique_ptr<model::Device> device_;
  std::unique_ptr<model::Model> model_;
};

/// LUNA_NUMERICS_* of a name: f32, i12, i8, bf16.
inline Result<std::uint32_t> numerics_of(const std::string& name) {
  for (std::uint32_t n = LUNA_NUMERICS_F32; n <= LUNA_NUMERICS_BF16; ++n)
    if (model::numerics_name(n) == name) return n;
  return Error{Code::invalid_argument, "numerics " + name + ": must be f32, i12, i8 or bf16"};
}
/// LUNA_DTYPE_* of a type of KV: bf16, int8.
inline Result<std::uint32_t> kv_dtype_of(const std::string& name) {
  if (name == "bf16") return LUNA_DTYPE_BF16;
  if (name == "int8") return LUNA_DTYPE_I8;
  return Error{Code::invalid_argument, "kv " + name + ": must be bf16 or int8"};
}

}  // namespace luna
