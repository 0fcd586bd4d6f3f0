// SPDX-License-Identifier: Apache-2.0
// An established connection of the shared-memory transport.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "plugin/base/fd.h"
#include "plugin/transport/shm/ring.h"
#include "plugin/transport/shm/segment.h"
#include "plugin/transport/slots.h"
#include "plugin/transport/transport.h"

namespace prunex::transport::shm {

[[nodiscard]] constexpr size_t segment_bytes(size_t ring_bytes) {
  return 2 * bytes_of_ring(ring_bytes);
}

class ShmConnection final : public Connection {
 public:
  // `socket` is connected to the peer, the handshake is over. The connecting side writes the first
  // ring of the segment and reads the second.
  ShmConnection(Segment segment, size_t ring_bytes, Fd socket, bool connecting, std::string hello,
                uint32_t first_sequence);
  ~ShmConnection() override;

  Io isend(const void* data, size_t bytes, const Region* region, Ticket* out, Mark mark) override;
  Io irecv(void* data, size_t capacity, const Region* region, Ticket* out, Aside* aside) override;
  Io test(Ticket ticket, size_t* bytes, Mark* mark) override;
  Io progress() override;
  void poll_fds(std::vector<pollfd>& out) const override;
  [[nodiscard]] const Error& error() const override { return error_; }
  [[nodiscard]] std::string_view hello() const override { return hello_; }
  [[nodiscard]] std::string describe() const override;

 private:
  struct SendOp {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    Mark mark = 0;
    bool done = false;
    [[nodiscard]] bool is_done() const { return done; }
    [[nodiscard]] size_t length() const { return bytes; }
  };
  struct RecvOp {
    std::byte* data = nullptr;
    size_t capacity = 0, message = 0;
    Aside* aside = nullptr;
    Mark mark = 0;
    bool done = false;
    [[nodiscard]] bool is_done() const { return done; }
    [[nodiscard]] size_t length() const { return message; }
  };
  struct Header {  // before every message; both ends run on one machine, so it is copied as it is
    uint64_t bytes;
    uint32_t sequence;
    uint32_t mark;
  };
  static_assert(sizeof(Header) == 16);

  bool send_some();
  bool receive_some();
  bool begin_message();
  bool admit(RecvOp& op);
  void watch_peer();
  void wake();
  void break_with(Code code, std::string text);
  [[nodiscard]] bool sends_wait() const { return first_unsent_ != next_send_; }
  [[nodiscard]] bool receives_wait() const { return first_pending_ != next_receive_; }

  Segment segment_;
  Fd socket_;
  std::string hello_, peer_;
  mutable Ring out_, in_;  // poll_fds() says in them that this side will sleep

  Slots<SendOp> sends_{false};
  Slots<RecvOp> receives_{true};
  std::array<uint8_t, kMaxInFlight> send_order_{}, receive_order_{};  // slot, by sequence modulo
  uint32_t next_send_, next_receive_, first_unsent_, first_pending_;  // sequences
  size_t header_sent_ = 0, sent_ = 0;  // of the message that is on its way out
  bool has_header_ = false;
  Header header_{};      // of the message that is coming in
  size_t received_ = 0;  // of it

  mutable bool slept_ = false;  // poll_fds() was asked since the last look at the socket
  int64_t next_look_ns_ = 0;
  bool peer_gone_ = false, failed_ = false;
  Error error_;
};

}  // namespace prunex::transport::shm
