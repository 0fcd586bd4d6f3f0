// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/point_to_point.h"

#include "plugin/collective/context.h"

namespace prunex::collective {

PointToPoint::PointToPoint(const Place& place) : place_(place) {
  const topo::World& world = *place.world;
  const auto node_of = [&](int rank) { return world.node_of[static_cast<size_t>(rank)]; };
  for (int r = 0; r < world.size; ++r) {
    const bool self = r == place.rank, crosses = node_of(r) != node_of(place.rank);
    out_.push_back(self ? nullptr : std::make_unique<P2pOut>(place.rank, r, crosses, counters_));
    in_.push_back(self ? nullptr : std::make_unique<P2pIn>(r, crosses, counters_));
  }
}

Result<std::unique_ptr<PointToPoint>> PointToPoint::open(const transport::SocketOptions& options,
                                                         const Place& place) {
  std::unique_ptr<PointToPoint> self(new PointToPoint(place));
  auto network = transport::open_socket_transport(options);
  if (!network) {
    return tl::unexpected(network.error());
  }
  self->network_ = std::move(*network);
  auto listener = self->network_->listen();
  if (!listener) {
    return tl::unexpected(listener.error());
  }
  self->listener_ = std::move(*listener);
  return self;
}

std::shared_ptr<Completion> PointToPoint::post(const P2pSpec& spec) {
  auto request = std::make_shared<Completion>();
  const std::lock_guard lock(mutex_);
  const auto peer = static_cast<size_t>(spec.peer);
  if (dead_) {
    request->complete(tl::unexpected(*dead_));
    return request;
  }
  if (spec.sends && handles_[peer].empty()) {
    request->complete(fail(Code::unsupported,
                           strf("rank %d could not open a port to receive on: are there enough in "
                                "PRUNEX_PORT_RANGE for one per rank?",
                                spec.peer)));
    return request;
  }
  P2pCall call{request, static_cast<std::byte*>(spec.buffer), spec.bytes, spec.tag,
               Deadline::after(place_.timeout_s)};
  busy_.store(true, std::memory_order_release);
  if (spec.sends) {
    out_[peer]->post(std::move(call));
  } else {
    in_[peer]->post(std::move(call));
  }
  return request;
}

P2pCounters PointToPoint::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void PointToPoint::progress() {
  const std::lock_guard lock(mutex_);
  if (!dead_) {
    if (const auto verdict = place_.control->aborted()) {
      fail_all(to_error(*verdict));
    }
  }
  bool moved = !dead_;
  while (moved) {
    Result<bool> one;
    try {
      one = step();
    } catch (const std::exception& e) {
      one =
          fail(Code::memory, strf("rank %d has no memory for messages (%s)", place_.rank, e.what()),
               0, place_.rank);
    }
    if (!one) {
      fail_all(place_.die(one.error()));
      return;
    }
    moved = *one;
  }
}

Result<bool> PointToPoint::step() {
  auto moved = accept();
  if (!moved) {
    return moved;
  }
  bool busy = false;
  for (size_t r = 0; r < out_.size(); ++r) {
    if (out_[r] == nullptr) {
      continue;
    }
    auto sent = out_[r]->progress(*network_, handles_[r], place_.timeout_s);
    if (!sent) {
      return sent;
    }
    auto received = in_[r]->progress();
    if (!received) {
      return received;
    }
    moved = *moved || *sent || *received;
    busy = busy || !out_[r]->idle() || !in_[r]->idle();
  }
  busy_.store(busy, std::memory_order_release);
  if (auto in_time = check_deadlines(); !in_time) {
    return tl::unexpected(in_time.error());
  }
  return moved;
}

Result<bool> PointToPoint::accept() {
  auto caller = listener_->accept();
  if (!caller) {
    return tl::unexpected(caller.error());
  }
  if (*caller == nullptr) {
    return false;
  }
  // Whoever knows the cookie and still talks nonsense is dropped like a stray.
  const int rank = decode_p2p_hello((*caller)->hello(), place_.world->size);
  if (rank >= 0 && rank != place_.rank && !in_[static_cast<size_t>(rank)]->connected()) {
    in_[static_cast<size_t>(rank)]->accept(std::move(*caller));
  }
  return true;
}

Result<> PointToPoint::check_deadlines() const {
  for (size_t r = 0; r < out_.size(); ++r) {
    if (out_[r] == nullptr) {
      continue;
    }
    const P2pCall* send = out_[r]->late();
    const P2pCall* recv = in_[r]->late();
    if (send != nullptr || recv != nullptr) {
      const P2pCall& call = send != nullptr ? *send : *recv;
      const std::string what =
          strf("%s a message of %zu bytes with tag %lld", send != nullptr ? "take" : "send",
               call.bytes, static_cast<long long>(call.tag));
      return tl::unexpected(late_error(static_cast<int>(r), what.c_str(), place_.timeout_s));
    }
  }
  return {};
}

void PointToPoint::fail_all(const Error& error) {
  dead_ = error;
  for (size_t r = 0; r < out_.size(); ++r) {
    if (out_[r] != nullptr) {
      out_[r]->fail(error);
      in_[r]->fail(error);
    }
  }
  busy_.store(false, std::memory_order_release);
}

void PointToPoint::poll_fds(std::vector<pollfd>& out) const {
  const std::lock_guard lock(mutex_);
  if (dead_) {
    return;
  }
  listener_->poll_fds(out);
  for (size_t r = 0; r < out_.size(); ++r) {
    if (out_[r] != nullptr) {
      out_[r]->poll_fds(out);
      in_[r]->poll_fds(out);
    }
  }
}

}  // namespace prunex::collective
