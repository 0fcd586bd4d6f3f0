// SPDX-License-Identifier: Apache-2.0
// Everything in the transports that parses bytes of somebody else. The first byte chooses what.
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>

#include "plugin/transport/shm/wire.h"
#include "plugin/transport/socket/connection.h"
#include "plugin/transport/socket/wire.h"

namespace {

using namespace prunex::transport;  // NOLINT: a program, not a library

void require(bool ok) {
  if (!ok) {
    std::abort();
  }
}

// The bytes arrive on the streams of a connection that has receives posted.
void as_streams(std::span<const std::byte> bytes, size_t streams) {
  std::vector<prunex::Fd> ours, theirs;
  for (size_t i = 0; i < streams; ++i) {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    ours.emplace_back(ends[0]);
    theirs.emplace_back(ends[1]);
  }
  SocketConnection c(std::move(ours), "", ConnectionOptions{0, 1});
  constexpr size_t kReceives = 4, kCapacity = 300, kGuard = 8;
  std::byte into[kReceives][kCapacity + kGuard];
  std::memset(into, 0x5A, sizeof into);
  Ticket tickets[kReceives];
  for (size_t i = 0; i < kReceives; ++i) {
    require(c.irecv(into[i], kCapacity, nullptr, &tickets[i], nullptr) == Io::done);
  }
  const size_t each = bytes.size() / streams;
  for (size_t i = 0; i < streams; ++i) {
    const auto part = bytes.subspan(i * each, i + 1 < streams ? each : bytes.size() - i * each);
    (void)!send(theirs[i].get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    theirs[i].reset();
  }
  for (int i = 0; i < 100 && c.progress() != Io::failed; ++i) {
  }
  for (size_t i = 0; i < kReceives; ++i) {
    size_t n = 0;
    require(c.test(tickets[i], &n, nullptr) != Io::done || n <= kCapacity);
    for (size_t k = 0; k < kGuard; ++k) {
      require(into[i][kCapacity + k] == std::byte{0x5A});
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  switch (data[0] % 5) {
    case 0:
      if (auto h = decode_handle(text)) {
        require(encode(*h) == text.substr(0, kHandleBytes));
      }
      (void)shm::decode_handle(text);
      break;
    case 1: {
      shm::Hello hello;
      if (shm::decode_hello(bytes, &hello)) {
        require(hello.text.size() <= kMaxHello);
      }
      shm::Reply reply;
      (void)shm::decode_reply(bytes, &reply);
      break;
    }
    case 2:
      if (bytes.size() >= kHelloBytes) {
        Hello hello;
        if (decode_hello(bytes.first<kHelloBytes>(), &hello)) {
          require(may_be_hello(bytes));
          require(hello.version != kWireVersion || hello.stream < hello.streams);
        }
        Reply reply;
        (void)decode_reply(bytes.first<kReplyBytes>(), &reply);
      }
      break;
    case 3:
      as_streams(bytes, 1);
      break;
    default:
      as_streams(bytes, 2);
      break;
  }
  return 0;
}
