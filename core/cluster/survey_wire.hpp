// What a device says of itself, as it lies in an answer.
#pragma once

#include "core/cluster/wire.hpp"
#include "core/model/device_survey.hpp"

namespace luna::cluster {

void put_survey(WireWriter& writer, const model::DeviceSurvey& survey);
/// Fails the reader where a number is one that no device can have, or sums would wrap.
model::DeviceSurvey take_survey(WireReader& reader);

}  // namespace luna::cluster
