// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/connection.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {
namespace {

constexpr uint32_t kRareRounds = 64;         // idle ones between two looks at the clock
constexpr int64_t kLookAsideNs = 1'000'000;  // between two looks at all but the completions
constexpr uint32_t kHoldRounds = 1024;       // idle ones until held receives are told
constexpr int kPollsPerCall = 4;
constexpr double kLingerS = 1;
constexpr int64_t kStallLookNs = 1'000'000'000;         // between two looks of a sleeper
constexpr uint64_t kLongestWrite = uint64_t{16} << 20;  // so that there is progress to see

}  // namespace

Result<std::unique_ptr<Connection>> VerbsConnection::open(Parts parts) {
  Fd ready(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ready) {
    return fail(Code::system, "no event descriptor: " + errno_text(errno), errno);
  }
  std::optional<Timer> timer;
  if (parts.domain->options().stall_s > 0) {
    auto made = Timer::open();
    if (!made) {
      return tl::unexpected<Error>(made.error());
    }
    timer = *std::move(made);
  }
  std::unique_ptr<VerbsConnection> c(
      new VerbsConnection(std::move(parts), std::move(ready), std::move(timer)));
  // It is answered when the other end is gone, or gives up and says why.
  if (c->parts_.side->irecv(c->farewell_.data(), c->farewell_.size(), nullptr, &c->side_ticket_) !=
      Io::done) {
    return tl::unexpected<Error>(c->parts_.side->error());
  }
  return std::unique_ptr<Connection>(std::move(c));
}

VerbsConnection::VerbsConnection(Parts parts, Fd ready, std::optional<Timer> timer)
    : parts_(std::move(parts)),
      ready_(std::move(ready)),
      names_(parts_.side->describe()),
      next_send_(parts_.own.first_sequence),
      next_to_post_(next_send_),
      peer_consumed_(next_send_),
      next_receive_(next_send_),
      next_arrival_(next_send_),
      told_consumed_(next_send_),
      next_whole_(next_send_),
      timer_(std::move(timer)) {
  names_ = names_.substr(0, names_.find(" ("));
  peer_ = names_.substr(names_.find("-> ") + 3);
  chunk_ = kLongestWrite;
  for (const Rail& rail : parts_.rails) {
    for (const uint64_t limit : {rail.own.max_message, rail.peer.max_message}) {
      chunk_ = limit > 0 ? std::min(chunk_, limit) : chunk_;
    }
  }
  split_from_ = std::max<size_t>(parts_.domain->options().split_from, kEagerBytes + 1);
  set_lanes();
  most_at_once_ = std::min<size_t>(chunk_, kMaxImmediateBytes);
  if (lanes_.size() > 1) {
    most_at_once_ = std::min(most_at_once_, split_from_ - 1);
  }
}

// By turns over the rails, so that the queue pairs of one are not neighbours.
void VerbsConnection::set_lanes() {
  const bool speeds = std::all_of(parts_.rails.begin(), parts_.rails.end(), [](const Rail& r) {
    return r.own.speed > 0 && r.peer.speed > 0;
  });
  size_t number = 0;
  for (size_t i = 0; i < kMaxQueuePairs; ++i) {
    for (size_t r = 0; r < parts_.rails.size(); ++r) {
      const Rail& rail = parts_.rails[r];
      if (i < rail.pairs.size()) {
        lanes_.push_back({rail.pairs[i].get(), r});
        weights_.push_back(speeds ? std::min(rail.own.speed, rail.peer.speed) : 1);
        number = rail.pairs[i]->lane();
        by_number_[number] = rail.pairs[i].get();
        rail_of_[number] = r;
      }
    }
  }
}

VerbsConnection::~VerbsConnection() {
  // What the device still has to send goes out, unless the other end is gone.
  const Deadline deadline = Deadline::after(kLingerS);
  bool healthy = !lost_;
  const auto busy = [this] {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return !l.pair->idle(); });
  };
  while (healthy && busy() && !deadline.passed()) {
    for (Rail& rail : parts_.rails) {
      const int n = rail.queue->poll(seen_);
      healthy = healthy && n >= 0;
      for (int i = 0; i < n; ++i) {
        ibv_wc& entry = seen_[static_cast<size_t>(i)];
        by_number_[lane_of(entry)]->take(entry);
        healthy = healthy && entry.status == IBV_WC_SUCCESS;
      }
    }
  }
  parts_.side.reset();   // first, so that the other end hears of a close and not of a failure
  parts_.rails.clear();  // then nobody writes here any more
}

std::string VerbsConnection::ports_text() const {
  std::string out;
  for (const Rail& rail : parts_.rails) {
    out += strf("%s%s to %s", out.empty() ? "" : ", ", rail.own.device.c_str(),
                rail.peer.device.c_str());
  }
  return out;
}

std::string VerbsConnection::describe() const {
  std::string out = strf("%s (verbs, %s", names_.c_str(), ports_text().c_str());
  for (const std::string& port : parts_.left_out) {
    out += strf("; without %s, in no network of the other end", port.c_str());
  }
  return out + ")";
}

VerbsConnection::Source VerbsConnection::source_of(const Region* region, const void* data,
                                                   size_t bytes) const {
  if (region == nullptr || region->owner() != parts_.domain.get()) {
    return nullptr;
  }
  const Source& memory = static_cast<const VerbsRegion*>(region)->memory;
  return memory->holds(data, bytes) ? memory : nullptr;
}

Io VerbsConnection::test(Ticket ticket, size_t* bytes, Mark* mark) {
  const auto go_on = [this] { (void)progress(); };
  return is_receive(ticket) ? answer(receives_, ticket, failed_, error_, go_on, bytes, mark)
                            : answer(sends_, ticket, failed_, error_, go_on, bytes, mark);
}

