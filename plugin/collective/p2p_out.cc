// SPDX-License-Identifier: Apache-2.0
// The sending half of messages between two ranks.
#include <algorithm>
#include <cstring>

#include "plugin/collective/p2p_peer.h"

namespace prunex::collective {

using transport::Io;

tl::unexpected<Error> P2pOut::lost() const {
  const Error& why = link_->error();
  return prunex::fail(
      Code::peer_lost,
      strf("rank %d was lost: %s (%s)", peer_, why.text.c_str(), link_->describe().c_str()),
      why.sys_errno, peer_);
}

bool P2pOut::idle() const {
  // Notes and eager data of completed sends must leave, too.
  return queued_.empty() && ready_.empty() && offered_.empty() && flights_.empty();
}

Result<bool> P2pOut::progress(transport::Transport& transport, const std::string& handle,
                              double timeout_s) {
  if (link_ == nullptr) {
    return queued_.empty() ? Result<bool>(false) : connect(transport, handle, timeout_s);
  }
  if (broken_) {
    return idle() ? Result<bool>(false) : Result<bool>(lost());
  }
  (void)link_->progress();
  bool moved = false;
  for (const auto step :
       {&P2pOut::read_answers, &P2pOut::send_data, &P2pOut::send_notes, &P2pOut::reap}) {
    auto one = (this->*step)();
    if (!one) {
      broken_ = true;
      return idle() ? Result<bool>(true) : one;
    }
    moved = moved || *one;
  }
  return moved;
}

Result<bool> P2pOut::connect(transport::Transport& transport, const std::string& handle,
                             double timeout_s) {
  const auto blame = [this](Error e) {
    e.rank = peer_;
    e.code = e.code == Code::timeout ? Code::timeout : Code::peer_lost;
    e.text = strf("connecting to rank %d: %s", peer_, e.text.c_str());
    return tl::unexpected<Error>(std::move(e));
  };
  if (connecting_ == nullptr) {
    auto begun = transport.connect(handle, p2p_hello(self_), timeout_s);
    if (!begun) {
      return blame(begun.error());
    }
    connecting_ = std::move(*begun);
  }
  auto step = connecting_->step();
  if (!step) {
    return blame(step.error());
  }
  if (*step == nullptr) {
    return false;
  }
  connecting_.reset();
  link_ = std::move(*step);
  inbox_.resize(Note::kWireBytes);
  return true;
}

Result<bool> P2pOut::read_answers() {
  bool moved = false;
  while (true) {
    if (inbox_ticket_ == 0) {
      if (link_->irecv(inbox_.data(), inbox_.size(), nullptr, &inbox_ticket_) != Io::done) {
        return lost();
      }
    }
    size_t n = 0;
    const Io io = link_->test(inbox_ticket_, &n);
    if (io == Io::again) {
      return moved;
    }
    inbox_ticket_ = 0;
    if (io == Io::failed) {
      return lost();
    }
    moved = true;
    counters_.wire_received += crosses_ ? n : 0;
    auto note = decode_note(std::span<const std::byte>(inbox_.data(), n));
    if (!note || note->kind != Note::Kind::taken) {
      return prunex::fail(Code::peer_lost, strf("rank %d answers nonsense", peer_), 0, peer_);
    }
    if (const auto eager = untaken_.find(note->id); eager != untaken_.end()) {
      weight_ -= eager->second;
      untaken_.erase(eager);
    } else if (const auto offered = offered_.find(note->id); offered != offered_.end()) {
      ready_.push_back(std::move(offered->second));
      offered_.erase(offered);
    } else {
      return prunex::fail(Code::peer_lost, strf("rank %d takes a message that is not there", peer_),
                          0, peer_);
    }
  }
}

Result<bool> P2pOut::send_data() {
  bool moved = false;
  while (!ready_.empty()) {
    P2pFlight flight;
    const P2pCall& call = ready_.front();
    const Io io = link_->isend(call.buffer, call.bytes, nullptr, &flight.ticket, transport::kAside);
    if (io == Io::again) {
      break;
    }
    if (io == Io::failed) {
      return lost();
    }
    counters_.wire_sent += crosses_ ? call.bytes : 0;
    flight.call = call;
    ready_.pop_front();
    flights_.push_back(std::move(flight));
    moved = true;
  }
  return moved;
}

Result<bool> P2pOut::send_notes() {
  bool moved = false;
  while (!queued_.empty()) {
    const P2pCall& call = queued_.front();
    const size_t weight = std::max(call.bytes, Note::kLeastWeight);
    // A message of nothing has no data that could follow an offer.
    const bool eager = call.bytes == 0 ||
                       (call.bytes <= Note::kEagerBytes && weight_ + weight <= Note::kEagerWindow);
    Note note{eager ? Note::Kind::eager : Note::Kind::offer, call.tag, call.bytes, next_id_};
    P2pFlight flight;
    flight.bytes.resize(Note::kWireBytes + (eager ? call.bytes : 0));
    encode(note, std::span<std::byte, Note::kWireBytes>(flight.bytes.data(), Note::kWireBytes));
    if (eager && call.bytes > 0) {
      std::memcpy(flight.bytes.data() + Note::kWireBytes, call.buffer, call.bytes);
    }
    const Io io = link_->isend(flight.bytes.data(), flight.bytes.size(), nullptr, &flight.ticket);
    if (io == Io::again) {
      break;
    }
    if (io == Io::failed) {
      return lost();
    }
    counters_.wire_sent += crosses_ ? flight.bytes.size() : 0;
    if (eager) {
      untaken_.emplace(next_id_, weight);
      weight_ += weight;
      flight.call = call;
    } else {
      offered_.emplace(next_id_, call);
    }
    ++next_id_;
    queued_.pop_front();
    flights_.push_back(std::move(flight));
    moved = true;
  }
  return moved;
}

Result<bool> P2pOut::reap() {
  bool moved = false;
  for (auto f = flights_.begin(); f != flights_.end();) {
    size_t n = 0;
    const Io io = link_->test(f->ticket, &n);
    if (io == Io::failed) {
      return lost();
    }
    if (io == Io::again) {
      ++f;
      continue;
    }
    if (f->call) {
      ++counters_.messages;
      counters_.bytes_logical += f->call->bytes;
      counters_.payload += crosses_ ? f->call->bytes : 0;
      f->call->request->complete({});
    }
    f = flights_.erase(f);
    moved = true;
  }
  return moved;
}

const P2pCall* P2pOut::late() const {
  for (const P2pCall& call : queued_) {
    if (call.deadline.passed()) {
      return &call;
    }
  }
  for (const auto& [id, call] : offered_) {
    if (call.deadline.passed()) {
      return &call;
    }
  }
  for (const P2pCall& call : ready_) {
    if (call.deadline.passed()) {
      return &call;
    }
  }
  for (const P2pFlight& f : flights_) {
    if (f.call && f.call->deadline.passed()) {
      return &*f.call;
    }
  }
  return nullptr;
}

void P2pOut::poll_fds(std::vector<pollfd>& out) const {
  if (connecting_ != nullptr) {
    connecting_->poll_fds(out);
  }
  if (link_ != nullptr && !broken_) {
    link_->poll_fds(out);
  }
}

void P2pOut::fail(const Error& error) {
  connecting_.reset();
  link_.reset();
  for (auto* calls : {&queued_, &ready_}) {
    for (const P2pCall& call : *calls) {
      call.request->complete(tl::unexpected(error));
    }
    calls->clear();
  }
  for (const auto& [id, call] : offered_) {
    call.request->complete(tl::unexpected(error));
  }
  offered_.clear();
  for (const P2pFlight& f : flights_) {
    if (f.call) {
      f.call->request->complete(tl::unexpected(error));
    }
  }
  flights_.clear();
}

}  // namespace prunex::collective
