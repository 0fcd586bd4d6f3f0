// SPDX-License-Identifier: Apache-2.0
// Calls on device memory: headers, records and findings go through this communicator, data does
// not.
#include <utility>

#include "plugin/collective/comm.h"

namespace prunex::collective {

Result<> Comm::run_announced(const CallSpec& spec) {
  Announcement& a = *spec.announced;
  if (a.finding) {
    return tl::unexpected(die(*a.finding));
  }
  const Effective e = effective(spec);  // a copy: recovery may clear the cache
  a.masked = e.masked;
  a.compact = e.compact;
  a.lossless = e.lossless;
  a.sampled = e.sampled;
  a.projected = e.projected;
  auto outcome = exchange(spec, *e.masked, false, false);
  if (!outcome) {
    return tl::unexpected(outcome.error());
  }
  if (*outcome == Outcome::differ) {
    if (auto resolved = resolve_difference(spec, *e.masked); !resolved) {
      return resolved;
    }
  } else if (a.offences) {
    if (auto learned = learn(spec, *e.masked, *a.offences); !learned) {
      return tl::unexpected(learned.error());
    }
    const std::lock_guard lock(stats_mutex_);
    --stats_.calls;  // counted again when it is made again
    --stats_.calls_compact;
    stats_.bytes_logical -= spec.count * size_of(spec.type);
    return {};
  } else if (a.record) {
    auto records = gather(spec.scope == Scope::node ? Scope::node : Scope::world, *a.record);
    if (!records) {
      return tl::unexpected(records.error());
    }
    a.records = std::move(*records);
  }
  refresh_stats();
  const std::lock_guard lock(stats_mutex_);
  ++stats_.calls;
  ++(e.compact && !a.differ && !a.again ? stats_.calls_compact : stats_.calls_dense);
  stats_.bytes_logical += spec.count * size_of(spec.type);
  return {};
}

void Comm::on_abort(std::function<void(const Error&)> listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
}

Result<> Comm::state() const {
  const auto verdict = control_->aborted();
  return verdict ? Result<>(tl::unexpected(to_error(*verdict))) : Result<>();
}

void Comm::tell_abort() {
  const std::lock_guard lock(listener_mutex_);
  if (told_ || !listener_) {
    return;
  }
  if (auto verdict = control_->aborted()) {
    told_ = true;
    listener_(to_error(*verdict));
  }
}

}  // namespace prunex::collective
