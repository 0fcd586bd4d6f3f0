// SPDX-License-Identifier: Apache-2.0
// The communicator's one thread: relays aborts even while this rank is in no call, runs queued
// calls, and moves messages between two ranks.
#include <poll.h>

#include "plugin/collective/comm.h"

namespace prunex::collective {

Result<> Completion::wait() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return done(); });
  return result_;
}

bool Completion::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return ready_.wait_for(lock, time, [this] { return done(); });
}

void Completion::complete(Result<> result) {
  if (on_complete) {
    on_complete(result);
  }
  {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    done_.store(true, std::memory_order_release);
  }
  ready_.notify_all();
}

void Comm::wait_idle() {
  std::unique_lock lock(queue_mutex_);
  idle_.wait(lock,
             [this] { return !busy_ && queue_.empty() && (!messages_ || !messages_->busy()); });
}

void Comm::wake() {
  if (wake_fd_) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_fd_.get(), &one, sizeof one);
  }
}

std::shared_ptr<Request> Comm::submit(const CallSpec& spec,
                                      std::function<void(const Result<>&)> on_complete) {
  auto request = std::make_shared<Request>();
  request->spec = spec;
  request->on_complete = std::move(on_complete);
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back(request);
  }
  wake();
  return request;
}

std::shared_ptr<Completion> Comm::submit(const P2pSpec& spec) {
  auto request = messages_->post(spec);
  wake();
  return request;
}

// From a finding about a message to the story that all survivors tell; calls find the verdict.
Error Comm::die_of_message(const Error& finding) {
  Verdict mine;
  mine.culprit = finding.rank < 0 ? context_.rank : finding.rank;
  mine.code = finding.code;
  mine.text = finding.text;
  context_.memory.set_culprit({mine.culprit, mine.code == Code::timeout});
  context_.memory.ring();
  return to_error(control_->abort(mine));
}

void Comm::abort() {
  Error finding;
  finding.rank = context_.rank;
  finding.code = Code::peer_lost;
  finding.text = strf("rank %d has aborted this communicator", context_.rank);
  (void)die_of_message(finding);
  wake();
}

void Comm::progress_messages() {
  if (messages_ == nullptr) {
    return;
  }
  const bool before = messages_->busy();
  messages_->progress();
  if (before && !messages_->busy()) {
    { const std::lock_guard lock(queue_mutex_); }  // whoever is about to wait has seen it
    idle_.notify_all();
  }
}

void Comm::sleep_until_woken() {
  fds_.clear();
  fds_.push_back({control_->poll_fd(), POLLIN, 0});
  fds_.push_back({wake_fd_.get(), POLLIN, 0});
  bool busy = false;
  if (messages_ != nullptr) {
    messages_->poll_fds(fds_);
    busy = messages_->busy();
  }
  ::poll(fds_.data(), fds_.size(), busy ? 100 : 1000);  // deadlines show on no descriptor
  if ((fds_[1].revents & POLLIN) != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = ::read(wake_fd_.get(), &count, sizeof count);
  }
  const bool alive = !control_->aborted();
  control_->poll();
  if (alive && control_->aborted()) {
    context_.memory.ring();  // whoever sleeps in a call looks at the verdict
  }
  tell_abort();
}

void Comm::serve() {
  while (true) {
    progress_messages();
    std::shared_ptr<Request> next;
    {
      const std::lock_guard lock(queue_mutex_);
      if (!busy_ && !queue_.empty()) {
        next = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
      } else if (stop_ && !busy_ && (!messages_ || !messages_->busy())) {
        return;
      }
    }
    if (next != nullptr) {
      context_.messages = messages_.get();  // its waits move them meanwhile
      Result<> result = run(next->spec);
      context_.messages = nullptr;
      {
        const std::lock_guard lock(queue_mutex_);
        busy_ = false;
      }
      next->complete(std::move(result));
      idle_.notify_all();
      continue;
    }
    sleep_until_woken();
  }
}

}  // namespace prunex::collective
