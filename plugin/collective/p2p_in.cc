// SPDX-License-Identifier: Apache-2.0
// The receiving half of messages between two ranks: matching by tag, in the order of sending.
#include <algorithm>
#include <cstring>

#include "plugin/collective/p2p_peer.h"

namespace prunex::collective {

using transport::Io;

tl::unexpected<Error> P2pIn::lost(const Error& why) const {
  return prunex::fail(Code::peer_lost, strf("rank %d was lost: %s", peer_, why.text.c_str()),
                      why.sys_errno, peer_);
}

void P2pIn::post(P2pCall call) {
  waiting_.push_back(std::move(call));
  match();
}

void P2pIn::finish(const P2pCall& call) {
  ++counters_.messages;
  counters_.bytes_logical += call.bytes;
  call.request->complete({});
}

void P2pIn::match() {
  while (match_first()) {
  }
}

// The earliest receive for which a message of its tag is there gets the earliest of those messages.
// One of another length stays where it is, for a receive that has room for it.
bool P2pIn::match_first() {
  for (auto call = waiting_.begin(); call != waiting_.end(); ++call) {
    const auto found = std::find_if(arrived_.begin(), arrived_.end(),
                                    [&](const Arrived& a) { return a.note.tag == call->tag; });
    if (found == arrived_.end()) {
      continue;
    }
    const P2pCall matched = std::move(*call);
    waiting_.erase(call);
    if (found->note.bytes != matched.bytes) {
      matched.request->complete(prunex::fail(
          Code::mismatch,
          strf("rank %d sent %llu bytes with tag %lld, this receive is of %zu bytes; the message "
               "stays for a receive of its size",
               peer_, static_cast<unsigned long long>(found->note.bytes),
               static_cast<long long>(matched.tag), matched.bytes),
          0, peer_));
      return true;
    }
    answers_.push_back(found->note.id);
    if (found->note.kind == Note::Kind::eager) {
      if (matched.bytes > 0) {
        std::memcpy(matched.buffer, found->data.data(), matched.bytes);
      }
      finish(matched);
    } else {
      taking_.push_back(matched);
    }
    arrived_.erase(found);
    return true;
  }
  return false;
}

// Data follow in the order in which they were taken.
transport::Aside::Room P2pIn::room(size_t bytes) {
  return {!taking_.empty() && taking_.front().bytes == bytes ? taking_.front().buffer : nullptr,
          nullptr};
}

Result<bool> P2pIn::progress() {
  bool moved = false;
  if (link_ != nullptr && !closed_) {
    (void)link_->progress();
    for (const auto step : {&P2pIn::read, &P2pIn::answer}) {
      auto one = (this->*step)();
      if (!one) {
        closed_ = one.error();
        break;
      }
      moved = moved || *one;
    }
  }
  // What came before the end can still be received.
  if (closed_ && !idle()) {
    return lost(*closed_);
  }
  return moved;
}

Result<bool> P2pIn::read() {
  bool moved = false;
  inbox_.resize(Note::kWireBytes + Note::kEagerBytes);
  while (true) {
    if (inbox_ticket_ == 0 &&
        link_->irecv(inbox_.data(), inbox_.size(), nullptr, &inbox_ticket_, this) != Io::done) {
      return tl::unexpected(link_->error());
    }
    size_t n = 0;
    transport::Mark mark = 0;
    const Io io = link_->test(inbox_ticket_, &n, &mark);
    if (io == Io::again) {
      return moved;
    }
    inbox_ticket_ = 0;
    if (io == Io::failed) {
      return tl::unexpected(link_->error());
    }
    moved = true;
    counters_.wire_received += crosses_ ? n : 0;
    if ((mark & transport::kAside) != 0) {
      finish(taking_.front());
      taking_.pop_front();
      continue;
    }
    const auto bytes = std::span<const std::byte>(inbox_.data(), n);
    auto note = decode_note(bytes);
    if (!note || note->kind == Note::Kind::taken) {
      return prunex::fail(Code::peer_lost, note ? "it sent nonsense" : note.error().text);
    }
    const auto data = bytes.subspan(Note::kWireBytes);
    arrived_.push_back({*note, {data.begin(), data.end()}});
    match();
  }
}

Result<bool> P2pIn::answer() {
  bool moved = false;
  while (!answers_.empty()) {
    P2pFlight flight;
    flight.bytes.resize(Note::kWireBytes);
    encode(Note{Note::Kind::taken, 0, 0, answers_.front()},
           std::span<std::byte, Note::kWireBytes>(flight.bytes.data(), Note::kWireBytes));
    const Io io = link_->isend(flight.bytes.data(), flight.bytes.size(), nullptr, &flight.ticket);
    if (io == Io::again) {
      break;
    }
    if (io == Io::failed) {
      return tl::unexpected(link_->error());
    }
    counters_.wire_sent += crosses_ ? flight.bytes.size() : 0;
    answers_.pop_front();
    flights_.push_back(std::move(flight));
    moved = true;
  }
  for (auto f = flights_.begin(); f != flights_.end();) {
    size_t n = 0;
    const Io io = link_->test(f->ticket, &n);
    if (io == Io::failed) {
      return tl::unexpected(link_->error());
    }
    f = io == Io::done ? flights_.erase(f) : std::next(f);
    moved = moved || io == Io::done;
  }
  return moved;
}

const P2pCall* P2pIn::late() const {
  for (const auto* calls : {&waiting_, &taking_}) {
    for (const P2pCall& call : *calls) {
      if (call.deadline.passed()) {
        return &call;
      }
    }
  }
  return nullptr;
}

void P2pIn::poll_fds(std::vector<pollfd>& out) const {
  if (link_ != nullptr && !closed_) {
    link_->poll_fds(out);
  }
}

void P2pIn::fail(const Error& error) {
  link_.reset();
  for (auto* calls : {&waiting_, &taking_}) {
    for (const P2pCall& call : *calls) {
      call.request->complete(tl::unexpected(error));
    }
    calls->clear();
  }
}

}  // namespace prunex::collective
