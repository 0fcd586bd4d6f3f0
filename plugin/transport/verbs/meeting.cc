// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/meeting.h"

#include <algorithm>
#include <cerrno>

namespace prunex::transport::verbs {
namespace {

constexpr size_t kMaxCallers = 1024;  // beyond that nobody is taken until some are through
constexpr int64_t kLookAgainNs = 1'000'000;

}  // namespace

Result<std::unique_ptr<Connection>> VerbsListener::accept() {
  while (callers_.size() < kMaxCallers) {
    auto side = meeting_->accept();
    if (!side) {
      return side;
    }
    if (!*side) {
      break;
    }
    callers_.push_back(std::make_unique<Caller>(
        Caller{Handshake(domain_, *std::move(side), Role::accepts),
               Deadline::after(domain_->options().socket.stray_timeout_s)}));
  }
  for (size_t i = 0; i < callers_.size();) {
    Caller& caller = *callers_[i];
    auto r = caller.handshake.step();
    if (r && !*r && !caller.deadline.passed()) {
      ++i;
      continue;
    }
    const bool tell = (r && *r) || (!r && caller.handshake.is_own_fault());
    callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
    if (tell) {
      return r;
    }
  }
  return std::unique_ptr<Connection>();
}

void VerbsListener::poll_fds(std::vector<pollfd>& out) const {
  meeting_->poll_fds(out);
  for (const auto& c : callers_) {
    c->handshake.poll_fds(out);
  }
}

Result<std::unique_ptr<Connecting>> VerbsConnecting::open(std::shared_ptr<Domain> domain,
                                                          std::unique_ptr<Connecting> meeting,
                                                          double timeout_s) {
  auto timer = Timer::open();
  if (!timer) {
    return tl::unexpected<Error>(timer.error());
  }
  return std::unique_ptr<Connecting>(
      new VerbsConnecting(std::move(domain), std::move(meeting), timeout_s, *std::move(timer)));
}

VerbsConnecting::VerbsConnecting(std::shared_ptr<Domain> domain,
                                 std::unique_ptr<Connecting> meeting, double timeout_s, Timer timer)
    : domain_(std::move(domain)),
      meeting_(std::move(meeting)),
      timeout_s_(timeout_s),
      deadline_(Deadline::after(timeout_s)),
      timer_(std::move(timer)) {}

Result<std::unique_ptr<Connection>> VerbsConnecting::step() {
  if (meeting_) {
    auto side = meeting_->step();
    if (!side || !*side) {
      return side;
    }
    meeting_.reset();
    peer_ = (*side)->describe();
    peer_.resize(std::min(peer_.find(" ("), peer_.size()));  // which speaks of TCP
    handshake_.emplace(domain_, *std::move(side), Role::connects);
  }
  auto r = handshake_->step();
  if (r && !*r && deadline_.passed()) {
    const char* why = handshake_->is_probing()
                          ? "a full-size packet by RDMA was never answered: do GID index, VLAN and "
                            "rail fit together, and does every switch carry this MTU?"
                          : "the listener did not answer within that time; is its process stopped?";
    return fail(Code::timeout,
                strf("cannot connect %s by RDMA from %s within %g s: %s", peer_.c_str(),
                     domain_->rails().front()->port().name().c_str(), timeout_s_, why),
                ETIMEDOUT);
  }
  timer_.set(handshake_->is_probing() ? std::min(now_ns() + kLookAgainNs, deadline_.at_ns())
                                      : deadline_.at_ns());
  return r;
}

void VerbsConnecting::poll_fds(std::vector<pollfd>& out) const {
  if (meeting_) {
    meeting_->poll_fds(out);
    return;
  }
  out.push_back({timer_.fd(), POLLIN, 0});
  handshake_->poll_fds(out);
}

}  // namespace prunex::transport::verbs
