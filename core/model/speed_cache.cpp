// Measurements of devices, kept for the next start.
#include "core/base/log.hpp"
#include "core/base/output_file.hpp"
#include "core/base/sha256.hpp"
#include "core/model/speed_probe.hpp"
#include "core/model/weight_names.hpp"

#include <boost/json.hpp>
#include <sys/file.h>

#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <thread>
#include <unistd.h>

namespace luna::model {
namespace {

namespace json = boost::json;

// Grows when what is measured, or how, becomes another.
constexpr int kFormat = 1;
constexpr std::size_t kTextBytesMax = 64 * 1024;
constexpr std::size_t kPointsMax = 64;
constexpr double kNsMax = 1e15;
// Several probes of the slowest devices; who holds the turn longer stands still.
constexpr std::chrono::seconds kTurnLimit{10};
constexpr std::chrono::milliseconds kTurnLook{5};

json::array to_json(const RowTimes& times) {
  json::array points;
  for (const RowTimes::Point& point : times.points())
    points.push_back(json::array{point.n_rows, point.ns});
  return points;
}

Error corrupt(const std::string& what) {
  return {Code::corrupt, "a device's measured speed: " + what};
}

Result<double> read_ns(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_number()) return corrupt(std::string(key) + ": no number");
  return value->to_number<double>();
}

Result<RowTimes> read_times(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_array()) return corrupt(std::string(key) + ": no list");
  std::vector<RowTimes::Point> points;
  for (const json::value& entry : value->get_array()) {
    const json::array* pair = entry.if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_number() || !(*pair)[1].is_number())
      return corrupt(std::string(key) + ": a point that is no pair of numbers");
    points.push_back({(*pair)[0].to_number<double>(), (*pair)[1].to_number<double>()});
  }
  return RowTimes(std::move(points));
}

Result<void> check_ns(std::string_view what, double ns) {
  if (std::isfinite(ns) && ns >= 0.0 && ns <= kNsMax) return {};
  return corrupt(std::string(what) + " = " + std::to_string(ns));
}

Result<void> check_times(std::string_view what, const RowTimes& times) {
  const auto points = times.points();
  if (points.empty() || points.size() > kPointsMax)
    return corrupt(std::string(what) + " of " + std::to_string(points.size()) + " points");
  double before = 0.0;
  for (const RowTimes::Point& point : points) {
    const bool is_right =
        point.n_rows > before && point.n_rows < kNsMax && point.ns > 0.0 && point.ns < kNsMax;
    if (!is_right)
      return corrupt(std::string(what) + ": " + std::to_string(point.ns) + " ns for " +
                     std::to_string(point.n_rows) + " rows");
    before = point.n_rows;
  }
  return {};
}

/// A process's turn to measure among those with the same cache. Without it where it does not come.
class ProbeTurn {
 public:
  explicit ProbeTurn(const std::filesystem::path& cache) {
    std::error_code failed;
    std::filesystem::create_directories(cache, failed);
    file_ = ::open((cache / "turn").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const auto end = std::chrono::steady_clock::now() + kTurnLimit;
    while (file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) != 0) {
      if (std::chrono::steady_clock::now() >= end) {
        logger("model")->warn("device is measured beside another process cache={}", cache.string());
        return;
      }
      std::this_thread::sleep_for(kTurnLook);
    }
  }
  ProbeTurn(const ProbeTurn&) = delete;
  ProbeTurn& operator=(const ProbeTurn&) = delete;
  ~ProbeTurn() {
    if (file_ >= 0) ::close(file_);  // which ends the turn
  }

 private:
  int file_ = -1;
};

std::filesystem::path file_of(const std::filesystem::path& cache, const std::string& key) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(key)));
  return cache / (hex_of(hash.finish()) + ".json");
}

std::optional<DeviceSpeed> find_speed(const std::filesystem::path& path, const std::string& key) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kTextBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  auto speed = read_speed(text, key);
  if (speed) return std::move(*speed);
  logger("model")->warn("measured speed not usable, measuring again file={} reason=\"{}\"",
                        path.string(),
                        speed.error().message());
  return std::nullopt;
}

