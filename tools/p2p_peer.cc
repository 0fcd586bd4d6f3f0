// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_peer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"
#include "plugin/base/text.h"
#include "plugin/base/wire.h"
#include "prunex/prunex.h"
#include "tools/text.h"

namespace prunex::tools {
namespace {

constexpr uint32_t kMagic = 0x5032'5850;  // "PX2P"
constexpr size_t kMaxRelease = 48;
constexpr size_t kHelloBytes = 4 + 4 + 4 + kMaxRelease;  // always as long: it can be read whole
constexpr double kAttemptSeconds = 5;                    // then the next address, or this one again
constexpr uint32_t kMaxMessage = 1U << 20;

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, static_cast<int>(deadline.left_ns() / 1'000'000 + 1)) > 0;
}

tl::unexpected<Error> lost(const char* why) {
  return fail(Code::peer_lost, strf("the other end of the benchmark %s", why));
}

Result<> send_all(int fd, std::string_view text, const Deadline& deadline) {
  auto left = std::as_bytes(std::span(text));
  while (!left.empty()) {
    const Moved moved = send_some(fd, left);
    if (moved.state == Transfer::some) {
      left = left.subspan(moved.bytes);
    } else if (moved.state != Transfer::again) {
      return lost("has closed its connection");
    } else if (deadline.passed()) {
      return fail(Code::timeout, "the other end of the benchmark does not read");
    } else {
      (void)wait_for(fd, POLLOUT, deadline);
    }
  }
  return {};
}

// Fewer bytes than asked for: it closed, or the time is over.
size_t recv_all(int fd, std::span<std::byte> into, const Deadline& deadline, bool* closed) {
  size_t got = 0;
  *closed = false;
  while (got < into.size() && !*closed) {
    const Moved moved = recv_some(fd, into.subspan(got));
    if (moved.state == Transfer::some) {
      got += moved.bytes;
    } else if (moved.state != Transfer::again) {
      *closed = true;
    } else if (deadline.passed()) {
      break;
    } else {
      (void)wait_for(fd, POLLIN, deadline);
    }
  }
  return got;
}

