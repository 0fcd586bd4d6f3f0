// SPDX-License-Identifier: Apache-2.0
// Two ends of one connection, driven by turns by one thread: for what the contract says of single
// calls. The ends may be of different versions.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/logger.h"
#include "tests/nccl/host/tables.h"
#include "tests/nccl/host/world.h"

namespace prunex::nccl::host {

using Bytes = std::vector<std::byte>;

// Reproducible; every other block of 256 bytes is zero when `sparse`.
inline Bytes pattern(size_t bytes, uint32_t seed, bool sparse = false) {
  Bytes out(bytes);
  uint32_t x = seed * 2654435761u + 1;
  for (size_t i = 0; i < bytes; ++i) {
    x = x * 1664525 + 1013904223;
    out[i] = sparse && (i / 256) % 2 == 1 ? std::byte{0} : static_cast<std::byte>(x >> 24 | 1);
  }
  return out;
}

struct Pipe {
  explicit Pipe(int send_version, int recv_version = 0, uint64_t comm_id = 1)
      : sender(open_net(load_plugin(plugin_path()), send_version)),
        receiver(
            open_net(load_plugin(plugin_path()), recv_version == 0 ? send_version : recv_version)) {
    PRUNEX_MUST(sender->init(comm_id, -1, log_from_plugin) == kSuccess);
    PRUNEX_MUST(receiver->init(comm_id, -1, log_from_plugin) == kSuccess);
    PRUNEX_MUST(receiver->listen(0, handle, &listening) == kSuccess && listening != nullptr);
    wait_for("a connection", [&] {
      PRUNEX_MUST(send != nullptr || sender->connect(0, handle, &send) == kSuccess);
      PRUNEX_MUST(recv != nullptr || receiver->accept(listening, &recv) == kSuccess);
      return send != nullptr && recv != nullptr;
    });
  }

  void close() {
    PRUNEX_MUST(sender->close_send(send) == kSuccess);
    PRUNEX_MUST(receiver->close_recv(recv) == kSuccess);
    PRUNEX_MUST(receiver->close_listen(listening) == kSuccess);
    PRUNEX_MUST(sender->finalize() == kSuccess && receiver->finalize() == kSuccess);
  }

  // NULL: try again later.
  void* isend(const Bytes& data, int tag = 7) {
    void* request = reinterpret_cast<void*>(0x99);
    const Status status = sender->isend(send, const_cast<std::byte*>(data.data()), data.size(), tag,
                                        nullptr, &request);
    PRUNEX_MUST(status == kSuccess, "isend answers %d", status);
    return request;
  }
  void* irecv(Bytes& room, bool optional = false, int tag = 7) {
    void* request = nullptr;
    void* place = room.data();
    void* mr = nullptr;
    size_t size = room.size();
    const Status status = receiver->irecv(recv, 1, &place, &size, &tag, &mr, optional, &request);
    PRUNEX_MUST(status == kSuccess, "irecv answers %d", status);
    return request;
  }

  // Tests both ends by turns until both are done; answers the received size.
  int finish(void* sending, void* receiving) {
    int sent = sending == nullptr ? 1 : 0, received = receiving == nullptr ? 1 : 0;
    int size = -1;
    wait_for("a message", [&] {
      if (sent == 0) {
        PRUNEX_MUST(sender->test(sending, &sent, nullptr) == kSuccess);
      }
      if (received == 0) {
        PRUNEX_MUST(receiver->test(receiving, &received, &size) == kSuccess);
      }
      return sent != 0 && received != 0;
    });
    return size;
  }

  // One message into a buffer of `room` bytes (0: as many as are sent), checked.
  void exchange(const Bytes& data, size_t room = 0, bool optional = false) {
    constexpr size_t kGuard = 64;
    Bytes into(std::max(room, data.size()) + kGuard, std::byte{0xEE});
    void* place = into.data();
    void* mr = nullptr;
    size_t size = into.size() - kGuard;
    int tag = 7;
    void* receiving = nullptr;
    PRUNEX_MUST(receiver->irecv(recv, 1, &place, &size, &tag, &mr, optional, &receiving) ==
                kSuccess);
    PRUNEX_MUST(receiving != nullptr);
    void* const sending = isend(data);
    PRUNEX_MUST(sending != nullptr);
    const int got = finish(sending, receiving);
    PRUNEX_MUST(got == static_cast<int>(data.size()), "%d bytes of %zu", got, data.size());
    PRUNEX_MUST(std::equal(data.begin(), data.end(), into.begin()), "%zu bytes", data.size());
    // Polled buffers are written in whole pieces of what was sent, never behind it.
    for (size_t i = data.size(); i < into.size(); ++i) {
      PRUNEX_MUST(into[i] == std::byte{0xEE}, "written behind %zu bytes, at +%zu", data.size(),
                  i - data.size());
    }
  }

  std::unique_ptr<HostNet> sender, receiver;
  Handle handle{};
  void *listening = nullptr, *send = nullptr, *recv = nullptr;
};

}  // namespace prunex::nccl::host