Result<void> keep_speed(const std::filesystem::path& path, const std::string& text) {
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  if (failed) return Error{Code::io, path.parent_path().string() + ": " + failed.message()};
  LUNA_TRY(OutputFile file, OutputFile::create(path));
  LUNA_TRY(file.append(std::as_bytes(std::span(text))));
  LUNA_TRY(file.close());
  return file.commit();
}

}  // namespace

Result<std::string> probe_key(const Device& device, const ProbeSubject& subject) {
  const luna_device_info& info = device.info();
  const ModelConfig& config = *subject.config;
  std::ostringstream key;
  key << "format " << kFormat << "; architecture " << config.architecture << "; backend "
      << device.backend_name() << "; device " << info.name << "; " << info.detail << "; threads "
      << device.n_threads() << "; numerics " << subject.program.numerics << "; kv "
      << subject.program.kv_dtype << " x " << subject.program.kv_block_tokens << "; hidden "
      << config.hidden_size << "; heads " << config.n_heads << " / " << config.n_kv_heads << " x "
      << config.head_dim << "; ffn " << config.ffn_size << "; vocabulary " << config.vocab_size
      << "; weights";
  for (const std::string& name : probe_tensors(config)) {
    LUNA_TRY(const ShardWeight weight, subject.source->describe(name));
    key << ' ' << weight.desc.klass << '.' << weight.desc.dtype << '.' << weight.desc.bits << '.'
        << weight.desc.group << '.' << weight.desc.super;
  }
  return key.str();
}

Result<void> check_speed(const DeviceSpeed& speed) {
  LUNA_TRY(check_times("layer", speed.layer));
  LUNA_TRY(check_times("head", speed.head));
  LUNA_TRY(check_ns("kv_token_ns", speed.kv_token_ns));
  LUNA_TRY(check_ns("prompt_kv_token_ns", speed.prompt_kv_token_ns));
  LUNA_TRY(check_ns("embedding_row_ns", speed.embedding_row_ns));
  return check_ns("step_ns", speed.step_ns);
}

std::string speed_text(const std::string& key, const DeviceSpeed& speed) {
  return json::serialize(json::object{{"key", key},
                                      {"layer", to_json(speed.layer)},
                                      {"head", to_json(speed.head)},
                                      {"kv_token_ns", speed.kv_token_ns},
                                      {"prompt_kv_token_ns", speed.prompt_kv_token_ns},
                                      {"embedding_row_ns", speed.embedding_row_ns},
                                      {"step_ns", speed.step_ns}});
}

Result<DeviceSpeed> read_speed(const std::string& text, const std::string& key) {
  boost::system::error_code failed;
  const json::value value = json::parse(text, failed);
  if (failed || !value.is_object()) return corrupt("no JSON object");
  const json::object& object = value.get_object();
  const json::value* found = object.if_contains("key");
  if (found == nullptr || !found->is_string()) return corrupt("no key");
  if (std::string_view(found->get_string()) != key)
    return Error{Code::not_found, "a device's measured speed: it is of another device or model"};
  DeviceSpeed speed;
  LUNA_TRY(speed.layer, read_times(object, "layer"));
  LUNA_TRY(speed.head, read_times(object, "head"));
  LUNA_TRY(speed.kv_token_ns, read_ns(object, "kv_token_ns"));
  LUNA_TRY(speed.prompt_kv_token_ns, read_ns(object, "prompt_kv_token_ns"));
  LUNA_TRY(speed.embedding_row_ns, read_ns(object, "embedding_row_ns"));
  LUNA_TRY(speed.step_ns, read_ns(object, "step_ns"));
  LUNA_TRY(check_speed(speed));
  return speed;
}

Result<DeviceSpeed> probe_speed(const Device& device,
                                const ProbeSubject& subject,
                                const std::filesystem::path& cache) {
  if (cache.empty()) return probe_speed(device, subject);
  LUNA_TRY(const std::string key, probe_key(device, subject));
  const std::filesystem::path path = file_of(cache, key);
  if (auto known = find_speed(path, key)) return std::move(*known);
  const ProbeTurn turn(cache);
  if (auto known = find_speed(path, key)) return std::move(*known);  // measured meanwhile
  LUNA_TRY(DeviceSpeed speed, probe_speed(device, subject));
  if (Result<void> kept = keep_speed(path, speed_text(key, speed)); !kept)
    logger("model")->warn("measured speed not kept reason=\"{}\"", kept.error().message());
  return speed;
}

}  // namespace luna::model