std::string printable(std::string_view bytes) {
  std::string out;
  for (const char c : bytes.substr(0, 8)) {
    out += strf("%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return out;
}

// "10.0.0.1:80 (IPv4)", or "name:80 = 10.0.0.1:80 (IPv4), [fd00::1]:80 (IPv6)".
std::string places(const HostPort& root, const std::vector<SocketAddress>& addresses) {
  std::vector<std::string> texts;
  for (const SocketAddress& address : addresses) {
    texts.push_back(to_text(address) + " (" + family_name(address.family()) + ")");
  }
  const std::string all = join(texts, ", ");
  return all.starts_with(to_text(root) + " ") ? all : to_text(root) + " = " + all;
}

// IPv4 at one end and IPv6 at the other never meet, and neither end can see it.
std::string family_advice(const std::vector<SocketAddress>& addresses, const char* does) {
  const int family = addresses.front().family();
  for (const SocketAddress& address : addresses) {
    if (address.family() != family) {
      return {};
    }
  }
  return strf(". This end %s %s only; if the other's PRUNEX_ROOT is %s there, they cannot meet",
              does, family_name(family), family == AF_INET ? "IPv6" : "IPv4");
}

Result<Fd> accept_at(const HostPort& root, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  auto addresses = resolve(root);
  if (!addresses) {
    return tl::unexpected(addresses.error());
  }
  addresses->resize(1);
  auto listening = listen_tcp(addresses->front());
  if (!listening) {
    return tl::unexpected(listening.error());
  }
  while (!deadline.passed()) {
    if (!wait_for(listening->fd.get(), POLLIN, deadline)) {
      continue;
    }
    auto accepted = accept_tcp(listening->fd.get());
    if (!accepted) {
      return tl::unexpected(accepted.error());
    }
    if (*accepted) {
      return std::move((*accepted)->fd);
    }
  }
  return fail(Code::timeout,
              strf("nobody came to %s within %g s: start the other end too, with rank 1 and this "
                   "PRUNEX_ROOT%s",
                   places(root, *addresses).c_str(), timeout_s,
                   family_advice(*addresses, "listens on").c_str()));
}

// One attempt at one address. The error says why there is no connection.
Result<Fd> attempt(const SocketAddress& address, const Deadline& whole) {
  const Deadline deadline =
      Deadline::after(std::min(kAttemptSeconds, static_cast<double>(whole.left_ns()) * 1e-9));
  Result<Fd> fd = start_connect(address);
  while (fd && !deadline.passed()) {
    if (!wait_for(fd->get(), POLLOUT, deadline)) {
      continue;
    }
    const Result<bool> connected = connect_done(fd->get(), address);
    if (!connected) {
      return tl::unexpected(connected.error());
    }
    if (*connected) {
      return fd;
    }
  }
  return fd ? fail(Code::timeout, "no answer from " + to_text(address)) : std::move(fd);
}

Result<Fd> connect_to(const HostPort& root, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  auto addresses = resolve(root);
  if (!addresses) {
    return tl::unexpected(addresses.error());
  }
  std::string why = "resolving the name took that long";
  size_t attempts = 0;
  while (!deadline.passed()) {  // rank 0 may not listen yet
    auto fd = attempt((*addresses)[attempts++ % addresses->size()], deadline);
    if (fd) {
      return fd;
    }
    why = fd.error().text;
    ::poll(nullptr, 0, 20);
  }
  return fail(Code::timeout, strf("rank 0 does not answer at %s within %g s: %s, the last: %s%s",
                                  places(root, *addresses).c_str(), timeout_s,
                                  counted(attempts, "attempt").c_str(), why.c_str(),
                                  family_advice(*addresses, "tries").c_str()));
}

}  // namespace

P2pHello own_p2p_hello() {
  return {kP2pProtocol,
          strf("%d.%d.%d", PRUNEX_VERSION_MAJOR, PRUNEX_VERSION_MINOR, PRUNEX_VERSION_PATCH)};
}

std::string encode(const P2pHello& hello) {
  WireAppender out;
  out.put(kMagic);
  out.put(hello.protocol);
  out.put_string(std::string_view(hello.release).substr(0, kMaxRelease));
  std::string bytes = out.take();
  bytes.resize(kHelloBytes, '\0');
  return bytes;
}

Result<P2pHello> decode_p2p_hello(std::string_view bytes) {
  WireReader in(bytes);
  const auto magic = in.get<uint32_t>();
  P2pHello hello;
  hello.protocol = in.get<uint32_t>();
  hello.release = in.get_string(kMaxRelease);
  if (!in.ok() || magic != kMagic) {
    return fail(Code::mismatch,
                strf("the other end is no `prunex bench p2p`: %zu bytes came, the first are %s "
                     "(hex); this end is release %s, protocol %u",
                     bytes.size(), printable(bytes).c_str(), own_p2p_hello().release.c_str(),
                     kP2pProtocol));
  }
  for (char& c : hello.release) {  // it will be printed
    c = c >= ' ' && c <= '~' ? c : '?';
  }
  return hello;
}

Result<> compare(const P2pHello& mine, const P2pHello& theirs) {
  if (mine.protocol == theirs.protocol && mine.release == theirs.release) {
    return {};
  }
  return fail(
      Code::mismatch,
      strf("the two ends differ: this one is release %s, protocol %u; the other release %s, "
           "protocol %u. Install the same release on both",
           mine.release.c_str(), mine.protocol, theirs.release.c_str(), theirs.protocol));
}

Result<P2pPeer> P2pPeer::meet(int rank, const std::string& root, double timeout_s) {
  if (root.empty()) {
    return fail(Code::config,
                "PRUNEX_ROOT is not set: host:port where rank 0 listens, the same for both ends");
  }
  const auto at = parse_host_port(root);
  if (!at) {
    return fail(Code::config, "PRUNEX_ROOT: " + at.error().text);
  }
  Result<Fd> fd = rank == 0 ? accept_at(*at, timeout_s) : connect_to(*at, timeout_s);
  if (!fd) {
    return tl::unexpected(fd.error());
  }
  tune_stream(fd->get(), Vigilance::keepalive_only);
  P2pPeer peer(std::move(*fd));
  peer.patience_s_ = timeout_s;
  if (auto greeted = peer.greet(); !greeted) {
    return tl::unexpected(greeted.error());
  }
  return peer;
}

Result<> P2pPeer::greet() {
  const P2pHello mine = own_p2p_hello();
  const Deadline deadline = Deadline::after(kP2pHelloSeconds);
  if (auto sent = send_all(fd_.get(), encode(mine), deadline); !sent) {
    return sent;
  }
  std::array<std::byte, kHelloBytes> bytes{};
  bool closed = false;
  const size_t got = recv_all(fd_.get(), bytes, deadline, &closed);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), got);
  auto theirs = decode_p2p_hello(text);
  if (!theirs) {
    return tl::unexpected(theirs.error());
  }
  release_ = theirs->release;
  return compare(mine, *theirs);
}

Result<std::string> P2pPeer::exchange(std::string_view mine, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  WireAppender out;
  out.put_string(mine);
  if (auto sent = send_all(fd_.get(), out.take(), deadline); !sent) {
    return tl::unexpected(sent.error());
  }
  std::array<std::byte, 4> head{};
  bool closed = false;
  size_t got = recv_all(fd_.get(), head, deadline, &closed);
  const auto length = WireReader(head).get<uint32_t>();
  if (got == head.size() && length > kMaxMessage) {
    return lost(
        strf("announces a message of %u bytes, at most %u are possible", length, kMaxMessage)
            .c_str());
  }
  std::string text(got == head.size() ? length : 0, '\0');
  if (!text.empty()) {
    got += recv_all(fd_.get(), std::as_writable_bytes(std::span(text)), deadline, &closed);
  }
  if (got < head.size() + text.size()) {
    return closed ? lost("has ended; it says why")
                  : fail(Code::timeout,
                         strf("the other end of the benchmark said nothing for %g s", timeout_s));
  }
  return text;
}

Result<> P2pPeer::barrier(double timeout_s) {
  const auto other = exchange("", timeout_s);
  return other ? Result<>() : tl::unexpected(other.error());
}

bool P2pPeer::gone() const {
  char byte;
  const ssize_t n = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace prunex::tools
