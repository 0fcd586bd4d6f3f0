// SPDX-License-Identifier: Apache-2.0
// How a call is taken, cut into pieces, and given memory.
#include <algorithm>
#include <cstring>

#include "plugin/nccl/coll/comm.h"

namespace prunex::nccl::coll {

Result<Request*> CollComm::take_request(size_t bytes) {
  if (dead_) {
    return tl::unexpected(*dead_);
  }
  for (Request& r : requests_) {
    if (!r.used) {
      r.used = true;
      r.bytes = bytes;
      r.pieces = r.pieces_left = 1;
      r.opened = 0;
      r.count = 0;
      r.window = {};
      r.parts.clear();
      return &r;
    }
  }
  return nullptr;
}

Result<Request*> CollComm::post(Request& request) {
  posted_[(posted_first_ + posted_count_) % posted_.size()] = &request;
  ++posted_count_;
  if (auto polled = poll(); !polled) {
    return tl::unexpected(polled.error());
  }
  return &request;
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
  Request& r = **request;
  const uint64_t step = kPieceBytes / size;
  r.function = Function::all_reduce;
  r.send = static_cast<const std::byte*>(call.send);
  r.recv = static_cast<std::byte*>(call.recv);
  r.regions = call.regions;
  r.type = call.type;
  r.op = call.op;
  r.count = call.count;
  r.pieces = r.pieces_left = std::max<uint64_t>(1, (call.count + step - 1) / step);
  const api::Registry& registry = api::Registry::instance();
  api::RangeHit hit;
  const bool found =
      registry.find_range(call.send, bytes, &hit) == api::Lookup::hit ||
      (call.send != call.recv && registry.find_range(call.recv, bytes, &hit) == api::Lookup::hit);
  // Another type than the mask's, or a cut through an element: the mask says nothing here.
  if (found && hit.type == call.type && hit.byte_offset % size == 0 && call.count > 0) {
    r.hit = std::move(hit);
  }
  return post(r);
}

Segment CollComm::segment_of(const Window& w, size_t node) const {
  const size_t begin = std::max(w.offset, node * w.bytes_per_rank);
  const size_t end = std::min(w.offset + w.bytes, (node + 1) * w.bytes_per_rank);
  return begin < end ? Segment{begin - w.offset, end - begin} : Segment{};
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
  if (send == nullptr && segment_of(window, setup_.self).bytes > 0) {
    return fail(Code::invalid_argument, "CollNet all-gather: the send buffer is NULL");
  }
  auto request = take_request(window.bytes);
  if (!request || *request == nullptr) {
    return request;
  }
  Request& r = **request;
  r.function = Function::all_gather;
  r.type = DType::i8;
  r.op = Op::sum;
  r.window = window;
  r.send = static_cast<const std::byte*>(send);
  r.recv = nullptr;
  if (recv.size() == 1) {
    r.recv = static_cast<std::byte*>(recv[0].address);
    r.regions = std::move(regions);
  } else {
    r.regions.send = std::move(regions.send);
    r.parts.assign(recv.begin(), recv.end());
  }
  return post(r);
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
  const size_t own = segment_of(window, setup_.self).bytes;
  if (recv == nullptr && own > 0) {
    return fail(Code::invalid_argument, "CollNet reduce-scatter: the receive buffer is NULL");
  }
  auto request = take_request(own);
  if (!request || *request == nullptr) {
    return request;
  }
  Request& r = **request;
  r.function = Function::reduce_scatter;
  r.type = type;
  r.op = op;
  r.window = window;
  r.recv = static_cast<std::byte*>(recv);
  r.send = nullptr;
  if (send.size() == 1) {
    r.send = static_cast<const std::byte*>(send[0].address);
    r.regions = std::move(regions);
  } else {
    r.regions.recv = std::move(regions.recv);
    r.parts.assign(send.begin(), send.end());
  }
  return post(r);
}

void CollComm::open_pieces() {
  while (under_way_ < kUnderWay && posted_count_ > 0) {
    Request& r = *posted_[posted_first_];
    take_ready(slot_of(under_way_));
    open(piece_at(under_way_), r);
    ++under_way_;
    if (++r.opened == r.pieces) {
      posted_first_ = (posted_first_ + 1) % posted_.size();
      --posted_count_;
    }
  }
}

void CollComm::open(Piece& p, Request& r) {
  p.request = &r;
  p.function = r.function;
  p.type = r.type;
  p.op = r.op;
  p.send = r.send;
  p.recv = r.recv;
  p.send_region = r.regions.send;
  p.recv_region = r.regions.recv;
  if (r.function != Function::all_reduce) {
    open_window(p);
    return;
  }
  const size_t size = size_of(r.type);
  const uint64_t step = kPieceBytes / size;
  p.count = r.count;
  p.index = r.opened;
  p.first = p.index * step;
  p.elements = std::min(step, r.count - p.first);
  p.send += p.first * size;
  p.recv += p.first * size;
  if (r.hit) {
    p.hit = r.hit;
    p.hit->byte_offset += p.first * size;
  }
}

void CollComm::open_window(Piece& p) {
  const Request& r = *p.request;
  for (size_t n = 0; n < nodes_; ++n) {
    p.segments[n] = segment_of(r.window, n);
  }
  p.staged = !r.parts.empty();
  if (!p.staged) {
    return;
  }
  p.memory.reserve(r.window.bytes);
  if (r.function == Function::all_gather) {
    p.recv = p.memory.data();
    return;
  }
  size_t at = 0;
  for (const CollPart& part : r.parts) {
    if (part.bytes > 0) {
      std::memcpy(p.memory.data() + at, part.address, part.bytes);
    }
    at += part.bytes;
  }
  p.send = p.memory.data();
}

// The memory of calls that are as long as a piece can be of a buffer of that many bytes, whatever
// becomes of them: packed, or reduced in either of two ways.
void CollComm::expect(size_t bytes) {
  bytes = std::min(bytes, kPieceBytes);
  const std::lock_guard one(expect_mutex_);
  if (bytes <= expected_) {
    return;
  }
  size_t scratch = 0;
  for (size_t b = bytes; setup_.links != nullptr && b > 0; b /= 2) {
    const collective::Traffic traffic{nodes_, 1, 1};
    const bool scatter = choose_algorithm(tuning_, traffic, b) == collective::Algorithm::scatter;
    const Shape shape = scatter ? Shape::scatter : Shape::exchange;
    const size_t chunk = std::max<size_t>(64, choose_chunk_bytes(tuning_, b) / 64 * 64);
    scratch = std::max(scratch, Transfer::scratch_bytes(shape, nodes_, chunk, b));
  }
  transport::Transport* const transport =
      setup_.links == nullptr ? nullptr : setup_.transport.get();
  for (size_t slot = 0; slot < kUnderWay; ++slot) {
    Ready made{transport::Staging(transport), transport::Staging(transport)};
    made.memory.reserve(bytes);
    made.scratch.reserve(scratch);
    const std::lock_guard lock(ready_mutex_);
    std::swap(ready_[slot], made);
    is_ready_[slot].store(true, std::memory_order_release);
  }
  expected_ = bytes;
}

// Nothing of the place's memory is in use.
void CollComm::take_ready(size_t slot) {
  if (!is_ready_[slot].load(std::memory_order_acquire)) {
    return;
  }
  Ready ready;
  {
    const std::lock_guard lock(ready_mutex_);
    std::swap(ready_[slot], ready);
    is_ready_[slot].store(false, std::memory_order_relaxed);
  }
  Piece& p = pieces_[slot];
  if (ready.memory.size() > p.memory.size()) {
    p.memory = std::move(ready.memory);
  }
  if (ready.scratch.size() > p.scratch.size()) {
    p.scratch = std::move(ready.scratch);
  }
}

}  // namespace prunex::nccl::coll
