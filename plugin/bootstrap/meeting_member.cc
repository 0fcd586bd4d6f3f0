// SPDX-License-Identifier: Apache-2.0
// The side of the meeting of every rank but 0: find rank 0 and keep trying until the deadline. A
// refused connection is normal while rank 0 is not there yet.
#include <poll.h>
#include <sys/random.h>

#include <algorithm>

#include "plugin/base/interfaces.h"
#include "plugin/base/log.h"
#include "plugin/bootstrap/meeting.h"

namespace prunex {
namespace {

constexpr double kFirstPauseS = 0.01, kLongestPauseS = 0.5;
constexpr double kFirstAttemptS = 3, kLongestAttemptS = 10;

enum class Outcome : uint8_t { joined, again, fatal };

class MemberMeeting {
 public:
  MemberMeeting(const ControlOptions& options, const Deadline& deadline)
      : options_(options), deadline_(deadline) {}

  Result<std::unique_ptr<Link>> run() {
    double pause_s = kFirstPauseS;
    do {
      const Outcome outcome = try_everywhere();
      if (outcome == Outcome::joined) {
        return std::move(link_);
      }
      if (outcome == Outcome::fatal) {
        return tl::unexpected(error_);
      }
      if (patience_.passed()) {
        PRUNEX_LOG(warn, "still looking for rank 0: %s", story().c_str());
        patience_s_ *= 2;
        patience_ = Deadline::after(patience_s_);
      }
      sleep_within(deadline_, pause_s * jitter());
      pause_s = std::min(2 * pause_s, kLongestPauseS);
      attempt_s_ = std::min(attempt_s_ * 1.5, kLongestAttemptS);
    } while (!deadline_.passed());
    return fail(Code::timeout,
                strf("rank 0 did not answer within %g s: ", options_.timeout_s) + story(), 0, 0);
  }

 private:
  [[nodiscard]] std::string story() const {
    return place_ +
           strf(", %d %s, the last: ", attempts_, attempts_ == 1 ? "attempt" : "attempts") +
           reason_;
  }

  // So that a thousand ranks that were refused together do not come back together.
  static double jitter() {
    uint8_t byte = 128;
    (void)::getrandom(&byte, 1, GRND_NONBLOCK);
    return 0.75 + byte / 512.0;
  }

  Outcome fatal(Error error) {
    error_ = std::move(error);
    return Outcome::fatal;
  }

  Outcome again(std::string reason) {
    reason_ = std::move(reason);
    link_.reset();
    return Outcome::again;
  }

  Outcome try_everywhere() {
    std::vector<SocketAddress> targets;
    if (const Outcome found = options_.store ? look_in_store(&targets) : look_up_root(&targets);
        found != Outcome::joined) {
      return found;
    }
    if (const auto have = list_interfaces()) {
      const auto usable = choose_interfaces(*have, "");
      if (const auto match = usable ? check_families(*usable, targets) : Result<>{}; !match) {
        return fatal({match.error().code, "rank 0: " + match.error().text, 0, 0});
      }
    }
    Outcome outcome = Outcome::again;
    for (size_t i = 0; i < targets.size() && outcome == Outcome::again; ++i) {
      ++attempts_;
      outcome = attempt(targets[i]);
      if (deadline_.passed()) {
        break;
      }
    }
    return outcome;
  }

  // `joined` means found.
  Outcome look_up_root(std::vector<SocketAddress>* out) {
    place_ = options_.root;
    const auto root = parse_host_port(options_.root);
    if (!root) {
      return fatal({Code::config, "PRUNEX_ROOT=" + root.error().text, 0, -1});
    }
    // The name of a container that is not up yet does not resolve: that, too, is no more than
    // early.
    auto resolved = resolve(*root);
    if (!resolved) {
      ++attempts_;
      return again(resolved.error().text);
    }
    *out = std::move(*resolved);
    return Outcome::joined;
  }

  // Asked anew for each attempt: an entry may be left over from an earlier communicator.
  Outcome look_in_store(std::vector<SocketAddress>* out) {
    const std::string key = root_key(options_);
    if (place_.empty()) {
      place_ = "its address under '" + key + "' in the store";
    }
    const double left_s = static_cast<double>(deadline_.left_ns()) * 1e-9;
    const auto text = options_.store->get(key, std::max(left_s, 0.001));
    if (!text) {
      ++attempts_;
      const bool late = text.error().code == Code::timeout || deadline_.passed();
      return late ? again(text.error().text)
                  : fatal({text.error().code,
                           "cannot read '" + key + "' from the store: " + text.error().text,
                           text.error().sys_errno, -1});
    }
    const auto card = wire::decode_card(*text);
    if (!card) {
      return fatal(card.error());
    }
    cookie_ = card->cookie;
    *out = card->addresses;
    place_.clear();
    for (const SocketAddress& one : *out) {
      place_ += (place_.empty() ? "" : " or ") + to_text(one);
    }
    return Outcome::joined;
  }

