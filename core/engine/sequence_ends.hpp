// How a sequence can end before its own end: what the client is told.
#pragma once

#include "core/engine/step_plan.hpp"
#include "core/pipeline/token_stream.hpp"

#include <luna/abi/scheduler.h>

namespace luna::engine {

inline constexpr pipeline::StreamEnd kCancelled{.reason = pipeline::FinishReason::cancelled};
inline constexpr pipeline::StreamEnd kTooLate{
    .reason = pipeline::FinishReason::failed,
    .code = Code::timeout,
    .error = "the request's deadline passed before it was finished"};
inline constexpr pipeline::StreamEnd kHopeless{
    .reason = pipeline::FinishReason::failed,
    .code = Code::timeout,
    .error = "the request cannot be answered before its deadline"};
inline constexpr pipeline::StreamEnd kQueueTooLong{
    .reason = pipeline::FinishReason::failed,
    .code = Code::exhausted,
    .error = "the request would wait longer than the scheduler allows"};
inline constexpr pipeline::StreamEnd kRejected{.reason = pipeline::FinishReason::failed,
                                               .code = Code::exhausted,
                                               .error = "the scheduler refused the request"};
inline constexpr pipeline::StreamEnd kNoPlan{
    .reason = pipeline::FinishReason::failed,
    .code = Code::internal,
    .error = "the scheduler gave no legal plan, several times in a row"};
inline constexpr pipeline::StreamEnd kDeviceFailed{.reason = pipeline::FinishReason::failed,
                                                   .code = Code::unavailable,
                                                   .error = "a device failed during the step"};
inline constexpr pipeline::StreamEnd kNoDevices{
    .reason = pipeline::FinishReason::failed,
    .code = Code::unavailable,
    .error = "the devices that could hold the request have gone, and none came in time"};
inline constexpr pipeline::StreamEnd kNotFinite{.reason = pipeline::FinishReason::failed,
                                                .code = Code::internal,
                                                .error = "the model's output is not a number"};
inline constexpr pipeline::StreamEnd kNothingAllowed{
    .reason = pipeline::FinishReason::failed,
    .code = Code::invalid_argument,
    .error = "masks and biases leave no token to draw"};

/// What a client is told when the policy rejects its request.
constexpr pipeline::StreamEnd rejection(const PlannedReject& rejected) {
  pipeline::StreamEnd end = kRejected;
  if (rejected.reason == LUNA_REASON_DEADLINE) end = kHopeless;
  if (rejected.reason == LUNA_REASON_QUEUE_LONG) end = kQueueTooLong;
  end.queue_wait = rejected.wait;
  return end;
}

}  // namespace luna::engine
