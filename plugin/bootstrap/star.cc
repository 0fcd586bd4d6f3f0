// SPDX-License-Identifier: Apache-2.0
#include "plugin/bootstrap/star.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "plugin/bootstrap/meeting.h"

namespace prunex {

Star::Star(int rank, int size, std::vector<std::unique_ptr<Link>> links)
    : rank_(rank),
      size_(size),
      links_(std::move(links)),
      wants_write_(links_.size()),
      owner_(::getpid()) {}

Star::~Star() {
  if (::getpid() != owner_) {
    return;
  }
  std::vector<Link*> all;
  for (const auto& one : links_) {
    if (one) {
      one->post(wire::Kind::goodbye);
      all.push_back(one.get());
    }
  }
  constexpr double kFlushS = 1, kLingerS = 0.1;
  close_gently(all, kFlushS, kLingerS);
}

Result<> Star::watch_links() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  wakeup_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  bool ok = bool(epoll_) && bool(wakeup_);
  for (size_t i = 0; ok && i < links_.size(); ++i) {
    if (links_[i]) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = i;
      ok = ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, links_[i]->fd(), &event) == 0;
    }
  }
  if (!ok) {
    const int error = errno;
    return fail(Code::system, "cannot watch the control connections: " + errno_text(error), error);
  }
  update_all_interest();
  return {};
}

bool Star::anything_unsent() const {
  return std::ranges::any_of(links_, [](const auto& one) { return one && one->unsent(); });
}

void Star::update_all_interest() {
  for (int rank = 0; rank < static_cast<int>(links_.size()); ++rank) {
    update_interest(rank);
  }
}

void Star::update_interest(int rank) {
  Link* one = link(rank);
  const auto i = static_cast<size_t>(rank);
  if (one == nullptr || one->unsent() == wants_write_[i]) {
    return;
  }
  wants_write_[i] = one->unsent();
  epoll_event event{};
  event.events = wants_write_[i] ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = i;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, one->fd(), &event);
}

void Star::drop(int rank) {
  // Closing alone would not take it out of the set while a forked child (a data loader) holds a
  // copy.
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link(rank)->fd(), nullptr);
  links_[static_cast<size_t>(rank)].reset();
  wants_write_[static_cast<size_t>(rank)] = false;
}

void Star::pump() {
  std::array<epoll_event, 64> events;
  const int n = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < n; ++i) {
    const auto rank = static_cast<int>(events[static_cast<size_t>(i)].data.u64);
    if (link(rank) != nullptr) {
      link(rank)->flush();
      hear(rank);
    }
  }
  if (n > 0) {
    update_all_interest();
  }
}

void Star::judge(Verdict verdict) {
  if (!verdict_) {
    verdict_ = std::move(verdict);
    judged_.store(true, std::memory_order_release);
    (void)::eventfd_write(wakeup_.get(), 1);
  }
}

void Star::deliver(Result<std::vector<std::string>> records) {
  if (verdict_) {
    return;  // nothing succeeds after the verdict
  }
  delivered_ = std::move(records);
  ++round_;
  (void)::eventfd_write(wakeup_.get(), 1);
}

void Star::poll() {
  const std::lock_guard lock(mutex_);
  pump();
}

std::optional<Verdict> Star::aborted() const {
  if (!judged_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  return verdict_;
}

// Sleeps without the lock. Another thread may take our answer off the socket between our look and
// our sleep; the wake-up fd tells, and the slice bounds what it cannot tell to two waiters at once.
void Star::wait(const Deadline& limit) {
  constexpr int kSliceMs = 20;
  std::array<pollfd, 2> fds{{{epoll_.get(), POLLIN, 0}, {wakeup_.get(), POLLIN, 0}}};
  ::poll(fds.data(), fds.size(), poll_wait_ms(limit.left_ns(), kSliceMs));
}

void Star::take_wakeup() {
  eventfd_t ignored;
  (void)::eventfd_read(wakeup_.get(), &ignored);
}

Result<std::vector<std::string>> Star::all_gather(std::string_view mine, double timeout_s) {
  if (mine.size() > wire::kMaxRecord) {
    return fail(Code::invalid_argument, strf("a record of %zu bytes; at most %zu may be gathered",
                                             mine.size(), wire::kMaxRecord));
  }
  const std::lock_guard one_at_a_time(gather_mutex_);
  Deadline limit = Deadline::after(timeout_s);
  bool contributed = false, late = false;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      take_wakeup();
      pump();
      if (!contributed && !verdict_) {
        contribute(mine);
        contributed = true;
      }
      // Others may still wait for what we owe them, and nobody else may be here to pump.
      if (delivered_ && contributed && (!anything_unsent() || verdict_ || limit.passed())) {
        auto out = std::move(*delivered_);
        delivered_.reset();
        return out;
      }
      if (limit.passed() && !verdict_ && !delivered_) {
        if (late) {
          judge({0, Code::timeout,
                 strf("rank 0 stopped answering: all-gather %llu is %g s over its deadline",
                      static_cast<unsigned long long>(round_), kIndirectS)});
        } else {
          too_late(timeout_s);
          late = true;
          limit = Deadline::after(kIndirectS);
        }
      }
      if (verdict_ && !delivered_) {
        return tl::unexpected(to_error(*verdict_));
      }
      update_all_interest();
    }
    wait(limit);
  }
}

Verdict Star::abort(const Verdict& found) {
  Verdict finding = found;
  finding.culprit = finding.culprit < size_ ? std::max(finding.culprit, -1) : -1;
  finding.text.resize(std::min(finding.text.size(), wire::kMaxText));
  constexpr double kAnswerS = 1;
  const Deadline limit = Deadline::after(kAnswerS);
  bool reported = false;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      pump();
      if (!reported && !verdict_) {
        report(finding);
        reported = true;
      }
      if (!verdict_ && limit.passed()) {
        judge(finding);
      }
      update_all_interest();
      if (verdict_) {
        return *verdict_;
      }
    }
    wait(limit);
  }
}

}  // namespace prunex
