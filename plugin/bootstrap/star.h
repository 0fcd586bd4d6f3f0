// SPDX-License-Identifier: Apache-2.0
// The star once all ranks have met: what both ends have in common. Everything below is under one
// mutex; whoever calls in pumps for everybody.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/fd.h"
#include "plugin/bootstrap/control.h"
#include "plugin/bootstrap/link.h"

namespace prunex {

class Star : public Control {
 public:
  ~Star() override;
  Star(const Star&) = delete;
  Star& operator=(const Star&) = delete;

  Result<std::vector<std::string>> all_gather(std::string_view mine, double timeout_s) final;
  Verdict abort(const Verdict& found) final;
  [[nodiscard]] std::optional<Verdict> aborted() const final;
  [[nodiscard]] int poll_fd() const final { return epoll_.get(); }
  void poll() final;

  // Makes the epoll set; called once, before use.
  [[nodiscard]] Result<> watch_links();

 protected:
  // links by rank; empty where there is no connection.
  Star(int rank, int size, std::vector<std::unique_ptr<Link>> links);

  // All of these run under mutex_.
  virtual void contribute(std::string_view mine) = 0;      // to round round_
  virtual void too_late(double timeout_s) = 0;             // this rank's deadline for round_ passed
  virtual void report(const Verdict& finding) = 0;         // sets the verdict, or asks for it
  virtual void hear(int rank) = 0;                         // something came from that rank
  void judge(Verdict verdict);                             // the first one stays
  void deliver(Result<std::vector<std::string>> records);  // round_ is complete
  void drop(int rank);                                     // no more to be heard from that rank
  [[nodiscard]] Link* link(int rank) { return links_[static_cast<size_t>(rank)].get(); }

  const int rank_, size_;
  std::vector<std::unique_ptr<Link>> links_;
  std::optional<Verdict> verdict_;
  uint64_t round_ = 1;  // the all-gather that is, or comes, next

 private:
  void pump();
  void update_interest(int rank);  // asks for EPOLLOUT while something is unsent
  void update_all_interest();
  [[nodiscard]] bool anything_unsent() const;
  void wait(const Deadline& limit);
  void take_wakeup();

  mutable std::mutex mutex_;
  std::mutex gather_mutex_;  // one all-gather of this rank at a time
  Fd epoll_, wakeup_;        // wakeup_ ends a waiter's sleep when another thread pumped its answer
  std::atomic<bool> judged_{false};
  std::optional<Result<std::vector<std::string>>> delivered_;
  std::vector<bool> wants_write_;
  const pid_t owner_;  // a forked child must not say goodbye for its parent
};

[[nodiscard]] std::unique_ptr<Star> make_root_star(int size,
                                                   std::vector<std::unique_ptr<Link>> links);
[[nodiscard]] std::unique_ptr<Star> make_member_star(int rank, int size,
                                                     std::unique_ptr<Link> root);

}  // namespace prunex
