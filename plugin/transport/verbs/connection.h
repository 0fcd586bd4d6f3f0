// SPDX-License-Identifier: Apache-2.0
// An established connection of the verbs transport. Per message, by the sender's choice: written
// straight to where the receive's credit says, long ones in stripes over all queue pairs; into an
// eager place of the receiver, copied out there; in pieces through the receiver's ring, where the
// credit names no memory. A long message that goes aside asks first where to. Memory that is not
// registered is never registered on the way: it is copied into and out of the connection's own.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "plugin/base/fd.h"
#include "plugin/transport/slots.h"
#include "plugin/transport/timer.h"
#include "plugin/transport/verbs/parts.h"

namespace prunex::transport::verbs {

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
  using Source = std::shared_ptr<const Memory>;
  struct SendOp {
    const std::byte* data = nullptr;
    size_t bytes = 0, posted = 0;
    Source memory;  // that `data` is in, until it is out; none: it is copied
    uint32_t sequence = 0;
    Mark mark = 0;
    bool asked = false;
    bool placed = false;     // all of its writes are posted
    bool too_long = false;   // what was placed is the news that it does not fit
    bool has_place = false;  // address and keys are known
    bool in_pieces = false;  // there is no address: through the receiver's ring
    uint64_t address = 0, capacity = 0;
    std::array<uint32_t, kMaxRails> keys{};
    size_t lane = 0;          // whose stripe is being posted
    uint16_t stripes = 0;     // posted and announced by other lanes than the first
    uint32_t unfinished = 0;  // posted writes that are not complete
    void renew() {            // all but what isend() says and what comes with a place
      posted = lane = 0;
      asked = placed = too_long = has_place = in_pieces = false;
      stripes = 0;
      unfinished = 0;
    }
    [[nodiscard]] bool is_out() const { return placed && unfinished == 0; }
    [[nodiscard]] bool is_done() const { return is_out() && !too_long; }
    [[nodiscard]] size_t length() const { return bytes; }
  };
  struct RecvOp {
    std::byte* data = nullptr;
    std::byte* aside_data = nullptr;  // where the message goes that asked
    size_t capacity = 0, message = 0, received = 0;
    Aside* aside = nullptr;
    Source memory;  // while the other end may write to it
    uint32_t sequence = 0;
    Mark mark = 0;
    bool held = false;  // the other end was not told of it
    bool granted = false;
    bool arrived = false;  // but for stripes
    bool done = false;
    uint16_t stripes = 0;  // that it consists of, besides
    void renew() {         // all but what irecv() says
      aside_data = nullptr;
      message = received = 0;
      mark = 0;
      held = granted = arrived = done = false;
      stripes = 0;
    }
    [[nodiscard]] bool is_done() const { return done; }
    [[nodiscard]] size_t length() const { return message; }
  };
  struct Early {  // a message in an eager place that has no receive yet
    uint32_t bytes = 0;
    Mark mark = 0;
  };
  struct Due {  // a record that waits for room in the send queue
    Control kind = Control::credit;
    uint32_t sequence = 0;  // taken: the count
    RecordBytes record{};
  };

  VerbsConnection(Parts parts, Fd ready, std::optional<Timer> timer);
  void set_lanes();
  [[nodiscard]] bool on_device(const Region* region) const {
    return region != nullptr && region->owner() == parts_.domain.get() &&
           static_cast<const VerbsRegion*>(region)->memory->on_device();
  }
  [[nodiscard]] Source source_of(const Region* region, const void* data, size_t bytes) const;

  // Sending.
  bool post_at_once(int slot, const Region* region);
  void aim_at_eager(const SendOp& op, QueuePair::Write* write) const;
  void push_sends();
  bool post_message(int slot);
  void find_place(SendOp& op);
  bool post_direct(int slot);
  bool post_stripe(int slot, size_t lane, uint64_t end, bool announces);
  bool post_news(int slot, Notice::Kind kind);
  bool post_pieces(int slot);
  bool post_eager(int slot);
  bool source(int slot, size_t lane, size_t bytes, QueuePair::Write* write);
  bool post_write(const QueuePair::Write& write, size_t lane);
  [[nodiscard]] bool has_room(size_t lane) const;
  [[nodiscard]] static bool is_eager(size_t bytes, const Endpoint& taker) {
    return bytes == 0 || (bytes <= kEagerBytes && taker.takes_eager);
  }
  // Receives whose messages come by an eager place in any case: copying them costs less than
  // telling.
  [[nodiscard]] bool is_short(size_t capacity) const {
    return capacity <= kShortBytes && is_eager(capacity, parts_.own);
  }
  void ask(SendOp& op);
  [[nodiscard]] const Credit* credit_of(uint32_t sequence) const;
  void on_credit(uint32_t place);
  void on_grant(const Credit& credit);
  void on_taken(uint32_t count);
  void on_sent(uint64_t id);

