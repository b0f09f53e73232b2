#include "core/cluster/survey_wire.hpp"

#include "core/model/speed_probe.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace luna::cluster {
namespace {

// Far beyond what is useful, far below what would hurt.
constexpr std::size_t kLayersMax = 4096;
constexpr std::size_t kSpeedPointsMax = 64;
constexpr std::uint64_t kPartBytesMax = std::uint64_t{1} << 48U;  // sums of them do not wrap

void put_times(WireWriter& writer, const model::RowTimes& times) {
  writer.number(static_cast<std::uint32_t>(times.points().size()));
  for (const model::RowTimes::Point& point : times.points()) {
    writer.number(point.n_rows);
    writer.number(point.ns);
  }
}

model::RowTimes take_times(WireReader& reader) {
  std::vector<model::RowTimes::Point> points;
  for (std::uint32_t n = reader.count(kSpeedPointsMax); n > 0 && !reader.failed(); --n) {
    const auto n_rows = reader.number<double>();
    points.push_back({n_rows, reader.number<double>()});
  }
  return model::RowTimes(std::move(points));
}

}  // namespace

void put_survey(WireWriter& writer, const model::DeviceSurvey& survey) {
  put_times(writer, survey.speed.layer);
  put_times(writer, survey.speed.head);
  for (const double ns : {survey.speed.kv_token_ns,
                          survey.speed.prompt_kv_token_ns,
                          survey.speed.embedding_row_ns,
                          survey.speed.step_ns})
    writer.number(ns);
  writer.number(static_cast<std::uint32_t>(survey.layer_bytes.size()));
  writer.array(survey.layer_bytes.data(), survey.layer_bytes.size());
  writer.number(survey.kv_token_bytes);
  writer.array(survey.fixed_bytes.data(), survey.fixed_bytes.size());
}

model::DeviceSurvey take_survey(WireReader& reader) {
  model::DeviceSurvey survey;
  survey.speed.layer = take_times(reader);
  survey.speed.head = take_times(reader);
  for (double* ns : {&survey.speed.kv_token_ns,
                     &survey.speed.prompt_kv_token_ns,
                     &survey.speed.embedding_row_ns,
                     &survey.speed.step_ns})
    *ns = reader.number<double>();
  if (const auto right = model::check_speed(survey.speed); !right)
    reader.fail(right.error().message());
  reader.array(survey.layer_bytes, reader.count(kLayersMax));
  survey.kv_token_bytes = reader.number<std::uint64_t>();
  std::uint64_t most = survey.kv_token_bytes;
  for (std::uint64_t& bytes : survey.fixed_bytes) {
    bytes = reader.number<std::uint64_t>();
    most = std::max(most, bytes);
  }
  for (const std::uint64_t bytes : survey.layer_bytes)
    most = std::max(most, bytes);
  if (most > kPartBytesMax) reader.fail("a part of " + std::to_string(most) + " bytes");
  return survey;
}

}  // namespace luna::cluster
