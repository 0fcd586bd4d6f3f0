// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/socket/connection.h"

#include <algorithm>
#include <cerrno>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/socket/tuning.h"

namespace prunex::transport {
namespace {

// Shorter messages travel on the first stream; longer ones are cut into at most one stripe per
// stream. Stripes are multiples of 128 bytes, which LL128 receivers rely on.
constexpr size_t kStripeMin = size_t{32} << 10;
constexpr size_t kStripeUnit = 128;

constexpr uint32_t kRareRounds = 32;

}  // namespace

SocketConnection::SocketConnection(std::vector<Fd> streams, std::string hello,
                                   const ConnectionOptions& options)
    : streams_(streams.size()),
      hello_(std::move(hello)),
      options_(options),
      next_send_(options.first_sequence),
      next_receive_(options.first_sequence),
      first_pending_(options.first_sequence) {
  for (size_t i = 0; i < streams.size(); ++i) {
    streams_[i].fd = std::move(streams[i]);
  }
  self_ = to_text(local_address(streams_[0].fd.get()));
  peer_ = to_text(peer_address(streams_[0].fd.get()));
}

SocketConnection::~SocketConnection() {
  if (error_.code != Code::peer_lost) {
    std::vector<int> fds;
    for (const Stream& s : streams_) {
      fds.push_back(s.fd.get());
    }
    close_gracefully(fds);
  }
}

std::string SocketConnection::describe() const {
  return strf("%s -> %s (socket, %zu stream%s)", self_.c_str(), peer_.c_str(), streams_.size(),
              streams_.size() == 1 ? "" : "s");
}

size_t SocketConnection::stripes_of(size_t bytes) const {
  return std::clamp<size_t>(bytes / kStripeMin, 1, streams_.size());
}

Io SocketConnection::isend(const void* data, size_t bytes, const Region*, Ticket* out, Mark mark) {
  check_closed();
  if (failed_ || closed_) {
    if (!failed_) {
      break_with(Code::peer_lost, strf("cannot send: %s has closed the connection", peer_.c_str()));
    }
    return Io::failed;
  }
  const int slot = sends_.take();
  if (slot < 0) {
    return Io::again;
  }
  const size_t stripes = stripes_of(bytes);
  // All but the last stripe are equal and multiples of the unit.
  const size_t each =
      stripes == 1 ? bytes : (bytes / stripes + kStripeUnit - 1) / kStripeUnit * kStripeUnit;
  const bool large = streams_.size() > 1 && bytes >= kStripeMin;
  size_t at = large ? next_stream_ : 0;
  size_t offset = 0;
  int fragments = 0;
  do {
    OutFragment f;
    f.length = std::min(each, bytes - offset);
    f.data = static_cast<const std::byte*>(data) + offset;
    f.slot = slot;
    f.header = encode(FragmentHeader{0, mark, next_send_, bytes, offset, f.length});
    streams_[at].queue.push(f);
    at = (at + 1) % streams_.size();
    offset += f.length;
    ++fragments;
  } while (offset < bytes);
  if (large) {
    next_stream_ = at;
  }
  ++next_send_;
  ++unsent_;
  sends_[slot] = SendOp{bytes, fragments, mark};
  *out = sends_.ticket(slot);
  return Io::done;
}

Io SocketConnection::irecv(void* data, size_t capacity, const Region*, Ticket* out, Aside* aside) {
  if (failed_) {
    return Io::failed;
  }
  const int slot = receives_.take();
  if (slot < 0) {
    return Io::again;
  }
  RecvOp& op = receives_[slot];
  op.data = static_cast<std::byte*>(data);
  op.capacity = capacity;
  op.aside = aside;
  order_[next_receive_ % kMaxInFlight] = static_cast<uint8_t>(slot);
  ++next_receive_;
  *out = receives_.ticket(slot);
  check_closed();
  return failed_ ? Io::failed : Io::done;
}

Io SocketConnection::test(Ticket ticket, size_t* bytes, Mark* mark) {
  const auto go_on = [this] { (void)progress(); };
  return is_receive(ticket) ? answer(receives_, ticket, failed_, error_, go_on, bytes, mark)
                            : answer(sends_, ticket, failed_, error_, go_on, bytes, mark);
}

Io SocketConnection::progress() {
  if (failed_) {
    return Io::failed;
  }
  // What costs a system call or a look at the clock and can wait is done now and then; at once
  // where somebody slept.
  const bool now_and_then = slept_ || ++rounds_ % kRareRounds == 0;
  bool moved = send_some();
  const bool awaited = first_pending_ != next_receive_;
  moved = (!failed_ && (awaited || now_and_then) && receive_some()) || moved;
  if (!failed_ && !moved && now_and_then) {
    check_closed();
    check_silence();
  }
  slept_ = false;
  if (failed_) {
    return Io::failed;
  }
  return moved ? Io::done : Io::again;
}

bool SocketConnection::send_some() {
  size_t budget = kProgressBudget;
  turn_ = (turn_ + 1) % streams_.size();
  for (size_t i = 0; i < streams_.size() && budget > 0; ++i) {
    Stream& s = streams_[(turn_ + i) % streams_.size()];
    if (s.queue.empty()) {
      continue;
    }
    const auto sent = s.queue.flush(s.fd.get(), budget, [this](int slot) {
      if (--sends_[slot].fragments == 0) {
        --unsent_;
      }
    });
    budget -= std::min(budget, sent.bytes);
    if (sent.error != 0) {
      drain();  // what the peer sent before it went still counts
      break_with(Code::peer_lost,
                 strf("sending to %s failed: %s; %s", peer_.c_str(), errno_text(sent.error).c_str(),
                      cause_of(sent.error)),
                 sent.error);
      return true;
    }
  }
  return budget != kProgressBudget;
}

void SocketConnection::poll_fds(std::vector<pollfd>& out) const {
  slept_ = true;
  for (const Stream& s : streams_) {
    const bool reads = !s.paused && !s.ended;
    const int events = (reads ? POLLIN : 0) | (s.queue.empty() ? 0 : POLLOUT);
    if (events != 0 && !failed_) {
      out.push_back({s.fd.get(), static_cast<short>(events), 0});
    }
  }
}

void SocketConnection::check_closed() {
  if (failed_ || !std::all_of(streams_.begin(), streams_.end(), [](auto& s) { return s.ended; })) {
    return;
  }
  closed_ = true;
  if (outstanding()) {
    break_with(Code::peer_lost,
               strf("%s has closed the connection with %u receives and %d sends of this side open",
                    peer_.c_str(), next_receive_ - first_pending_, unsent_));
  }
}

void SocketConnection::check_silence() {
  constexpr int64_t kEveryNs = 1'000'000'000;
  const int64_t now = now_ns();
  if (now < next_check_ns_ || !outstanding()) {
    return;
  }
  next_check_ns_ = now + kEveryNs;
  check_stall(now);
  for (const Stream& s : streams_) {
    if (unanswered_s(s.fd.get()) >= options_.silence_s) {
      break_with(Code::peer_lost,
                 strf("%s has acknowledged nothing for %.0f s: its machine or the network is down",
                      peer_.c_str(), options_.silence_s));
      return;
    }
  }
}

void SocketConnection::check_stall(int64_t now) {
  const RecvOp* first =
      first_pending_ == next_receive_ ? nullptr : &receives_[order_[first_pending_ % kMaxInFlight]];
  if (first == nullptr || !first->announced || options_.stall_s <= 0) {
    stalled_since_ns_ = -1;
    return;
  }
  if (stalled_since_ns_ < 0 || arrived_ != arrived_then_) {
    stalled_since_ns_ = now;
    arrived_then_ = arrived_;
    return;
  }
  if (static_cast<double>(now - stalled_since_ns_) >= options_.stall_s * 1e9) {
    break_with(Code::timeout,
               strf("%zu of %zu bytes of a message from %s have arrived and nothing more for %g s: "
                    "is that process stopped?",
                    first->received, first->message, peer_.c_str(), options_.stall_s));
  }
}

void SocketConnection::break_with(Code code, std::string text, int sys_errno) {
  if (!failed_) {
    failed_ = true;
    error_ = Error{code, std::move(text) + " [" + describe() + "]", sys_errno};
  }
}

}  // namespace prunex::transport
