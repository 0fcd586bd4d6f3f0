// SPDX-License-Identifier: Apache-2.0
// Messages between this rank and one other: one connection per direction, opened by the sender with
// its first message. Both classes are used by one thread at a time.
#pragma once
#include <poll.h>

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/collective/p2p_note.h"
#include "plugin/collective/request.h"
#include "plugin/transport/transport.h"

namespace prunex::collective {

struct P2pCall {
  std::shared_ptr<Completion> request;
  std::byte* buffer = nullptr;
  size_t bytes = 0;
  int64_t tag = 0;
  Deadline deadline;
};

struct P2pCounters {
  uint64_t messages = 0, bytes_logical = 0;                // complete, of this rank
  uint64_t wire_sent = 0, wire_received = 0, payload = 0;  // between nodes; payload: sent
};

// Notes and data handed to a connection and not yet gone.
struct P2pFlight {
  transport::Ticket ticket = 0;
  std::vector<std::byte> bytes;  // the note and what follows it; empty: the caller's buffer
  std::optional<P2pCall> call;   // complete once this has left
};

class P2pOut {
 public:
  P2pOut(int self, int peer, bool crosses, P2pCounters& counters)
      : self_(self), peer_(peer), crosses_(crosses), counters_(counters) {}

  void post(P2pCall call) { queued_.push_back(std::move(call)); }
  // true: something moved. An error has the peer in `rank`.
  [[nodiscard]] Result<bool> progress(transport::Transport& transport, const std::string& handle,
                                      double timeout_s);
  [[nodiscard]] bool idle() const;
  [[nodiscard]] const P2pCall* late() const;
  void poll_fds(std::vector<pollfd>& out) const;
  // Closes; nothing reads a buffer afterwards.
  void fail(const Error& error);

 private:
  [[nodiscard]] Result<bool> connect(transport::Transport& transport, const std::string& handle,
                                     double timeout_s);
  [[nodiscard]] Result<bool> read_answers();
  [[nodiscard]] Result<bool> send_data();
  [[nodiscard]] Result<bool> send_notes();
  [[nodiscard]] Result<bool> reap();
  [[nodiscard]] tl::unexpected<Error> lost() const;

  int self_, peer_;
  bool crosses_;  // between nodes
  P2pCounters& counters_;
  std::unique_ptr<transport::Connecting> connecting_;
  std::unique_ptr<transport::Connection> link_;
  bool broken_ = false;  // while nothing was wanted: an error only for the next message
  std::deque<P2pCall> queued_, ready_;  // not announced; taken by the peer
  std::unordered_map<uint64_t, P2pCall> offered_;
  std::unordered_map<uint64_t, size_t> untaken_;  // eager messages and their weights
  size_t weight_ = 0;                             // of all of them
  uint64_t next_id_ = 1;
  std::list<P2pFlight> flights_;
  std::vector<std::byte> inbox_;
  transport::Ticket inbox_ticket_ = 0;
};

class P2pIn final : private transport::Aside {
 public:
  P2pIn(int peer, bool crosses, P2pCounters& counters)
      : peer_(peer), crosses_(crosses), counters_(counters) {}

  void post(P2pCall call);
  [[nodiscard]] bool connected() const { return link_ != nullptr; }
  void accept(std::unique_ptr<transport::Connection> link) { link_ = std::move(link); }
  [[nodiscard]] Result<bool> progress();
  [[nodiscard]] bool idle() const { return waiting_.empty() && taking_.empty(); }
  [[nodiscard]] const P2pCall* late() const;
  void poll_fds(std::vector<pollfd>& out) const;
  void fail(const Error& error);

 private:
  struct Arrived {
    Note note;
    std::vector<std::byte> data;  // of an eager message
  };
  Room room(size_t bytes) override;  // where offered data go
  [[nodiscard]] Result<bool> read();
  [[nodiscard]] Result<bool> answer();
  void match();
  bool match_first();
  void finish(const P2pCall& call);
  [[nodiscard]] tl::unexpected<Error> lost(const Error& why) const;

  int peer_;
  bool crosses_;
  P2pCounters& counters_;
  std::unique_ptr<transport::Connection> link_;
  std::optional<Error> closed_;
  std::deque<Arrived> arrived_;
  std::deque<P2pCall> waiting_, taking_;  // no message yet; its data are on the way
  std::deque<uint64_t> answers_;          // messages to be told of as taken
  std::list<P2pFlight> flights_;
  std::vector<std::byte> inbox_;
  transport::Ticket inbox_ticket_ = 0;
};

}  // namespace prunex::collective
