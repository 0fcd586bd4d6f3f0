// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/socket/stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace prunex::transport {
namespace {

// Behind a large payload only the next header is wanted: staged payload is copied once more.
constexpr size_t kLargePayload = size_t{16} << 10;
constexpr size_t kStageBehindLarge = 256;

Intake::Read failed_read(ssize_t n, int* error) {
  if (n == 0) {
    return Intake::Read::closed;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    return Intake::Read::again;
  }
  *error = errno;
  return Intake::Read::broken;
}

}  // namespace

ptrdiff_t SendQueue::write_some(int fd, size_t budget, size_t* asked, int* error) {
  constexpr size_t kMaxPieces = 64;
  std::array<iovec, kMaxPieces> pieces;
  size_t used = 0, bytes = 0;
  for (size_t i = 0; i < count_ && used + 2 <= kMaxPieces && bytes < budget; ++i) {
    OutFragment& f = ring_[(head_ + i) % ring_.size()];
    size_t skip = f.sent;
    if (skip < kFragmentBytes) {
      pieces[used++] = {f.header.data() + skip, kFragmentBytes - skip};
      bytes += kFragmentBytes - skip;
      skip = kFragmentBytes;
    }
    const size_t at = skip - kFragmentBytes;
    const size_t n = std::min(f.length - at, budget > bytes ? budget - bytes : 0);
    if (n > 0) {
      pieces[used++] = {const_cast<std::byte*>(f.data) + at, n};  // sendmsg only reads it
      bytes += n;
    }
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = used;
  *asked = bytes;
  const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) {
    return n;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    return 0;
  }
  *error = errno;
  return -1;
}

Intake::Read Intake::fill(int fd, int* error) {
  if (begin_ > 0) {
    std::memmove(stage_.data(), stage_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const size_t room = stage_.size() - end_;
  const ssize_t n = ::recv(fd, stage_.data() + end_, room, MSG_DONTWAIT);
  if (n <= 0) {
    return failed_read(n, error);
  }
  end_ += static_cast<size_t>(n);
  return static_cast<size_t>(n) == room ? Read::all : Read::part;
}

Intake::Read Intake::direct(int fd, std::span<std::byte> into, bool stage_too, size_t* got,
                            int* error) {
  begin_ = end_ = 0;
  std::array<iovec, 2> pieces{};
  pieces[0] = {into.data(), into.size()};
  pieces[1] = {stage_.data(), into.size() >= kLargePayload ? kStageBehindLarge : stage_.size()};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = stage_too ? 2 : 1;
  const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (n <= 0) {
    *got = 0;
    return failed_read(n, error);
  }
  const size_t all = static_cast<size_t>(n);
  *got = std::min(all, into.size());
  end_ = all - *got;
  return all == into.size() + (stage_too ? pieces[1].iov_len : 0) ? Read::all : Read::part;
}

}  // namespace prunex::transport
