// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/coll/comm.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/collective/context.h"

namespace prunex::nccl::coll {
namespace {

// Of scanning, packing, reducing and unpacking in one call from NCCL's progress thread.
constexpr int64_t kBudget = int64_t{256} << 10;
constexpr uint32_t kWatchEvery = 16;  // polls without movement

}  // namespace

CollComm::CollComm(Setup setup) : setup_(std::move(setup)), nodes_(setup_.addresses.size()) {
  // Chunks small enough that one step of a poll is short, and parts of them worth a message.
  tuning_.chunk_bytes = std::clamp<size_t>(nodes_ * (32 << 10), 128 << 10, 256 << 10);
  if (setup_.config.chunk_bytes > 0) {
    tuning_.chunk_bytes = std::max<size_t>(64, setup_.config.chunk_bytes / 64 * 64);
  }
  tuning_.min_chunk_bytes = std::min<size_t>(32 << 10, tuning_.chunk_bytes);
  if (setup_.config.algorithm == "exchange") {
    tuning_.forced = static_cast<int>(collective::Algorithm::exchange);
  } else if (setup_.config.algorithm == "scatter") {
    tuning_.forced = static_cast<int>(collective::Algorithm::scatter);
  }
  for (Request& r : requests_) {
    r.comm = this;
  }
  if (setup_.links != nullptr) {
    for (transport::Staging& s : scratch_) {
      s = transport::Staging(setup_.transport.get());
    }
  }
}

CollStats CollComm::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

Result<Request*> CollComm::take_request(size_t bytes) {
  if (dead_) {
    return tl::unexpected(*dead_);
  }
  for (Request& r : requests_) {
    if (!r.used) {
      r.used = true;
      r.bytes = bytes;
      r.pieces_left = 1;
      return &r;
    }
  }
  return nullptr;
}

Result<Request*> CollComm::post(Piece piece, size_t bytes) {
  auto request = take_request(bytes);
  if (!request || *request == nullptr) {
    return request;
  }
  piece.request = *request;
  queue_.push_back(std::move(piece));
  if (auto polled = poll(); !polled) {
    return tl::unexpected(polled.error());
  }
  return request;
}

Result<Request*> CollComm::all_reduce(const AllReduce& call) {
  const size_t size = size_of(call.type);
  if (call.count > SIZE_MAX / size) {
    return fail(Code::invalid_argument,
                strf("CollNet all-reduce: %llu x %s do not fit an address space",
                     static_cast<unsigned long long>(call.count), name_of(call.type)));
  }
  if (call.count > 0 && (call.send == nullptr || call.recv == nullptr)) {
    return fail(Code::invalid_argument, "CollNet all-reduce: a buffer is NULL");
  }
  const size_t bytes = call.count * size;
  auto request = take_request(bytes);
  if (!request || *request == nullptr) {
    return request;
  }
  api::Registry& registry = api::Registry::instance();
  const uint64_t step = kPieceBytes / size;
  const uint64_t pieces = std::max<uint64_t>(1, (call.count + step - 1) / step);
  (*request)->pieces_left = pieces;
  api::RangeHit hit;
  const bool found =
      registry.find_range(call.send, bytes, &hit) == api::Lookup::hit ||
      (call.send != call.recv && registry.find_range(call.recv, bytes, &hit) == api::Lookup::hit);
  for (uint64_t i = 0; i < pieces; ++i) {
    Piece p;
    p.request = *request;
    p.type = call.type;
    p.op = call.op;
    p.count = call.count;
    p.index = i;
    p.first = i * step;
    p.elements = std::min(step, call.count - p.first);
    p.send = static_cast<const std::byte*>(call.send) + p.first * size;
    p.recv = static_cast<std::byte*>(call.recv) + p.first * size;
    p.send_region = call.regions.send;
    p.recv_region = call.regions.recv;
    // Another type than the mask's, or a cut through an element: the mask says nothing here.
    if (found && hit.type == call.type && hit.byte_offset % size == 0 && p.elements > 0) {
      p.hit = hit;
      p.hit->byte_offset += p.first * size;
    }
    queue_.push_back(std::move(p));
  }
  if (auto polled = poll(); !polled) {
    return tl::unexpected(polled.error());
  }
  return request;
}

std::vector<Segment> CollComm::segments_of(const Window& w) const {
  std::vector<Segment> out(nodes_);
  for (size_t n = 0; n < nodes_; ++n) {
    const size_t begin = std::max(w.offset, n * w.bytes_per_rank);
    const size_t end = std::min(w.offset + w.bytes, (n + 1) * w.bytes_per_rank);
    if (begin < end) {
      out[n] = {begin - w.offset, end - begin};
    }
  }
  return out;
}

Result<> CollComm::check_window(const Window& w, std::span<const CollPart> parts) const {
  if (w.bytes_per_rank > SIZE_MAX / nodes_ || w.offset > w.bytes_per_rank * nodes_ ||
      w.bytes > w.bytes_per_rank * nodes_ - w.offset) {
    return fail(Code::invalid_argument,
                strf("CollNet: window %zu+%zu is not inside %zu segments of %zu bytes", w.offset,
                     w.bytes, nodes_, w.bytes_per_rank));
  }
  size_t left = w.bytes;
  for (const CollPart& p : parts) {
    if (p.bytes > left || (p.bytes > 0 && p.address == nullptr)) {
      return fail(Code::invalid_argument,
                  strf("CollNet: the parts of a window of %zu bytes are longer than that, or NULL",
                       w.bytes));
    }
    left -= p.bytes;
  }
  if (left > 0) {
    return fail(
        Code::invalid_argument,
        strf("CollNet: the parts of a window of %zu bytes have only %zu", w.bytes, w.bytes - left));
  }
  return {};
}

Result<Request*> CollComm::all_gather(const void* send, std::span<const CollPart> recv,
                                      const Window& window, Regions regions) {
  if (auto fits = check_window(window, recv); !fits) {
    return tl::unexpected(fits.error());
  }
  Piece p;
  p.function = Function::all_gather;
  p.window = window;
  p.segments = segments_of(window);
  if (send == nullptr && p.segments[setup_.self].bytes > 0) {
    return fail(Code::invalid_argument, "CollNet all-gather: the send buffer is NULL");
  }
  p.send = static_cast<const std::byte*>(send);
  p.send_region = std::move(regions.send);
  if (recv.size() == 1) {
    p.recv = static_cast<std::byte*>(recv[0].address);
    p.recv_region = std::move(regions.recv);
  } else {
    p.staging = take_memory();
    p.staging.reserve(window.bytes);
    p.recv = p.staging.data();
    p.parts.assign(recv.begin(), recv.end());
  }
  return post(std::move(p), window.bytes);
}

Result<Request*> CollComm::reduce_scatter(std::span<const CollPart> send, void* recv,
                                          const Window& window, DType type, Op op,
                                          Regions regions) {
  if (auto fits = check_window(window, send); !fits) {
    return tl::unexpected(fits.error());
  }
  const size_t size = size_of(type);
  if (window.bytes_per_rank % size != 0 || window.offset % size != 0 || window.bytes % size != 0) {
    return fail(
        Code::invalid_argument,
        strf("CollNet reduce-scatter of %s: window %zu+%zu and %zu bytes per rank are not all "
             "multiples of %zu",
             name_of(type), window.offset, window.bytes, window.bytes_per_rank, size));
  }
  Piece p;
  p.function = Function::reduce_scatter;
  p.type = type;
  p.op = op;
  p.window = window;
  p.segments = segments_of(window);
  const size_t own = p.segments[setup_.self].bytes;
  if (recv == nullptr && own > 0) {
    return fail(Code::invalid_argument, "CollNet reduce-scatter: the receive buffer is NULL");
  }
  p.recv = static_cast<std::byte*>(recv);
  p.recv_region = std::move(regions.recv);
  if (send.size() == 1) {
    p.send = static_cast<const std::byte*>(send[0].address);
    p.send_region = std::move(regions.send);
  } else {
    p.staging = take_memory();
    p.staging.reserve(window.bytes);
    size_t at = 0;
    for (const CollPart& part : send) {
      if (part.bytes > 0) {
        std::memcpy(p.staging.data() + at, part.address, part.bytes);
      }
      at += part.bytes;
    }
    p.send = p.staging.data();
  }
  return post(std::move(p), own);
}

Result<bool> CollComm::test(Request& request) {
  if (dead_) {
    return tl::unexpected(*dead_);
  }
  if (request.pieces_left > 0) {
    if (auto polled = poll(); !polled) {
      return tl::unexpected(polled.error());
    }
  }
  if (request.pieces_left > 0) {
    return false;
  }
  request.used = false;
  return true;
}

Result<> CollComm::poll() {
  if (queue_.empty()) {
    return {};
  }
  const int64_t begin = now_ns();
  auto polled = [this]() -> Result<> {
    try {
      return poll_pieces();
    } catch (const std::exception& e) {  // half a step was done: there is no going on
      return fail(Code::memory, strf("this node has no memory for a call (%s)", e.what()));
    }
  }();
  {
    const std::lock_guard lock(stats_mutex_);
    stats_.busy_ns += static_cast<uint64_t>(now_ns() - begin);
    stats_.wire_bytes = setup_.links == nullptr ? 0 : setup_.links->bytes_sent;
    publish();
  }
  return polled ? polled : tl::unexpected(die(polled.error()));
}

Result<> CollComm::poll_pieces() {
  int64_t budget = kBudget;
  bool moved = false;
  if (setup_.links != nullptr && !setup_.links->all_sent()) {
    setup_.links->progress_calls();
  }
  for (size_t i = 0; i < std::min(queue_.size(), kUnderWay) && budget > 0; ++i) {
    auto one = poll_piece(i, &budget);
    if (!one) {
      return tl::unexpected(one.error());
    }
    moved = moved || *one;
    if (queue_[i].phase < Phase::agreed) {
      break;  // the next needs what all nodes will have learned from this one
    }
  }
  pop_finished();
  idle_polls_ = moved ? 0 : idle_polls_ + 1;
  return idle_polls_ % kWatchEvery == kWatchEvery - 1 ? watch_for_aborts() : Result<>();
}

Result<bool> CollComm::poll_piece(size_t index, int64_t* budget) {
  Piece& p = queue_[index];
  bool moved = false;
  if (p.phase < Phase::agreed) {
    auto agreed = agree(p, budget);
    if (!agreed) {
      return agreed;
    }
    moved = *agreed;
  }
  // Messages keep the order of pieces on every connection.
  if (p.phase == Phase::agreed) {
    const Piece* before = index == 0 ? nullptr : &queue_[index - 1];
    if (before == nullptr ||
        (before->phase >= Phase::moving && (!before->transfer || before->transfer->posted()))) {
      start(p);
      moved = true;
    }
  }
  if (p.phase == Phase::moving) {
    auto one = move(p, budget);
    if (!one) {
      return one;
    }
    moved = moved || *one;
  }
  return moved;
}

void CollComm::pop_finished() {
  while (!queue_.empty() && queue_.front().phase == Phase::finished) {
    finish(queue_.front());
    queue_.pop_front();
  }
}

}  // namespace prunex::nccl::coll
