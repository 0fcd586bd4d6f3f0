// SPDX-License-Identifier: Apache-2.0
// Rank 0's side of the meeting.
#include <poll.h>

#include <algorithm>
#include <list>
#include <optional>

#include "plugin/base/log.h"
#include "plugin/bootstrap/meeting.h"

namespace prunex {
namespace {

constexpr double kStrayS = 5;      // a caller that has not come through by then is dropped
constexpr double kOtherSizeS = 2;  // how long a caller with another world size may be a leftover

struct Caller {  // connected, but not (yet) one of us
  enum class State : uint8_t { hello, ack, leaving, gone };
  std::unique_ptr<Link> link;
  std::string from;
  Deadline limit;
  State state = State::hello;
  int rank = -1;
};

class RootMeeting {
 public:
  RootMeeting(const ControlOptions& options, const Deadline& deadline, Place place)
      : options_(options),
        deadline_(deadline),
        place_(std::move(place)),
        links_(static_cast<size_t>(options.size)),
        missing_(options.size - 1) {}

  Result<std::vector<std::unique_ptr<Link>>> run() {
    while (missing_ > 0 && !verdict_) {
      wait();
      for (int rank = 1; rank < options_.size; ++rank) {
        hear_member(rank);
      }
      accept_callers();
      for (Caller& caller : callers_) {
        hear_caller(caller);
      }
      std::erase_if(callers_, [](const Caller& one) { return one.state == Caller::State::gone; });
      watch_clock();
    }
    return verdict_ ? fail_all() : start();
  }

 private:
  void wait() {
    std::vector<pollfd> fds;
    int64_t ns = deadline_.left_ns();
    for (const Listening& one : place_.listeners) {
      fds.push_back({one.fd.get(), POLLIN, 0});
    }
    for (const Caller& one : callers_) {
      fds.push_back({one.link->fd(), short(one.link->unsent() ? POLLIN | POLLOUT : POLLIN), 0});
      ns = std::min(ns, one.limit.left_ns());
    }
    for (const auto& link : links_) {
      if (link) {
        fds.push_back({link->fd(), short(link->unsent() ? POLLIN | POLLOUT : POLLIN), 0});
      }
    }
    if (other_size_) {
      ns = std::min(ns, other_size_->limit.left_ns());
    }
    ::poll(fds.data(), fds.size(), poll_wait_ms(ns, 1000));
  }

  void accept_callers() {
    const size_t most = links_.size() + 256;
    for (const Listening& one : place_.listeners) {
      for (int i = 0; i < 64; ++i) {
        auto accepted = accept_tcp(one.fd.get());
        if (!accepted) {
          verdict_ = Verdict{0, accepted.error().code, "rank 0: " + accepted.error().text};
          return;
        }
        if (!*accepted) {
          break;
        }
        tune_stream((*accepted)->fd.get(), Vigilance::user_timeout);
        if (callers_.size() >= most) {  // a flood of strays must not use up the descriptors
          callers_.pop_front();
        }
        Caller caller;
        caller.link = std::make_unique<Link>(std::move((*accepted)->fd), options_.size);
        caller.from = to_text((*accepted)->peer);
        caller.limit = Deadline::after(kStrayS);
        callers_.push_back(std::move(caller));
      }
    }
  }

  void hear_caller(Caller& caller) {
    caller.link->flush();
    if (caller.state == Caller::State::leaving) {
      if (!caller.link->discard() || caller.limit.passed()) {
        caller.state = Caller::State::gone;
      }
      return;
    }
    Frame frame;
    const bool greeting = caller.state == Caller::State::hello;
    const auto got = caller.link->receive({greeting ? wire::Kind::hello : wire::Kind::ack}, &frame);
    if (got == Link::Got::frame) {
      greeting ? greet(caller, frame) : take_in(caller);
      return;
    }
    if (got == Link::Got::broken && caller.link->error().code == Code::mismatch) {
      // Another version: any frame of ours tells it ours.
      turn_away(caller, wire::Reason::another_communicator, "another version of PruneX");
      return;
    }
    if (got != Link::Got::nothing || caller.limit.passed()) {
      PRUNEX_LOG(trace, "dropped a stray connection from %s", caller.from.c_str());
      caller.state = Caller::State::gone;
    }
  }

  void greet(Caller& caller, const Frame& frame) {
    const auto hello = wire::decode_hello(wire::bytes_of(frame.body));
    // A caller without the cookie learns nothing.
    if (!hello || (place_.has_cookie && !same_cookie(hello->cookie, place_.cookie))) {
      caller.state = Caller::State::gone;
      return;
    }
    if (hello->name != options_.store_prefix) {
      turn_away(caller, wire::Reason::another_communicator,
                "the ranks of communicator '" + options_.store_prefix + "' meet here now");
      return;
    }
    const auto size = static_cast<uint32_t>(options_.size);
    if (hello->size != size) {
      refuse_size(caller, *hello);
      return;
    }
    if (hello->rank == 0 || hello->rank >= size) {
      turn_away(caller, wire::Reason::rank_range,
                strf("rank %u: rank 0 and ranks from %u on cannot join", hello->rank, size));
      return;
    }
    caller.rank = static_cast<int>(hello->rank);
    if (links_[hello->rank]) {
      turn_away_duplicate(caller);
      return;
    }
    caller.state = Caller::State::ack;
    caller.link->post(wire::Kind::welcome);
  }

