// SPDX-License-Identifier: Apache-2.0
// One TCP stream of a connection: what waits to be sent on it, and how far reading has come.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/base/fd.h"
#include "plugin/transport/socket/wire.h"
#include "plugin/transport/transport.h"

namespace prunex::transport {

// A piece of a message with its header, on the way out.
struct OutFragment {
  std::array<std::byte, kFragmentBytes> header;
  const std::byte* data = nullptr;
  size_t length = 0;
  size_t sent = 0;  // of header and data together
  int slot = 0;
};

// Fragments leave in the order they were queued; many go out in one system call.
class SendQueue {
 public:
  [[nodiscard]] bool empty() const { return count_ == 0; }
  void push(const OutFragment& fragment) { ring_[(head_ + count_++) % ring_.size()] = fragment; }

  // Hands up to `budget` bytes to the kernel. `finished(slot)` for every fragment that is gone.
  // bytes: how many; error: 0 or the errno.
  struct Sent {
    size_t bytes = 0;
    int error = 0;
  };
  template <class Finished>
  Sent flush(int fd, size_t budget, Finished finished) {
    Sent total;
    while (!empty() && total.bytes < budget) {
      size_t asked = 0;
      const ptrdiff_t n = write_some(fd, budget - total.bytes, &asked, &total.error);
      if (n <= 0) {
        break;
      }
      total.bytes += static_cast<size_t>(n);
      consume(static_cast<size_t>(n), finished);
      if (static_cast<size_t>(n) < asked) {
        break;  // the socket is full
      }
    }
    return total;
  }

 private:
  // Bytes taken, 0 when the socket is full, -1 with *error.
  ptrdiff_t write_some(int fd, size_t budget, size_t* asked, int* error);

  template <class Finished>
  void consume(size_t bytes, Finished finished) {
    while (count_ > 0) {
      OutFragment& f = ring_[head_];
      const size_t left = kFragmentBytes + f.length - f.sent;
      if (bytes < left) {
        f.sent += bytes;
        return;
      }
      bytes -= left;
      finished(f.slot);
      head_ = (head_ + 1) % ring_.size();
      --count_;
    }
  }

  std::array<OutFragment, kMaxInFlight> ring_;
  size_t head_ = 0, count_ = 0;
};

// Reads headers, and what comes right behind them, into a small stage; payload goes from the kernel
// straight to where it belongs, in the same call as the stage for the header that follows.
class Intake {
 public:
  enum class Read : uint8_t { all, part, again, closed, broken };  // part: the socket is drained

  [[nodiscard]] std::span<const std::byte> staged() const {
    return {stage_.data() + begin_, end_ - begin_};
  }
  void drop(size_t bytes) { begin_ += bytes; }

  // Reads into the stage only.
  Read fill(int fd, int* error);
  // Reads `into`, and if that got full, the stage; the stage must be empty. *got: bytes of `into`.
  Read direct(int fd, std::span<std::byte> into, bool stage_too, size_t* got, int* error);

 private:
  std::array<std::byte, 4096> stage_;
  size_t begin_ = 0, end_ = 0;
};

struct Stream {
  Fd fd;
  SendQueue queue;
  Intake intake;
  FragmentHeader header;  // of the fragment being read
  bool has_header = false;
  size_t done = 0;        // bytes of that fragment's payload that are in place
  bool admitted = false;  // its message is known to fit
  bool paused = false;    // that fragment's message has no receive posted yet
  bool ended = false;     // the peer will send no more
};

}  // namespace prunex::transport
