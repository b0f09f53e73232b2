// Who answers the requests of a load run.
#pragma once

#include "core/base/clock.hpp"
#include "core/bench/prompt_source.hpp"
#include "core/bench/request_record.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <functional>
#include <memory>

namespace luna::bench {

/// An interface; its members are called on the load run's thread.
class Target {
 public:
  virtual ~Target() = default;

  /// Has one prompt answered and fills in the record's token times, end, usage, outcome and error.
  /// Both are the caller's and outlive the call.
  virtual boost::asio::awaitable<void> answer(const Prompt& prompt, RequestRecord& record) = 0;

  /// Ends all running answers soon, with whatever has come of them.
  virtual void cancel_all() = 0;
};

/// Makes the target of a run.
///
/// executor   of the run's thread
/// clock      that all times are read from; outlives the target
using TargetFactory = std::function<std::unique_ptr<Target>(boost::asio::any_io_executor executor,
                                                            const Clock& clock)>;

}  // namespace luna::bench