  void turn_away(Caller& caller, wire::Reason reason, std::string text) {
    caller.state = Caller::State::leaving;
    caller.link->post(wire::Kind::refuse, 0, wire::encode(wire::Refusal{reason, std::move(text)}));
  }

  void turn_away_duplicate(Caller& caller) {
    turn_away(caller, wire::Reason::duplicate,
              strf("rank %d is here already; two processes have the same rank", caller.rank));
  }

  void refuse_size(Caller& caller, const wire::Hello& hello) {
    const std::string text = strf("rank %u has world size %u, rank 0 has world size %d", hello.rank,
                                  hello.size, options_.size);
    turn_away(caller, wire::Reason::world_size, text);
    const bool one_of_us = hello.rank > 0 && hello.rank < links_.size();
    const int culprit = one_of_us ? static_cast<int>(hello.rank) : -1;
    if (place_.has_cookie) {
      verdict_ = Verdict{culprit, Code::mismatch, text};
    } else if (one_of_us && !other_size_ && !links_[hello.rank]) {
      // Without a cookie it may be a leftover of a job of another size, and the real rank still to
      // come.
      other_size_ = OtherSize{culprit, text, Deadline::after(kOtherSizeS)};
    }
  }

  void take_in(Caller& caller) {
    auto& place = links_[static_cast<size_t>(caller.rank)];
    if (place) {
      turn_away_duplicate(caller);
      return;
    }
    place = std::move(caller.link);
    caller.state = Caller::State::gone;
    --missing_;
    if (other_size_ && other_size_->rank == caller.rank) {
      other_size_.reset();
    }
  }

  void hear_member(int rank) {
    Link* link = links_[static_cast<size_t>(rank)].get();
    if (link == nullptr || verdict_) {
      return;
    }
    link->flush();
    Frame frame;
    switch (link->receive({wire::Kind::give_up}, &frame)) {
      case Link::Got::nothing:
        return;
      case Link::Got::frame:
        too_late();
        return;
      case Link::Got::end:
      case Link::Got::broken:
        verdict_ = Verdict{rank, Code::peer_lost,
                           strf("rank %d was lost while the other ranks were still coming", rank)};
        links_[static_cast<size_t>(rank)].reset();
    }
  }

  std::vector<int> missing_ranks() const {
    std::vector<int> out;
    for (int rank = 1; rank < options_.size; ++rank) {
      if (!links_[static_cast<size_t>(rank)]) {
        out.push_back(rank);
      }
    }
    return out;
  }

  void too_late() {
    const std::vector<int> missing = missing_ranks();
    verdict_ = Verdict{
        missing.front(), Code::timeout,
        strf("%s of %d did not come within %g s; started, and able to reach %s?",
             rank_words(missing).c_str(), options_.size, options_.timeout_s, place_.text.c_str())};
    if (other_size_) {
      verdict_->text += "; " + other_size_->text;
    }
  }

  void watch_clock() {
    if (missing_ == 0 || verdict_) {
      return;
    }
    if (deadline_.passed()) {
      too_late();
    } else if (other_size_ && other_size_->limit.passed()) {
      verdict_ = Verdict{other_size_->rank, Code::mismatch, other_size_->text};
    } else if (patience_.passed()) {
      PRUNEX_LOG(warn, "still waiting for %s of %d at %s", rank_words(missing_ranks()).c_str(),
                 options_.size, place_.text.c_str());
      patience_s_ *= 2;
      patience_ = Deadline::after(patience_s_);
    }
  }

  Result<std::vector<std::unique_ptr<Link>>> start() {
    place_.listeners.clear();
    const auto ready =
        std::make_shared<const std::string>(wire::encode_frame(wire::Kind::ready, 0, {}));
    for (const auto& link : links_) {
      if (link) {
        link->post(ready);
      }
    }
    std::vector<Link*> leaving;
    for (Caller& caller : callers_) {
      if (caller.state == Caller::State::ack) {
        turn_away_duplicate(caller);
      }
      if (caller.state == Caller::State::leaving) {
        leaving.push_back(caller.link.get());
      }
    }
    close_gently(leaving, 0.2, 0.2);
    return std::move(links_);
  }

  tl::unexpected<Error> fail_all() {
    place_.listeners.clear();
    const auto frame = std::make_shared<const std::string>(
        wire::encode_frame(wire::Kind::verdict, 0, wire::encode(*verdict_)));
    std::vector<Link*> all;
    for (const auto& link : links_) {
      if (link) {
        link->post(frame);
        all.push_back(link.get());
      }
    }
    for (const Caller& caller : callers_) {
      if (caller.state == Caller::State::ack) {
        caller.link->post(frame);
      }
      if (caller.state != Caller::State::hello) {
        all.push_back(caller.link.get());
      }
    }
    close_gently(all, 1, 1);
    return tl::unexpected(to_error(*verdict_));
  }

  struct OtherSize {
    int rank;
    std::string text;
    Deadline limit;
  };

  const ControlOptions& options_;
  const Deadline deadline_;
  Place place_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank
  int missing_;
  std::list<Caller> callers_;
  std::optional<OtherSize> other_size_;
  std::optional<Verdict> verdict_;
  double patience_s_ = kPatienceS;
  Deadline patience_ = Deadline::after(kPatienceS);
};

}  // namespace

Result<std::vector<std::unique_ptr<Link>>> meet_as_root(const ControlOptions& options,
                                                        const Deadline& deadline) {
  auto place = open_place(options, deadline);
  if (!place) {
    return tl::unexpected(place.error());
  }
  return RootMeeting(options, deadline, std::move(*place)).run();
}

}  // namespace prunex