  // Receiving.
  void on_notice(uint32_t place);
  void on_ask(const Notice& notice);
  bool take_whole(const Immediate& i);
  void on_message(Immediate::Kind kind, Mark mark, uint64_t bytes, uint16_t stripes);
  void on_piece(Mark mark, uint32_t value);
  void on_stripe(uint32_t place);
  void deliver(RecvOp& op, Immediate::Kind kind, Mark mark, uint64_t bytes);
  void settle();
  std::byte* target_of(RecvOp& op, Mark mark, uint64_t bytes);
  void post_credit(const RecvOp& op);
  void hold(RecvOp& op);
  void unhold(RecvOp& op);
  void tell_held();
  [[nodiscard]] bool has_enough_credits() const;
  void put_place(const Source& memory, const std::byte* data, Credit* credit) const;
  [[nodiscard]] bool is_posted(uint32_t sequence) const;
  void break_too_long(uint64_t bytes, const RecvOp& op);

  // records.cc
  void push_due(Control kind, uint32_t sequence, const RecordBytes& record);
  void flush_due();
  [[nodiscard]] size_t credits_in_row() const;
  bool post_credits(size_t n);
  bool post_record(Control kind, uint32_t sequence, const RecordBytes& record, uint64_t id);

  int poll_some();
  int handle_seen(int n);
  void handle(const ibv_wc& entry);
  void handle_control(Control control, uint32_t value);
  void idle(bool woken);
  void look_aside();
  void look_at_ports();
  void check_stall();
  [[nodiscard]] bool is_under_way() const;
  [[nodiscard]] std::string ports_text() const;
  void lose(Error reason);  // nothing more comes or goes; fails once what came is delivered
  void lose_to_peer();
  void check_lost();
  void break_with(Code code, std::string text);
  void break_protocol(const char* what);
  void say_farewell(const std::string& why);
  [[nodiscard]] bool outstanding() const;

  static constexpr size_t kDuePlaces = 512;

  Parts parts_;
  Fd ready_;  // always readable: for a sleeper who must not sleep
  Ticket side_ticket_ = 0;
  std::array<char, 400> farewell_{};  // what comes on it
  size_t farewell_bytes_ = 0;
  std::vector<pollfd> sides_;
  std::string names_, peer_;
  uint64_t chunk_ = 0;       // bytes of one write at most
  size_t split_from_ = 0;    // bytes of a message that goes over all lanes
  size_t most_at_once_ = 0;  // bytes of one that a single write brings

  std::vector<Lane> lanes_;                             // the first carries all but stripes
  std::vector<uint32_t> weights_;                       // of the lanes
  std::array<QueuePair*, kMaxQueuePairs> by_number_{};  // which lane_of() tells
  std::array<size_t, kMaxQueuePairs> rail_of_{};

  Slots<SendOp> sends_{false};
  Slots<RecvOp> receives_{true};
  std::array<uint8_t, kPlaces> send_order_{}, receive_order_{};  // slot by sequence, modulo
  uint32_t next_send_, next_to_post_;
  uint32_t peer_consumed_;  // eager places of older messages are free
  std::array<Credit, kPlaces> credits_{};
  std::array<bool, kPlaces> has_credit_{};
  int unsent_ = 0;  // sends that are not done
  // Pieces: put into the out ring and not complete; sent in all; out of the other end's ring.
  uint32_t out_next_ = 0, out_busy_ = 0, pieces_sent_ = 0, pieces_taken_ = 0;

  uint32_t next_receive_, next_arrival_, told_consumed_;
  int held_ = 0, held_long_ = 0;  // receives that the other end was not told of
  uint32_t next_whole_;           // all before it have arrived with all their stripes
  std::array<Early, kPlaces> early_{};
  std::array<uint16_t, kPlaces> stripes_{};  // that have come, by message
  uint32_t pieces_seen_ = 0, told_pieces_ = 0;
  std::array<Due, kDuePlaces> due_;
  size_t due_head_ = 0, due_count_ = 0;

  mutable std::array<ibv_wc, 16> seen_;  // polled by poll_fds(), not yet handled
  mutable int seen_count_ = 0;
  mutable bool slept_ = false;
  uint32_t idle_rounds_ = 0;  // since something moved
  int64_t looked_ns_ = 0;     // when it looked aside
  int64_t side_ended_ns_ = -1;
  mutable std::optional<Timer> timer_;   // for a sleeper: when to look whether a transfer stalls
  uint64_t moves_ = 0, moves_then_ = 0;  // completions; at the last look
  int64_t still_since_ns_ = -1;
  bool lost_ = false, failed_ = false;
  Error reason_, error_;
};

}  // namespace prunex::transport::verbs
