// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/timer.h"

#include <sys/resource.h>
#include <sys/timerfd.h>

#include <cerrno>

#include "plugin/base/sockets.h"

namespace prunex::transport {

Result<Timer> Timer::open() {
  return with_more_files([]() -> Result<Timer> {
    Fd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!fd) {
      const int error = errno;
      return fail(Code::system,
                  strf("cannot make a timer: %s; the limit of open files is set with 'ulimit -n'",
                       errno_text(error).c_str()),
                  error);
    }
    return Timer(std::move(fd));
  });
}

void Timer::set(int64_t at_ns) {
  itimerspec at{};
  at.it_value.tv_sec = static_cast<time_t>(at_ns / 1'000'000'000);
  at.it_value.tv_nsec = static_cast<long>(at_ns % 1'000'000'000);
  (void)::timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

bool raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) {
    return false;
  }
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace prunex::transport
