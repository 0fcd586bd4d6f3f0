// SPDX-License-Identifier: Apache-2.0
// An established connection of the verbs transport. Per message, by the sender's choice: written
// straight to where the receive's credit says; into an eager place of the receiver, copied out
// there; or, where the credit names no memory or the message goes aside, after asking where to.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "plugin/base/fd.h"
#include "plugin/transport/slots.h"
#include "plugin/transport/verbs/board.h"
#include "plugin/transport/verbs/queue_pair.h"

namespace prunex::transport::verbs {

// What two ends that have met hand to their connection.
struct Parts {
  std::shared_ptr<Device> device;
  std::unique_ptr<Board> board;
  std::unique_ptr<QueuePair> pair;
  std::unique_ptr<Connection> side;  // over TCP; ends when the other end does
  Endpoint own, peer;
  std::string hello;
};

// A completion that failed, for a person: what, from which port to which, with which settings.
[[nodiscard]] Error explain(const Parts& parts, const ibv_wc& entry);

class VerbsConnection final : public Connection {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Connection>> open(Parts parts);
  ~VerbsConnection() override;

  Io isend(const void* data, size_t bytes, const Region* region, Ticket* out, Mark mark) override;
  Io irecv(void* data, size_t capacity, const Region* region, Ticket* out, Aside* aside) override;
  Io test(Ticket ticket, size_t* bytes, Mark* mark) override;
  Io progress() override;
  void poll_fds(std::vector<pollfd>& out) const override;
  [[nodiscard]] const Error& error() const override { return error_; }
  [[nodiscard]] std::string_view hello() const override { return parts_.hello; }
  [[nodiscard]] std::string describe() const override;

 private:
  using Source = std::shared_ptr<Memory>;
  struct SendOp {
    const std::byte* data = nullptr;
    size_t bytes = 0, posted = 0;
    Source memory;  // registered for `data`; none: not needed, or not yet
    uint32_t sequence = 0;
    Mark mark = 0;
    bool asked = false;
    bool placed = false;     // all of its writes are posted
    bool too_long = false;   // what was placed is the news that it does not fit
    bool has_place = false;  // address and key are known
    uint64_t address = 0, capacity = 0;
    uint32_t key = 0;
    uint32_t unfinished = 0;  // posted writes that are not complete
    [[nodiscard]] bool is_done() const { return placed && unfinished == 0; }
    [[nodiscard]] size_t length() const { return bytes; }
  };
  struct RecvOp {
    std::byte* data = nullptr;
    size_t capacity = 0, message = 0;
    Aside* aside = nullptr;
    Source memory;  // while the other end may write to it
    uint32_t sequence = 0;
    Mark mark = 0;
    bool granted = false, done = false;
    [[nodiscard]] bool is_done() const { return done; }
    [[nodiscard]] size_t length() const { return message; }
  };
  struct Early {  // a message in an eager place that has no receive yet
    uint32_t bytes = 0;
    Mark mark = 0;
  };
  struct Due {  // a record that waits for room in the send queue
    Immediate::Kind kind = Immediate::credit;
    uint32_t sequence = 0;
    RecordBytes record{};
  };

  VerbsConnection(Parts parts, Fd ready);
  [[nodiscard]] Source source_of(const Region* region, const void* data, size_t bytes) const;

  // Sending.
  void push_sends();
  bool post_message(int slot);
  bool post_direct(int slot);
  bool post_eager(int slot);
  bool post_too_long(int slot);
  bool post_write(const QueuePair::Write& write, int slot);
  bool make_source(int slot);
  void ask(SendOp& op);
  [[nodiscard]] const Credit* credit_of(uint32_t sequence) const;
  void on_credit(uint32_t place);
  void on_grant(const Credit& credit);
  void on_sent(uint64_t id);

  // Receiving.
  void on_notice(uint32_t place);
  void on_ask(const Notice& notice);
  void on_message(Immediate::Kind kind, Mark mark, uint64_t bytes);
  void deliver(RecvOp& op, Immediate::Kind kind, Mark mark, uint64_t bytes);
  std::byte* target_of(const RecvOp& op, Mark mark, uint64_t bytes);
  void post_credit(const RecvOp& op);
  [[nodiscard]] bool is_posted(uint32_t sequence) const;

  // Records.
  void push_due(Immediate::Kind kind, uint32_t sequence, const RecordBytes& record);
  void flush_due();
  bool post_record(Immediate::Kind kind, uint32_t sequence, const RecordBytes& record, int slot);

  int poll_some();
  void handle(const ibv_wc& entry);
  void look_aside();
  void lose(Error reason);  // nothing more comes or goes; fails once what came is delivered
  void lose_to_peer();
  void check_lost();
  void break_with(Code code, std::string text);
  void break_protocol(const char* what);
  [[nodiscard]] bool outstanding() const;

  static constexpr size_t kDuePlaces = 512;
  static constexpr int kControl = -1;  // in place of a slot

  Parts parts_;
  Fd ready_;  // always readable: for a sleeper who must not sleep
  Ticket side_ticket_ = 0;
  std::byte side_byte_{};
  std::vector<pollfd> sides_;
  std::string names_, peer_;
  uint64_t chunk_ = 0;  // bytes of one write at most

  Slots<SendOp> sends_{false};
  Slots<RecvOp> receives_{true};
  std::array<uint8_t, kPlaces> send_order_{}, receive_order_{};  // slot by sequence, modulo
  uint32_t next_send_, next_to_post_;
  uint32_t peer_consumed_;  // eager places of older messages are free
  std::array<Credit, kPlaces> credits_{};
  std::array<bool, kPlaces> has_credit_{};
  int unsent_ = 0;  // sends that are not done

  uint32_t next_receive_, next_arrival_, told_consumed_;
  std::array<Early, kPlaces> early_{};

  std::array<Due, kDuePlaces> due_;
  size_t due_head_ = 0, due_count_ = 0;

  mutable std::array<ibv_wc, 16> seen_;  // polled by poll_fds(), not yet handled
  mutable int seen_count_ = 0;
  mutable bool slept_ = false;
  uint32_t rounds_ = 0;
  int64_t side_ended_ns_ = -1;
  bool lost_ = false, failed_ = false;
  Error reason_, error_;
};

}  // namespace prunex::transport::verbs
