// SPDX-License-Identifier: Apache-2.0
// Collectives among n nodes, one process each, without a thread: every call of a function here
// moves what can be moved and returns. Calls run in the order in which they were posted; while one
// is on the network, the next is prepared and agreed on.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "plugin/api/registry.h"
#include "plugin/base/config.h"
#include "plugin/collective/leader_links.h"
#include "plugin/collective/table.h"
#include "plugin/nccl/coll/stream.h"
#include "plugin/nccl/coll/transfer.h"
#include "plugin/nccl/coll/verdict.h"
#include "plugin/nccl/internal_table.h"
#include "plugin/nccl/stats.h"
#include "plugin/transport/staging.h"
#include "plugin/transport/transport.h"

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

class CollComm;

struct Request {
  CollComm* comm = nullptr;
  bool used = false;
  size_t pieces_left = 0;
  size_t bytes = 0;
};

// What the caller has registered of its buffers; kept until the call is done.
struct Regions {
  std::shared_ptr<const transport::Region> send, recv;
};

struct AllReduce {
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t count = 0;
  DType type = DType::f32;
  Op op = Op::sum;
  Regions regions = {};
};

struct Window {  // of the buffer of all nodes' segments, bytes
  size_t bytes_per_rank = 0, offset = 0, bytes = 0;
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
  enum class Phase : uint8_t { fresh, preparing, announced, agreed, moving, finished };
  struct Piece {
    Function function = Function::all_reduce;
    Request* request = nullptr;
    const std::byte* send = nullptr;
    std::byte* recv = nullptr;
    std::shared_ptr<const transport::Region> send_region, recv_region;
    DType type = DType::i8;
    Op op = Op::sum;
    uint64_t count = 0;                // elements of the whole call
    uint64_t first = 0, elements = 0;  // of this piece
    uint64_t index = 0;
    Window window;
    std::vector<Segment> segments;  // of the window, by node
    transport::Staging staging;     // the window, where the user's is in several parts
    std::vector<CollPart> parts;    // to be filled from it
    std::optional<api::RangeHit> hit;

    Phase phase = Phase::fresh;
    uint64_t sequence = 0;
    Wish wish = Wish::dense;
    bool audited = false;
    bool broken = false;  // its mask did not keep its promise
    uint64_t kept = 0;    // elements that cross, as far as this node knows
    Stream stream;
    BlockMap map;
    size_t scanned = 0;  // blocks
    CollHead head;       // as announced
    collective::CallHeader header;
    std::vector<std::byte> payload;
    bool came_inlined = false;  // the sum is there already
    size_t copied = 0;          // of the own segment, all-gather
    std::optional<Transfer> transfer;
    int64_t moved_ns = 0;  // when something last moved
    [[nodiscard]] size_t bytes() const { return elements * size_of(type); }
  };

  // comm.cc
  [[nodiscard]] Result<Request*> take_request(size_t bytes);
  [[nodiscard]] Result<Request*> post(Piece piece, size_t bytes);
  [[nodiscard]] std::vector<Segment> segments_of(const Window& window) const;
  [[nodiscard]] Result<> check_window(const Window& window, std::span<const CollPart> parts) const;
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
  [[nodiscard]] Result<> conclude(Piece& piece, std::span<const CollMessage> messages);
  void learn(Piece& piece, const Verdict& verdict, std::span<const CollMessage> messages);
  [[nodiscard]] Result<bool> merge_maps(Piece& piece, std::span<const CollMessage> messages);
  void combine_inlined(Piece& piece, std::span<const CollMessage> messages);

  // comm_move.cc
  void start(Piece& piece);
  [[nodiscard]] Result<bool> move(Piece& piece, int64_t* budget);
  void finish(Piece& piece);
  [[nodiscard]] transport::Staging take_memory();
  void give_memory(transport::Staging memory);

  [[nodiscard]] static uint64_t piece_digest(const Piece& piece);
  [[nodiscard]] static uint64_t mask_key(const api::RangeHit& hit);

  Setup setup_;
  size_t nodes_;
  collective::Tuning tuning_;
  std::array<Request, kMaxRequests> requests_;
  std::deque<Piece> queue_;
  std::vector<transport::Staging> spare_;  // memory of packed streams
  // Partial sums, of as many pieces as can be under way at a time.
  static constexpr size_t kUnderWay = 3;
  std::array<transport::Staging, kUnderWay> scratch_;
  std::optional<Error> dead_;
  uint64_t sequence_ = 0;
  uint32_t idle_polls_ = 0;

  // What calls have taught, the same on all nodes: changed only by what all of them heard.
  std::unordered_set<uint64_t> broken_;             // masks that did not keep their promise
  std::unordered_map<uint64_t, uint64_t> sampled_;  // calls by mask and range
  uint64_t scan_from_ = 0, pause_ = 0;              // maps are tried again from this call on
  std::unordered_set<uint64_t> warned_;

  // Under the mutex: what NCCL's communicator has not been told yet.
  void publish();
  mutable std::mutex stats_mutex_;
  CollStats stats_, published_;
};

}  // namespace prunex::nccl::coll
