// SPDX-License-Identifier: Apache-2.0
// An established connection of the socket transport.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/base/sockets.h"
#include "plugin/transport/slots.h"
#include "plugin/transport/socket/stream.h"
#include "plugin/transport/transport.h"

namespace prunex::transport {

struct ConnectionOptions {
  uint32_t first_sequence = 0;
  double silence_s = kVanishedAfterS;
  double stall_s = 0;
};

// Copying per progress() call and direction, bytes: the caller keeps control.
inline constexpr size_t kProgressBudget = size_t{256} << 10;

class SocketConnection final : public Connection {
 public:
  // `streams` in the order of their index, at least one, ready for data.
  SocketConnection(std::vector<Fd> streams, std::string hello, const ConnectionOptions& options);
  ~SocketConnection() override;

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
    size_t bytes = 0;
    int fragments = 0;  // not yet handed to the kernel
    Mark mark = 0;
    [[nodiscard]] bool is_done() const { return fragments == 0; }
    [[nodiscard]] size_t length() const { return bytes; }
  };
  struct RecvOp {
    std::byte* data = nullptr;  // from the announcement on, where the message goes
    size_t capacity = 0;
    Aside* aside = nullptr;
    Mark mark = 0;
    size_t message = 0, claimed = 0, received = 0;  // claimed: by fragments that have begun
    bool announced = false;                         // `message` is known
    bool done = false;                              // complete, and so are all before it
    [[nodiscard]] bool is_done() const { return done; }
    [[nodiscard]] size_t length() const { return message; }
  };

  [[nodiscard]] size_t stripes_of(size_t bytes) const;
  bool send_some();
  bool receive_some();
  bool receive(Stream& stream, size_t* budget);
  bool read_header(Stream& stream);
  RecvOp* operation_of(const Stream& stream);
  bool admit(Stream& stream, RecvOp& op);
  bool announce(const FragmentHeader& header, RecvOp& op);
  size_t place(Stream& stream, RecvOp& op, size_t budget, Intake::Read* how, int* error);
  void advance();
  void end_of(Stream& stream, int error);
  void check_closed();
  void check_silence();
  void check_stall(int64_t now);
  void break_with(Code code, std::string text, int sys_errno = 0);
  void drain();
  [[nodiscard]] bool outstanding() const { return unsent_ > 0 || first_pending_ != next_receive_; }

  std::vector<Stream> streams_;
  std::string hello_, peer_, self_;
  ConnectionOptions options_;

  Slots<SendOp> sends_{false};
  Slots<RecvOp> receives_{true};
  std::array<uint8_t, kMaxInFlight> order_{};  // slot of the receive with this sequence, modulo
  uint32_t next_send_, next_receive_;          // sequence the next posted one gets
  uint32_t first_pending_;                     // oldest receive that is not complete
  int unsent_ = 0;                             // sends that are not done
  size_t next_stream_ = 0;                     // where the next striped message begins
  size_t turn_ = 0;                            // which stream is served first
  uint32_t rounds_ = 0;                        // of progress()
  int idle_rounds_ = 0;                        // since something arrived on a stream but the first
  mutable bool slept_ = false;                 // poll_fds() was asked since the last progress

  int64_t next_check_ns_ = 0;
  uint64_t arrived_ = 0;           // payload bytes, all messages
  uint64_t arrived_then_ = 0;      // when the stall began
  int64_t stalled_since_ns_ = -1;  // -1: nothing is half there
  bool failed_ = false, closed_ = false;
  Error error_;
};

}  // namespace prunex::transport
