// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/socket/tuning.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/socket/socket.h"

namespace prunex::transport {
namespace {

struct Input {
  bool ended = false;  // the peer will send no more
  bool some = false;   // there was something
};

Input discard_input(int fd) {
  std::array<std::byte, 16384> scrap;
  for (Input in;; in.some = true) {
    const Transfer state = recv_some(fd, scrap).state;
    if (state != Transfer::some) {
      in.ended = state != Transfer::again;
      return in;
    }
  }
}

// `acknowledged`: nothing is unacknowledged, the end of the stream included; else: nothing is
// unsent.
bool is_out(int fd, bool acknowledged) {
  int left = 0;
  return ::ioctl(fd, acknowledged ? SIOCOUTQ : SIOCOUTQNSD, &left) != 0 || left == 0;
}

}  // namespace

SocketAddress peer_address(int fd) {
  SocketAddress out;
  out.length = sizeof out.storage;
  return ::getpeername(fd, out.data(), &out.length) == 0 ? out : SocketAddress{};
}

bool pace(int fd, uint64_t bytes_per_s) {
  return ::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, sizeof bytes_per_s) == 0;
}

void tune_for_data(int fd, const SocketOptions& options, size_t streams) {
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
  // Acknowledgements may wait for data of this side, or for more to acknowledge: sent one for one,
  // they cost a receiver of small messages more than the reading.
  constexpr int kNo = 0;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &kNo, sizeof kNo);
  if (options.pacing_rate > 0) {
    // open_socket_transport() has seen that the kernel can.
    (void)pace(fd, std::max<uint64_t>(options.pacing_rate / std::max<size_t>(streams, 1), 1));
  }
}

const char* cause_of(int error) {
  switch (error) {
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
      return "its machine or the network is down";
    default:
      return "that process has ended or closed the connection";
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
  const Deadline deadline = Deadline::after(kLingerS);
  struct Closing {
    int fd;
    bool peer_sends = false;
  };
  std::vector<Closing> open;
  for (const int fd : fds) {
    (void)::shutdown(fd, SHUT_WR);
    open.push_back({fd});
  }
  for (;;) {
    std::erase_if(open, [](Closing& c) {
      const Input in = discard_input(c.fd);
      c.peer_sends = c.peer_sends || in.some;
      // A silent peer gets what is on its way. One that sends provokes a reset with its next bytes,
      // so there it must have arrived; waiting for that always would cost a delayed
      // acknowledgement.
      return in.ended || is_out(c.fd, c.peer_sends);
    });
    if (open.empty() || deadline.passed()) {
      return;
    }
    // No event says that something was sent or acknowledged, so this looks again soon.
    std::vector<pollfd> wait;
    for (const Closing& c : open) {
      wait.push_back({c.fd, POLLIN, 0});
    }
    (void)::poll(wait.data(), wait.size(), 1);
  }
}

}  // namespace prunex::transport