Io VerbsConnection::progress() {
  if (failed_) {
    return Io::failed;
  }
  const bool woken = std::exchange(slept_, false);
  for (size_t i = 0; woken && i < parts_.rails.size(); ++i) {
    parts_.rails[i].queue->disarm();
  }
  int moved = seen_count_ > 0 ? handle_seen(std::exchange(seen_count_, 0)) : 0;
  for (int i = 0; i < kPollsPerCall && !failed_; ++i) {
    const int n = poll_some();
    moved += n;
    if (n < static_cast<int>(seen_.size())) {
      break;  // there was no more
    }
  }
  if (!failed_ && !lost_) {
    if (held_long_ > 0 && !has_enough_credits()) {
      tell_held();
    }
    if (due_count_ > 0) {
      flush_due();
    }
    if (next_to_post_ != next_send_) {
      push_sends();
    }
  }
  idle_rounds_ = moved > 0 ? 0 : idle_rounds_ + 1;
  if (moved == 0 && !failed_ &&
      (woken || lost_ || side_ended_ns_ >= 0 || idle_rounds_ % kRareRounds == 0)) {
    idle(woken);
  }
  return failed_ ? Io::failed : moved > 0 ? Io::done : Io::again;
}

void VerbsConnection::idle(bool woken) {
  if (held_ > 0 && !lost_ && (woken || idle_rounds_ >= kHoldRounds)) {
    tell_held();
  }
  bool looks = woken;
  if (idle_rounds_ % kRareRounds == 0) {
    looks = looks || now_ns() - looked_ns_ >= kLookAsideNs;
  }
  if (looks || side_ended_ns_ >= 0) {
    look_aside();
  }
  if (looks) {
    looked_ns_ = now_ns();
    check_stall();
  }
  check_lost();
}

int VerbsConnection::poll_some() {
  int moved = 0;
  for (Rail& rail : parts_.rails) {
    const int n = failed_ ? 0 : rail.queue->poll(seen_);
    if (n < 0) {
      lose({Code::system, rail.own.device + " has failed", 0, -1});
      return moved;
    }
    moved += n > 0 ? handle_seen(n) : 0;
  }
  return moved;
}

int VerbsConnection::handle_seen(int n) {
  for (ibv_wc& entry : std::span(seen_.data(), static_cast<size_t>(n))) {
    by_number_[lane_of(entry)]->take(entry);
    if (!failed_) {
      handle(entry);
    }
  }
  for (const Lane& lane : lanes_) {
    if (!lane.pair->refill()) {
      lose({Code::system, parts_.rails[lane.rail].own.device + " has failed", 0, -1});
    }
  }
  moves_ += static_cast<uint64_t>(n);
  return n;
}

void VerbsConnection::handle(const ibv_wc& entry) {
  if (entry.status != IBV_WC_SUCCESS) {
    if (!lost_) {
      look_aside();  // it may simply have closed, or a port may have said why
      side_ended_ns_ >= 0 ? lose_to_peer()
                          : lose(explain(parts_, parts_.rails[rail_of_[lane_of(entry)]], entry));
    }
    return;
  }
  if ((entry.wr_id & kReceiveId) == 0) {
    on_sent(entry.wr_id);
    return;
  }
  const Immediate i = unpack(entry.imm_data);
  switch (i.kind) {
    case Immediate::control:
      handle_control(static_cast<Control>(i.mark), i.value);
      break;
    case Immediate::piece:
      on_piece(i.mark, i.value);
      break;
    default:
      if (!take_whole(i)) {
        on_message(i.kind, i.mark, i.value, 0);
      }
  }
}

void VerbsConnection::handle_control(Control control, uint32_t value) {
  switch (control) {
    case Control::credit:
      for (uint32_t i = 0; i < count_of_credits(value) && !failed_; ++i) {
        on_credit(place_of_credits(value) + i);
      }
      return;
    case Control::notice:
      return on_notice(value);
    case Control::taken:
      return on_taken(value);
    case Control::stripe:
      return on_stripe(value);
    default:
      break_protocol("an announcement of an unknown kind");
  }
}

void VerbsConnection::poll_fds(std::vector<pollfd>& out) const {
  slept_ = true;
  if (failed_ || (lost_ && seen_count_ == 0 && !outstanding())) {
    return;
  }
  for (const Rail& rail : parts_.rails) {
    if (seen_count_ == 0) {
      // What completes between the last look and the arming raises no event: look once more.
      rail.queue->arm();
      seen_count_ = std::max(rail.queue->poll(seen_), 0);
    }
  }
  if (seen_count_ > 0 || side_ended_ns_ >= 0 || lost_ || held_ > 0) {
    out.push_back({ready_.get(), POLLIN, 0});
    return;
  }
  for (const Rail& rail : parts_.rails) {
    out.push_back({rail.queue->event_fd(), POLLIN, 0});
    out.push_back({rail.device->event_fd(), POLLIN, 0});
  }
  if (timer_ && is_under_way()) {
    const auto limit_ns = static_cast<int64_t>(parts_.domain->options().stall_s * 1e9);
    timer_->set(now_ns() + std::min(limit_ns, kStallLookNs));
    out.push_back({timer_->fd(), POLLIN, 0});
  }
  parts_.side->poll_fds(out);
}

void VerbsConnection::break_with(Code code, std::string text) {
  if (!failed_) {
    failed_ = true;
    error_ = Error{code, std::move(text) + " [" + describe() + "]", 0, -1};
  }
}

void VerbsConnection::break_protocol(const char* what) {
  break_with(Code::mismatch,
             strf("%s sent %s: install the same prunex on all nodes", peer_.c_str(), what));
}

}  // namespace prunex::transport::verbs
