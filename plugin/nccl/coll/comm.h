// SPDX-License-Identifier: Apache-2.0
// Collectives among n nodes, one process each, without a thread: every call of a function here
// moves what can be moved and returns. Calls run in the order in which they were posted; while one
// is on the network, the next is prepared and agreed on.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/collective/leader_links.h"
#include "plugin/collective/table.h"
#include "plugin/nccl/coll/call.h"
#include "plugin/nccl/coll/piece.h"
#include "plugin/nccl/coll/remembered.h"
#include "plugin/nccl/coll/verdict.h"
#include "plugin/nccl/stats.h"

namespace prunex::nccl::coll {

// Of one communicator since it was connected. Calls longer than kPieceBytes count once in `calls`,
// and once per piece in how they travelled.
struct CollStats {
  uint64_t calls = 0;
  uint64_t dense = 0, masked = 0, mapped = 0;  // how they travelled; mapped: union of non-zero maps
  uint64_t violated = 0, mismatched = 0;       // of those that went dense, why
  uint64_t dropped_nonzero = 0;                // elements cut off under `project`
  uint64_t logical_bytes = 0, wire_bytes = 0;  // of users' buffers; sent by this node
  uint64_t busy_ns = 0;                        // inside calls, while anything was in flight
};

class CollComm {
 public:
  static constexpr size_t kPieceBytes = size_t{8} << 20;

  struct Setup {
    Config config;
    std::shared_ptr<ContextStats> stats;  // of NCCL's communicator
    size_t self = 0;
    std::vector<std::string> addresses;  // by node, for messages
    std::shared_ptr<transport::Transport> transport;
    std::unique_ptr<collective::LeaderLinks> links;  // null: one node
  };
  explicit CollComm(Setup setup);
  // Says that an unfinished call will not be; else waits, for a second at most, until the last
  // words have left.
  ~CollComm();
  CollComm(const CollComm&) = delete;
  CollComm& operator=(const CollComm&) = delete;

  // Makes the memory that calls on a buffer of that many bytes will need, on the caller's thread,
  // which need not be the one that progresses calls. Without it the first calls of a size do.
  void expect(size_t bytes);
  // A null request: too many are in flight, try again. The buffers stay the caller's until the
  // request is done.
  [[nodiscard]] Result<Request*> all_reduce(const AllReduce& call);
  [[nodiscard]] Result<Request*> all_gather(const void* send, std::span<const CollPart> recv,
                                            const Window& window, Regions regions = {});
  [[nodiscard]] Result<Request*> reduce_scatter(std::span<const CollPart> send, void* recv,
                                                const Window& window, DType type, Op op,
                                                Regions regions = {});
  // true: done, and the request is free. An error is the communicator's end.
  [[nodiscard]] Result<bool> test(Request& request);

  [[nodiscard]] size_t nodes() const { return nodes_; }
  [[nodiscard]] const std::shared_ptr<transport::Transport>& transport() const {
    return setup_.transport;
  }
  [[nodiscard]] size_t self() const { return setup_.self; }
  [[nodiscard]] CollStats stats() const;
  [[nodiscard]] bool dead() const { return dead_.has_value(); }

 private:
  // Partial sums and packed streams are held of as many pieces as can be under way at a time.
  static constexpr size_t kUnderWay = 3;

  // comm_post.cc
  [[nodiscard]] Result<Request*> take_request(size_t bytes);
  [[nodiscard]] Result<Request*> post(Request& request);
  [[nodiscard]] Segment segment_of(const Window& window, size_t node) const;
  [[nodiscard]] Result<> check_window(const Window& window, std::span<const CollPart> parts) const;
  void open_pieces();
  void open(Piece& piece, Request& request);
  void open_window(Piece& piece);
  void take_ready(size_t slot);

  // comm.cc
  [[nodiscard]] bool idle() const { return under_way_ == 0 && posted_count_ == 0; }
  // Of those under way, the oldest first.
  [[nodiscard]] size_t slot_of(size_t index) const { return (oldest_ + index) % kUnderWay; }
  [[nodiscard]] Piece& piece_at(size_t index) { return pieces_[slot_of(index)]; }
  [[nodiscard]] Result<> poll();
  [[nodiscard]] Result<> poll_pieces();
  [[nodiscard]] Result<bool> poll_piece(size_t index, int64_t* budget);
  void pop_finished();

  // comm_end.cc
  [[nodiscard]] static Error given_up(size_t from, const collective::CallHeader& abort);
  [[nodiscard]] Result<> watch_for_aborts();
  [[nodiscard]] Error blame(Error finding);
  [[nodiscard]] Error die(Error finding);

  // comm_agree.cc
  [[nodiscard]] Result<bool> agree(Piece& piece, int64_t* budget);
  void begin(Piece& piece);
  [[nodiscard]] bool use_mask(Piece& piece);
  [[nodiscard]] collective::Algorithm algorithm_for(const Piece& piece, uint64_t elements) const;
  [[nodiscard]] static bool prepare(Piece& piece, int64_t* budget);
  [[nodiscard]] Result<> announce(Piece& piece);
  static void tell_violation(Piece& piece);
  [[nodiscard]] Result<bool> hear(Piece& piece);
  [[nodiscard]] static std::string parameter_here(const Piece& piece);
  [[nodiscard]] Result<> conclude(Piece& piece, std::span<const CollMessage> messages);
  void learn(Piece& piece, const Verdict& verdict, std::span<const CollMessage> messages);
  [[nodiscard]] Result<bool> merge_maps(Piece& piece, std::span<const CollMessage> messages);
  void combine_inlined(Piece& piece, std::span<const CollMessage> messages);

  // comm_move.cc
  void start(Piece& piece);
  [[nodiscard]] Result<bool> move(Piece& piece, int64_t* budget);
  void finish(Piece& piece);

  [[nodiscard]] static uint64_t piece_digest(const Piece& piece);
  [[nodiscard]] static uint64_t mask_key(const api::RangeHit& hit);

  Setup setup_;
  size_t nodes_;
  collective::Tuning tuning_;
  std::array<Request, kMaxRequests> requests_;
  std::array<Request*, kMaxRequests> posted_{};  // not all of whose pieces are under way yet
  size_t posted_first_ = 0, posted_count_ = 0;
  std::vector<Piece> pieces_;
  size_t oldest_ = 0, under_way_ = 0;
  std::vector<CollMessage> messages_;  // by node; of the piece that is being agreed on
  std::vector<const void*> sources_;   // by node
  std::optional<Error> dead_;
  uint64_t sequence_ = 0;
  uint32_t idle_polls_ = 0;

  // What calls have taught, the same on all nodes: changed only by what all of them heard.
  Remembered broken_;                   // masks that did not keep their promise
  Remembered sampled_;                  // calls by mask and range
  uint64_t scan_from_ = 0, pause_ = 0;  // maps are tried again from this call on
  Remembered warned_;

  // What expect() has made for each piece's place and nobody has taken yet.
  struct Ready {
    transport::Staging memory, scratch;
  };
  std::mutex expect_mutex_;  // one maker at a time; longer than ready_mutex_ is held
  size_t expected_ = 0;      // under it: bytes of a piece
  std::mutex ready_mutex_;
  std::array<Ready, kUnderWay> ready_;  // under it
  std::array<std::atomic<bool>, kUnderWay> is_ready_{};

  // Under the mutex: what NCCL's communicator has not been told yet.
  void publish();
  mutable std::mutex stats_mutex_;
  CollStats stats_, published_;
};

}  // namespace prunex::nccl::coll