  Outcome attempt(const SocketAddress& to) {
    const double left_s = static_cast<double>(deadline_.left_ns()) * 1e-9;
    const Deadline limit = Deadline::after(std::min(attempt_s_, left_s));
    auto fd = start_connect(to);
    if (!fd) {
      return again(fd.error().text);
    }
    while (true) {
      wait_for(fd->get(), POLLOUT, limit);
      const auto connected = connect_done(fd->get(), to);
      if (!connected) {
        return again(connected.error().text);
      }
      if (*connected) {
        break;
      }
      if (limit.passed()) {
        return again("no answer from " + to_text(to) + " (a firewall, or a wrong address?)");
      }
    }
    tune_stream(fd->get(), Vigilance::user_timeout);
    link_ = std::make_unique<Link>(std::move(*fd), options_.size);
    wire::Hello hello{static_cast<uint32_t>(options_.rank), static_cast<uint32_t>(options_.size),
                      cookie_, options_.store_prefix};
    link_->post(wire::Kind::hello, 0, wire::encode(hello));
    return introduce(to, limit);
  }

  Outcome introduce(const SocketAddress& to, const Deadline& limit) {
    while (true) {
      Frame frame;
      switch (link_->receive({wire::Kind::welcome, wire::Kind::refuse}, &frame)) {
        case Link::Got::frame:
          if (frame.header.kind == wire::Kind::refuse) {
            return refused(frame);
          }
          link_->post(wire::Kind::ack);
          return wait_for_all();
        case Link::Got::nothing:
          break;
        case Link::Got::end:
          return again("connection to " + to_text(to) + " was closed");
        case Link::Got::broken:
          return link_->error().code == Code::mismatch
                     ? fatal(link_->error())
                     : again(to_text(to) + ": " + link_->error().text);
      }
      if (limit.passed()) {
        return again("connected to " + to_text(to) + ", which then said nothing: is that rank 0?");
      }
      wait_for(link_->fd(), POLLIN, limit);
    }
  }

  Outcome refused(const Frame& frame) {
    const auto refusal = wire::decode_refusal(wire::bytes_of(frame.body));
    if (!refusal) {
      return again(refusal.error().text);
    }
    if (refusal->reason == wire::Reason::another_communicator) {
      return again(refusal->text);
    }
    return fatal({Code::mismatch, "rank 0 refuses: " + refusal->text, 0, options_.rank});
  }

  // One of us now: until the deadline, then rank 0 has a moment to say who is missing.
  Outcome wait_for_all() {
    bool gave_up = false;
    Deadline limit = deadline_;
    while (true) {
      Frame frame;
      switch (
          link_->receive({wire::Kind::ready, wire::Kind::verdict, wire::Kind::refuse}, &frame)) {
        case Link::Got::frame:
          if (frame.header.kind == wire::Kind::ready) {
            return Outcome::joined;
          }
          return frame.header.kind == wire::Kind::refuse ? refused(frame) : judged(frame);
        case Link::Got::nothing:
          break;
        case Link::Got::end:
        case Link::Got::broken:
          return fatal(
              {Code::peer_lost, "rank 0 was lost while the other ranks were still coming", 0, 0});
      }
      if (limit.passed() && gave_up) {
        return fatal({Code::timeout,
                      strf("rank 0 at %s stopped answering while the other ranks were still coming",
                           place_.c_str()),
                      0, 0});
      }
      if (limit.passed()) {
        gave_up = true;
        limit = Deadline::after(kIndirectS);
        link_->post(wire::Kind::give_up);
      }
      wait_for(link_->fd(), POLLIN, limit);
    }
  }

  Outcome judged(const Frame& frame) {
    const auto verdict = wire::decode_verdict(wire::bytes_of(frame.body), options_.size);
    return fatal(verdict ? to_error(*verdict) : verdict.error());
  }

  void wait_for(int fd, short events, const Deadline& limit) const {
    pollfd one{fd, events, 0};
    ::poll(&one, 1, poll_wait_ms(limit.left_ns(), 1000));
  }

  const ControlOptions& options_;
  const Deadline deadline_;
  Cookie cookie_{};
  std::unique_ptr<Link> link_;
  Error error_;
  std::string place_, reason_ = "none";
  int attempts_ = 0;
  double attempt_s_ = kFirstAttemptS;
  double patience_s_ = kPatienceS;
  Deadline patience_ = Deadline::after(kPatienceS);
};

}  // namespace

Result<std::unique_ptr<Link>> meet_as_member(const ControlOptions& options,
                                             const Deadline& deadline) {
  return MemberMeeting(options, deadline).run();
}

}  // namespace prunex
