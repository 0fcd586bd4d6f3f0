// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {

Handshake::Handshake(std::shared_ptr<Device> device, std::unique_ptr<Connection> side, Role role)
    : role_(role) {
  parts_.device = std::move(device);
  parts_.hello = side->hello();
  parts_.side = std::move(side);
}

Result<std::unique_ptr<Connection>> Handshake::step() {
  for (bool again = false; !again;) {
    if (stage_ == Stage::ready) {
      auto sent = is_done(&sending_);
      if (!sent) {
        return tl::unexpected<Error>(sent.error());
      }
      return *sent ? VerbsConnection::open(std::move(parts_)) : nullptr;
    }
    if (auto r = advance(&again); !r) {
      return tl::unexpected<Error>(r.error());
    }
  }
  return std::unique_ptr<Connection>();
}

// One step on, or *again.
Result<> Handshake::advance(bool* again) {
  switch (stage_) {
    case Stage::start:
      return start();
    case Stage::exchange:
      return on_peer(again);
    case Stage::probing:
      return read_probe(again);
    default:
      break;
  }
  auto done = is_done(stage_ == Stage::refusing ? &sending_ : &receiving_);
  if (!done) {
    return tl::unexpected<Error>(done.error());
  }
  *again = !*done;
  if (*done && stage_ == Stage::refusing) {
    own_fault_ = true;
    return tl::unexpected<Error>(error_);
  }
  stage_ = *done ? Stage::ready : stage_;
  return {};
}

Result<> Handshake::start() {
  stage_ = Stage::exchange;
  if (auto r = receive(kEndpointBytes); !r) {
    return r;
  }
  if (role_ == Role::accepts) {
    return {};
  }
  if (auto r = prepare(); !r) {
    own_fault_ = true;
    return r;
  }
  parts_.own.first_sequence = parts_.device->options().first_sequence;
  out_ = encode(parts_.own);
  return send(out_.size());
}

Result<> Handshake::prepare() {
  auto board = Board::open(parts_.device);
  if (!board) {
    return tl::unexpected<Error>(board.error());
  }
  parts_.board = *std::move(board);
  auto pair = QueuePair::open(parts_.device);
  if (!pair) {
    return tl::unexpected<Error>(pair.error());
  }
  parts_.pair = *std::move(pair);
  uint32_t packet = 0;
  if (::getrandom(&packet, sizeof packet, 0) != sizeof packet) {
    return fail(Code::system, "no random bytes", EINVAL);
  }
  parts_.own = describe_self(*parts_.device, *parts_.pair, packet & 0xFFFFFF);
  parts_.own.board = reinterpret_cast<uint64_t>(parts_.board->at(0, 0, 0));
  parts_.own.board_key = parts_.board->memory().remote_key();
  return {};
}

Result<> Handshake::on_peer(bool* again) {
  auto there = is_done(&receiving_);
  if (!there) {
    return tl::unexpected<Error>(there.error());
  }
  *again = !*there;
  if (!*there) {
    return {};
  }
  auto peer = decode_endpoint(in_);
  if (peer && !peer->failure.empty()) {
    return fail(Code::system, strf("the other end refuses the connection (%s): %s",
                                   parts_.side->describe().c_str(), peer->failure.c_str()));
  }
  if (role_ == Role::accepts) {
    auto accepted = peer ? (parts_.peer = *std::move(peer), accept_peer())
                         : tl::unexpected<Error>(peer.error());
    return accepted ? accepted : refuse(accepted.error());
  }
  if (!peer) {
    return tl::unexpected<Error>(peer.error());
  }
  parts_.peer = *std::move(peer);
  if (auto r = parts_.pair->connect(parts_.own, parts_.peer); !r) {
    own_fault_ = true;
    return r;
  }
  return probe();
}

Result<> Handshake::accept_peer() {
  if (auto r = prepare(); !r) {
    return r;
  }
  parts_.own.first_sequence = parts_.peer.first_sequence;
  if (auto r = parts_.pair->connect(parts_.own, parts_.peer); !r) {
    return r;
  }
  if (auto r = receive(1); !r) {
    return r;
  }
  out_ = encode(parts_.own);
  stage_ = Stage::answering;
  return send(out_.size());
}

Result<> Handshake::refuse(const Error& error) {
  error_ = error;
  Endpoint no;
  no.failure = error.text;
  out_ = encode(no);
  stage_ = Stage::refusing;
  return send(out_.size());
}

// A path that drops long packets shows only with a long packet.
Result<> Handshake::probe() {
  QueuePair::Write w;
  w.data = parts_.board->bounce(0);
  w.bytes = std::min({parts_.own.mtu, parts_.peer.mtu, static_cast<uint32_t>(kEagerBytes)});
  w.local_key = parts_.board->memory().local_key();
  w.address = parts_.peer.board + kEagerAt;
  w.key = parts_.peer.board_key;
  if (const int error = parts_.pair->post(w); error != 0) {
    own_fault_ = true;
    return fail(Code::system,
                strf("%s takes no work: %s", parts_.own.device.c_str(), errno_text(error).c_str()),
                error);
  }
  stage_ = Stage::probing;
  return {};
}

Result<> Handshake::read_probe(bool* again) {
  ibv_wc entry;
  const int n = parts_.pair->poll({&entry, 1});
  *again = n == 0;
  if (n == 0) {  // the other end may have gone away meanwhile
    return {};
  }
  if (n < 0 || entry.status != IBV_WC_SUCCESS) {
    own_fault_ = true;
    return tl::unexpected<Error>(explain(parts_, entry));
  }
  stage_ = Stage::ready;
  return send(1);
}

Result<> Handshake::send(size_t bytes) {
  if (parts_.side->isend(out_.data(), bytes, nullptr, &sending_) != Io::done) {
    return tl::unexpected<Error>(parts_.side->error());
  }
  return {};
}

Result<> Handshake::receive(size_t bytes) {
  if (parts_.side->irecv(in_.data(), bytes, nullptr, &receiving_) != Io::done) {
    return tl::unexpected<Error>(parts_.side->error());
  }
  return {};
}

Result<bool> Handshake::is_done(Ticket* ticket) {
  if (*ticket == 0) {
    return true;
  }
  const Io io = parts_.side->test(*ticket, nullptr);
  if (io == Io::failed) {
    return tl::unexpected<Error>(parts_.side->error());
  }
  if (io == Io::done) {
    *ticket = 0;
  }
  return io == Io::done;
}

}  // namespace prunex::transport::verbs
