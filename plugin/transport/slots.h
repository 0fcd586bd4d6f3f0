// SPDX-License-Identifier: Apache-2.0
// The fixed pool behind tickets: no allocation after connect, and a ticket that was already
// answered is told from the one that now has its place.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "plugin/transport/transport.h"

namespace prunex::transport {

[[nodiscard]] inline bool is_receive(Ticket ticket) { return (ticket & 0x40) != 0; }
[[nodiscard]] inline Error stale_ticket(Ticket ticket) {
  return {Code::invalid_handle,
          strf("ticket %#llx names no operation in flight: it was answered before",
               static_cast<unsigned long long>(ticket))};
}

template <class Op>
class Slots {
 public:
  explicit Slots(bool receive) : receive_(receive) {}

  // -1: all in use. The slot is as new: value-initialised, or as its own renew() leaves it.
  [[nodiscard]] int take() {
    if (free_ == 0) {
      return -1;
    }
    const int i = std::countr_zero(free_);
    free_ &= free_ - 1;
    if constexpr (requires(Op& op) { op.renew(); }) {
      ops_[at(i)].renew();
    } else {
      ops_[at(i)] = Op{};
    }
    return i;
  }
  void release(int i) {
    ++generations_[at(i)];
    free_ |= uint64_t{1} << i;
  }
  [[nodiscard]] Op& operator[](int i) { return ops_[at(i)]; }
  [[nodiscard]] const Op& peek(int i) const { return ops_[at(i)]; }
  [[nodiscard]] int in_use() const { return kMaxInFlight - std::popcount(free_); }

  // bits 0-5 index, bit 6 direction, from bit 7 the generation, counted from 1: never 0.
  [[nodiscard]] Ticket ticket(int i) const {
    return (generations_[at(i)] + 1) << 7 | (receive_ ? 0x40U : 0U) | static_cast<Ticket>(i);
  }
  // -1: not a live ticket of this pool.
  [[nodiscard]] int find(Ticket ticket) const {
    const int i = static_cast<int>(ticket & 0x3F);
    const bool taken = (free_ >> i & 1) == 0;
    return taken && this->ticket(i) == ticket ? i : -1;
  }

 private:
  static_assert(kMaxInFlight == 64);
  [[nodiscard]] static size_t at(int i) { return static_cast<size_t>(i); }

  std::array<Op, kMaxInFlight> ops_{};
  std::array<uint64_t, kMaxInFlight> generations_{};
  uint64_t free_ = ~uint64_t{0};
  bool receive_;
};

// Connection::test() for the tickets of one pool. An Op says whether it is_done(), the length() of
// its message, and its mark.
template <class Op, class Progress>
[[nodiscard]] Io answer(Slots<Op>& ops, Ticket ticket, const bool& failed, Error& error,
                        Progress progress, size_t* bytes, Mark* mark) {
  const int slot = ops.find(ticket);
  if (slot < 0) {
    if (!failed) {  // the connection stays as it is
      error = stale_ticket(ticket);
    }
    return Io::failed;
  }
  const Op& op = ops[slot];
  if (!op.is_done() && !failed) {
    progress();
  }
  if (!op.is_done()) {
    return failed ? Io::failed : Io::again;
  }
  if (bytes != nullptr) {
    *bytes = op.length();
  }
  if (mark != nullptr) {
    *mark = op.mark;
  }
  ops.release(slot);
  return Io::done;
}

}  // namespace prunex::transport
