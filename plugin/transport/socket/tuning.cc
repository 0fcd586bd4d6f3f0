// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/socket/tuning.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/socket/socket.h"

namespace prunex::transport {
namespace {

enum class Drained : uint8_t { empty, ended };

Drained discard_input(int fd) {
  std::array<std::byte, 16384> scrap;
  for (;;) {
    switch (recv_some(fd, scrap).state) {
      case Transfer::some:
        break;
      case Transfer::again:
        return Drained::empty;
      case Transfer::closed:
      case Transfer::broken:
        return Drained::ended;
    }
  }
}

bool all_acknowledged(int fd) {
  int left = 0;  // bytes, and one for the end of the stream
  return ::ioctl(fd, SIOCOUTQ, &left) != 0 || left == 0;
}

}  // namespace

SocketAddress peer_address(int fd) {
  SocketAddress out;
  out.length = sizeof out.storage;
  return ::getpeername(fd, out.data(), &out.length) == 0 ? out : SocketAddress{};
}

void tune_for_data(int fd, const SocketOptions& options) {
  tune_stream(fd, Vigilance::keepalive_only);
  if (options.send_buffer > 0) {
    (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &options.send_buffer, sizeof(int));
  }
  if (options.recv_buffer > 0) {
    (void)::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &options.recv_buffer, sizeof(int));
  }
  if (same_host(local_address(fd), peer_address(fd))) {
    // Nothing is congested inside a machine, and algorithms that pace (BBR, a common default) cost
    // two thirds of the bandwidth there. Reno is in every kernel and open to every user.
    constexpr std::string_view kReno = "reno";
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size());
  }
}

double unanswered_s(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_unacked == 0) {
    return 0;
  }
  // The last acknowledgement may be older than what is out now. But the retransmission timer
  // doubles with every try, so its growth is at least the time that went by since the first.
  const double since_ack = info.tcpi_last_ack_recv * 1e-3;
  const double first_rto =
      static_cast<double>(info.tcpi_rto >> std::min<int>(info.tcpi_backoff, 31));
  return std::min(since_ack, (info.tcpi_rto - first_rto) * 1e-6);
}

void close_gracefully(std::span<const int> fds) {
  for (const int fd : fds) {
    (void)::shutdown(fd, SHUT_WR);
  }
  const Deadline deadline = Deadline::after(kLingerS);
  std::vector<int> open(fds.begin(), fds.end());
  for (;;) {
    std::erase_if(
        open, [](int fd) { return discard_input(fd) == Drained::ended || all_acknowledged(fd); });
    if (open.empty() || deadline.passed()) {
      return;
    }
    // An acknowledgement wakes nobody, so this looks again soon; input is dropped as it comes.
    std::vector<pollfd> wait;
    for (const int fd : open) {
      wait.push_back({fd, POLLIN, 0});
    }
    (void)::poll(wait.data(), wait.size(), 1);
  }
}

bool raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) {
    return false;
  }
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace prunex::transport
