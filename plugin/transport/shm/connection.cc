// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/shm/connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"

namespace prunex::transport::shm {
namespace {

constexpr size_t kBudget = size_t{512} << 10;  // copying per progress() call and direction
constexpr size_t kPiece = size_t{32} << 10;    // made visible at once: both ends copy at a time
constexpr int64_t kLookEveryNs = 1'000'000;    // at the socket, while nobody slept

pid_t peer_pid(int fd) {
  ucred who{};
  socklen_t length = sizeof who;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 ? who.pid : 0;
}

}  // namespace

ShmConnection::ShmConnection(Segment segment, size_t ring_bytes, Fd socket, bool connecting,
                             std::string hello, uint32_t first_sequence)
    : segment_(std::move(segment)),
      socket_(std::move(socket)),
      hello_(std::move(hello)),
      peer_(strf("process %d", static_cast<int>(peer_pid(socket_.get())))),
      next_send_(first_sequence),
      next_receive_(first_sequence),
      first_unsent_(first_sequence),
      first_pending_(first_sequence) {
  Ring first(segment_.data(), ring_bytes);
  Ring second(segment_.data() + bytes_of_ring(ring_bytes), ring_bytes);
  out_ = connecting ? first : second;
  in_ = connecting ? second : first;
}

// What was sent stays in the memory until the peer unmaps it.
ShmConnection::~ShmConnection() {
  if (!sends_wait() || header_sent_ == 0) {  // else the peer must see a message that was cut
    out_.close();
  }
}

std::string ShmConnection::describe() const {
  return strf("process %d -> %s (shm)", static_cast<int>(::getpid()), peer_.c_str());
}

Io ShmConnection::isend(const void* data, size_t bytes, const Region*, Ticket* out, Mark mark) {
  if (!failed_ && peer_gone_) {
    break_with(Code::peer_lost, strf("cannot send: %s has closed the connection", peer_.c_str()));
  }
  if (failed_) {
    return Io::failed;
  }
  const int slot = sends_.take();
  if (slot < 0) {
    return Io::again;
  }
  sends_[slot] = SendOp{static_cast<const std::byte*>(data), bytes, mark};
  send_order_[next_send_++ % kMaxInFlight] = static_cast<uint8_t>(slot);
  *out = sends_.ticket(slot);
  return Io::done;
}

Io ShmConnection::irecv(void* data, size_t capacity, const Region*, Ticket* out, Aside* aside) {
  if (failed_) {
    return Io::failed;
  }
  const int slot = receives_.take();
  if (slot < 0) {
    return Io::again;
  }
  receives_[slot] = RecvOp{static_cast<std::byte*>(data), capacity, 0, aside};
  receive_order_[next_receive_++ % kMaxInFlight] = static_cast<uint8_t>(slot);
  *out = receives_.ticket(slot);
  return Io::done;
}

Io ShmConnection::test(Ticket ticket, size_t* bytes, Mark* mark) {
  const auto go_on = [this] { (void)progress(); };
  return is_receive(ticket) ? answer(receives_, ticket, failed_, error_, go_on, bytes, mark)
                            : answer(sends_, ticket, failed_, error_, go_on, bytes, mark);
}

Io ShmConnection::progress() {
  if (failed_) {
    return Io::failed;
  }
  const bool was_gone = peer_gone_;  // then this call sees all that the peer ever wrote
  bool moved = sends_wait() && send_some();
  moved = receive_some() || moved;
  const int64_t now = now_ns();
  if (!failed_ && (slept_ || now >= next_look_ns_)) {
    next_look_ns_ = now + kLookEveryNs;
    watch_peer();
  }
  if (!failed_ && was_gone && !moved && (sends_wait() || receives_wait())) {
    break_with(Code::peer_lost,
               in_.closed()
                   ? strf("%s has closed the connection with %u receives and %u sends of "
                          "this side open",
                          peer_.c_str(), next_receive_ - first_pending_, next_send_ - first_unsent_)
                   : strf("%s has ended without closing the connection%s: it was killed or "
                          "it crashed",
                          peer_.c_str(), has_header_ ? ", in the middle of a message" : ""));
  }
  return failed_ ? Io::failed : moved ? Io::done : Io::again;
}

bool ShmConnection::send_some() {
  if (!out_.reader_is_sane()) {
    break_with(Code::mismatch, strf("the memory shared with %s is damaged", peer_.c_str()));
    return false;
  }
  size_t budget = kBudget;
  while (sends_wait() && budget > 0) {
    SendOp& op = sends_[send_order_[first_unsent_ % kMaxInFlight]];
    size_t moved = 0;
    if (header_sent_ < sizeof(Header)) {
      const Header header{op.bytes, first_unsent_, op.mark};
      moved = out_.put(std::as_bytes(std::span(&header, 1)).subspan(header_sent_));
      header_sent_ += moved;
    }
    if (header_sent_ == sizeof(Header)) {
      const size_t n = out_.put({op.data + sent_, std::min({op.bytes - sent_, kPiece, budget})});
      sent_ += n;
      moved += n;
      if (sent_ == op.bytes) {
        op.done = true;
        ++first_unsent_;
        header_sent_ = sent_ = 0;
      }
    }
    budget -= std::min(budget, moved);
    if (moved == 0) {
      break;
    }
    if (out_.publish()) {
      wake();
    }
  }
  return budget != kBudget;
}

// Reads the next header. false: there is none yet, or it is wrong (failed).
bool ShmConnection::begin_message() {
  if (in_.available() < sizeof header_) {
    return false;
  }
  (void)in_.take(std::as_writable_bytes(std::span(&header_, 1)));
  has_header_ = true;
  received_ = 0;
  if (header_.sequence != first_pending_ || header_.mark > 0xFF) {
    break_with(
        Code::mismatch,
        strf("%s sent message %u with mark %u where message %u was due: the shared memory was "
             "damaged, or the two ends run different builds",
             peer_.c_str(), header_.sequence, header_.mark, first_pending_));
  }
  return !failed_ && admit(receives_[receive_order_[first_pending_ % kMaxInFlight]]);
}

// Does the message fit the receive, and where does it go? false: failed.
bool ShmConnection::admit(RecvOp& op) {
  const auto bytes = static_cast<size_t>(header_.bytes);
  op.mark = static_cast<Mark>(header_.mark);
  const bool aside = (op.mark & kAside) != 0;
  if (aside) {
    op.data = op.aside == nullptr ? nullptr : static_cast<std::byte*>(op.aside->room(bytes).memory);
    op.capacity = op.data == nullptr ? 0 : bytes;
  }
  if (bytes > op.capacity || (aside && op.data == nullptr)) {
    break_with(Code::mismatch, strf("%s sent a message of %zu bytes into a receive of %zu bytes%s",
                                    peer_.c_str(), bytes, op.capacity, aside ? " aside" : ""));
  }
  return !failed_;
}

bool ShmConnection::receive_some() {
  if (!in_.writer_is_sane()) {
    break_with(Code::mismatch, strf("the memory shared with %s is damaged", peer_.c_str()));
    return false;
  }
  size_t budget = kBudget;
  while (receives_wait() && budget > 0 && (has_header_ || begin_message())) {
    RecvOp& op = receives_[receive_order_[first_pending_ % kMaxInFlight]];
    const size_t want = std::min({static_cast<size_t>(header_.bytes) - received_, kPiece, budget});
    const size_t n = in_.take({op.data + received_, want});
    received_ += n;
    budget -= n;
    if (received_ == header_.bytes) {
      op.message = received_;
      op.done = true;
      has_header_ = false;
      ++first_pending_;
      budget -= std::min(budget, sizeof header_);
    } else if (n == 0) {
      break;
    }
    if (in_.release()) {
      wake();
    }
  }
  return budget != kBudget;
}

// Takes the wakes off the socket, and learns whether the peer is still there.
void ShmConnection::watch_peer() {
  slept_ = false;
  std::array<std::byte, 16> wakes;
  while (!peer_gone_) {
    const Moved got = recv_some(socket_.get(), wakes);
    if (got.state == Transfer::again) {
      return;
    }
    peer_gone_ = got.state != Transfer::some;
  }
}

void ShmConnection::wake() {
  constexpr std::array<std::byte, 1> kWake{};
  (void)prunex::send_some(socket_.get(), kWake);  // a full socket wakes too
}

void ShmConnection::poll_fds(std::vector<pollfd>& out) const {
  slept_ = true;
  if (failed_ || (peer_gone_ && !sends_wait() && !receives_wait())) {
    return;
  }
  in_.reader_will_sleep();
  if (sends_wait()) {
    out_.writer_will_sleep();
  }
  // Whatever came before the peer could see these flags will not be announced: do not sleep then.
  const size_t wanted = has_header_ ? size_t{1} : sizeof(Header);
  const bool ready = (receives_wait() &&
                      (in_.available() >= wanted || (has_header_ && header_.bytes == received_))) ||
                     (sends_wait() && out_.room() > 0) || peer_gone_;
  out.push_back({socket_.get(), static_cast<short>(ready ? POLLIN | POLLOUT : POLLIN), 0});
}

void ShmConnection::break_with(Code code, std::string text) {
  if (!failed_) {
    failed_ = true;
    error_ = Error{code, std::move(text) + " [" + describe() + "]"};
  }
}

}  // namespace prunex::transport::shm
