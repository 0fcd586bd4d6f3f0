// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "plugin/base/sockets.h"
#include "plugin/transport/verbs/rails.h"

namespace prunex::transport::verbs {
namespace {

// An end's port as told to the other end, without what the connection adds.
RailEnd describe_rail(Device& device, uint32_t packet) {
  RailEnd e;
  const PortInfo& port = device.port();
  const Device::Now now = device.now();
  e.device = port.name();
  e.packet = packet;
  e.lid = now.lid;
  e.link = port.link;
  e.gid_type = static_cast<uint8_t>(now.gid.type);
  e.gid_index = static_cast<uint16_t>(now.gid.index);
  e.gid = now.gid.bytes;
  e.network_bits = static_cast<uint8_t>(now.gid.network_bits);
  e.mtu = static_cast<uint32_t>(now.mtu);
  e.speed = port.speed;
  e.max_message = port.max_message;
  e.queue_pairs.reserve(kMaxQueuePairs);
  return e;
}

}  // namespace

Handshake::Handshake(std::shared_ptr<Domain> domain, std::unique_ptr<Connection> side, Role role)
    : role_(role) {
  parts_.domain = std::move(domain);
  parts_.hello = side->hello();
  parts_.side = std::move(side);
}

// What becomes of the TCP connection on which the ends meet is what becomes of RDMA between them.
Error Handshake::about_rdma(Error error) const {
  if (!own_fault_) {
    std::string ports;
    for (const auto& device : parts_.domain->rails()) {
      ports += (ports.empty() ? "" : ", ") + device->port().name();
    }
    error.text = strf("setting up RDMA by %s: %s", ports.c_str(), error.text.c_str());
  }
  return error;
}

std::string Handshake::ends() const {
  const std::string way = parts_.side->describe();
  return way.substr(0, way.find(" ("));
}

Result<std::unique_ptr<Connection>> Handshake::step() {
  for (bool again = false; !again;) {
    if (stage_ == Stage::ready) {
      auto sent = is_done(&sending_);
      if (!sent) {
        return tl::unexpected<Error>(about_rdma(sent.error()));
      }
      return *sent ? VerbsConnection::open(std::move(parts_)) : nullptr;
    }
    if (auto r = advance(&again); !r) {
      return tl::unexpected<Error>(about_rdma(r.error()));
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
  if (auto r = offer(); !r) {
    own_fault_ = true;
    return r;
  }
  parts_.own.first_sequence = parts_.domain->options().first_sequence;
  out_ = encode(parts_.own);
  return send(out_.size());
}

Result<> Handshake::prepare() {
  auto board = Board::open(parts_.domain->rails());
  if (!board) {
    return tl::unexpected<Error>(board.error());
  }
  parts_.board = *std::move(board);
  parts_.own.takes_eager = !parts_.domain->options().device_memory;
  parts_.own.board = reinterpret_cast<uint64_t>(parts_.board->at(0, 0, 0));
  return {};
}

// The connecting end makes what it has on every port, since it does not know yet which are of use.
Result<> Handshake::offer() {
  if (auto r = prepare(); !r) {
    return r;
  }
  const size_t rails = parts_.domain->rails().size();
  const size_t wanted = parts_.domain->options().queue_pairs;
  const size_t each = std::clamp((wanted + rails - 1) / rails, size_t{1}, kMaxQueuePairs / rails);
  for (size_t i = 0; i < rails; ++i) {
    if (auto r = add_rail(i, each); !r) {
      return r;
    }
    parts_.own.rails.push_back(parts_.rails.back().own);
  }
  return {};
}

Result<> Handshake::add_rail(size_t index, size_t queue_pairs) {
  Rail rail;
  rail.index = index;
  rail.device = parts_.domain->rails()[index];
  const auto role_of = [](size_t i) {
    return i == 0 ? QueuePair::Role::records : QueuePair::Role::stripes;
  };
  rail.partition = rail.device->partition();
  uint32_t entries = 0;
  for (size_t i = 0; i < queue_pairs; ++i) {
    const auto depth = QueuePair::depth_of(rail.device->port(), role_of(i));
    entries += depth.sends + depth.receives;
  }
  auto queue = CompletionQueue::open(rail.device, entries);
  if (!queue) {
    return tl::unexpected<Error>(queue.error());
  }
  rail.queue = *std::move(queue);
  uint32_t packet = 0;
  if (::getrandom(&packet, sizeof packet, 0) != sizeof packet) {
    return fail(Code::system, "no random bytes", EINVAL);
  }
  rail.own = describe_rail(*rail.device, packet & 0xFFFFFF);
  rail.own.board_key = parts_.board->memory().remote_key(index);
  for (size_t i = 0; i < queue_pairs; ++i) {
    auto pair =
        QueuePair::open(rail.device, *rail.queue, role_of(i), lanes_++, rail.partition.index);
    if (!pair) {
      return tl::unexpected<Error>(pair.error());
    }
    rail.own.queue_pairs.push_back((*pair)->number());
    rail.pairs.push_back(*std::move(pair));
  }
  parts_.rails.push_back(std::move(rail));
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
    return fail(Code::system, strf("the other end refuses to connect (%s): %s", ends().c_str(),
                                   peer->failure.c_str()));
  }
  if (role_ == Role::accepts) {
    auto accepted = peer ? (parts_.peer = *std::move(peer), accept_peer())
                         : tl::unexpected<Error>(peer.error());
    return accepted ? accepted : refuse(accepted.error());
  }
  if (!peer) {
    return tl::unexpected<Error>(peer.error());
  }
  auto matched = match_answer(*std::move(peer));
  matched = matched ? connect_rails() : matched;
  if (!matched) {
    own_fault_ = true;
    return matched;
  }
  return probe();
}

Result<> Handshake::accept_peer() {
  if (auto r = prepare(); !r) {
    return r;
  }
  parts_.own.first_sequence = parts_.peer.first_sequence;
  std::vector<RailEnd> have;
  for (const auto& device : parts_.domain->rails()) {
    have.push_back(describe_rail(*device, 0));
  }
  auto pairs = pair_rails(parts_.peer.rails, have);
  if (!pairs) {
    return tl::unexpected<Error>(pairs.error());
  }
  for (const auto& [theirs, ours] : *pairs) {
    const RailEnd& peer = parts_.peer.rails[theirs];
    if (lanes_ + peer.queue_pairs.size() > kMaxQueuePairs) {
      return fail(Code::mismatch, strf("a connection has at most %zu queue pairs", kMaxQueuePairs));
    }
    if (auto r = add_rail(ours, peer.queue_pairs.size()); !r) {
      return r;
    }
    Rail& rail = parts_.rails.back();
    rail.own.partner = static_cast<uint8_t>(theirs);
    rail.peer = peer;
    parts_.own.rails.push_back(rail.own);
  }
  for (size_t i = 0; i < have.size(); ++i) {
    if (std::none_of(pairs->begin(), pairs->end(), [i](const auto& p) { return p.second == i; })) {
      parts_.left_out.push_back(have[i].device);
    }
  }
  if (auto r = connect_rails(); !r) {
    return r;
  }
  if (auto r = receive(1); !r) {
    return r;
  }
  out_ = encode(parts_.own);
  stage_ = Stage::answering;
  return send(out_.size());
}

// Drops the ports that the other end has no partner for.
Result<> Handshake::match_answer(Endpoint answer) {
  std::vector<Rail> offered = std::exchange(parts_.rails, {});
  for (const RailEnd& theirs : answer.rails) {
    if (theirs.partner >= offered.size() || !offered[theirs.partner].queue ||
        theirs.queue_pairs.size() != offered[theirs.partner].pairs.size()) {
      return fail(Code::mismatch, strf("%s answered with other RDMA ports than it was asked for: "
                                       "install the same prunex on all nodes",
                                       ends().c_str()));
    }
    Rail rail = std::move(offered[theirs.partner]);
    rail.peer = theirs;
    parts_.rails.push_back(std::move(rail));
  }
  for (const Rail& rail : offered) {
    if (rail.queue) {
      parts_.left_out.push_back(rail.own.device);
    }
  }
  parts_.peer = std::move(answer);
  return {};
}

Result<> Handshake::connect_rails() {
  for (Rail& rail : parts_.rails) {
    for (size_t i = 0; i < rail.pairs.size(); ++i) {
      if (auto r = rail.pairs[i]->connect(rail.own, rail.peer, rail.peer.queue_pairs[i]); !r) {
        return r;
      }
    }
  }
  return {};
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
  for (Rail& rail : parts_.rails) {
    QueuePair::Write w;
    w.data = parts_.board->bounce(0);
    w.bytes = std::min({rail.own.mtu, rail.peer.mtu, static_cast<uint32_t>(kEagerBytes)});
    w.local_key = parts_.board->memory().local_key(rail.index);
    w.address = parts_.peer.board + kEagerAt;
    w.key = rail.peer.board_key;
    if (const int error = rail.pairs.front()->post(w); error != 0) {
      own_fault_ = true;
      return fail(Code::system,
                  strf("%s takes no work: %s", rail.own.device.c_str(), errno_text(error).c_str()),
                  error);
    }
    ++probes_;
  }
  stage_ = Stage::probing;
  return {};
}

Result<> Handshake::read_probe(bool* again) {
  ibv_wc entry{};
  int n = 0;
  Rail* from = nullptr;
  for (Rail& rail : parts_.rails) {
    if (n == 0) {
      from = &rail;
      n = rail.queue->poll({&entry, 1});
    }
  }
  *again = n == 0;
  if (n == 0) {  // the other end may have gone away meanwhile
    return {};
  }
  if (n < 0) {
    own_fault_ = true;
    return fail(Code::system, strf("the completions of %s cannot be read: did the device fail?",
                                   from->own.device.c_str()));
  }
  if (entry.status != IBV_WC_SUCCESS) {
    own_fault_ = true;
    return tl::unexpected<Error>(explain(parts_, *from, entry));
  }
  from->pairs.front()->take(entry);
  if (--probes_ > 0) {
    return {};
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
