// SPDX-License-Identifier: Apache-2.0
// A rail leader's connections to the leaders of the same rail on the other nodes. Three per peer,
// so that every one has a fixed message order: calls and commits; partial sums; results.
#pragma once
#include <poll.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/result.h"
#include "plugin/collective/call.h"
#include "plugin/collective/table.h"
#include "plugin/transport/staging.h"
#include "plugin/transport/transport.h"

namespace prunex::collective {

enum class Channel : uint8_t { calls = 0, partials, results };
inline constexpr size_t kChannels = 3;

struct Peer {
  int rank = -1;  // of the leader at the other end
  std::unique_ptr<transport::Connection> link[kChannels];
  std::span<std::byte> inbox;  // one call message
  transport::Ticket inbox_ticket = 0;
  std::optional<CallHeader> waiting;  // arrived and not yet taken
  bool closed = false;                // no more calls will come
};

class LeaderLinks {
 public:
  // peers: by node, this node's own entry is empty. handles: each leader's listener, by node. Lower
  // nodes accept, higher ones connect. Fails at the deadline naming who is missing.
  [[nodiscard]] static Result<std::unique_ptr<LeaderLinks>> connect(
      transport::Transport& transport, transport::Listener& listener, size_t self,
      const std::vector<int>& leader_ranks, const std::vector<std::string>& handles,
      Deadline deadline);

  [[nodiscard]] size_t nodes() const { return peers_.size(); }
  [[nodiscard]] size_t self() const { return self_; }
  [[nodiscard]] Peer& peer(size_t node) { return peers_[node]; }
  [[nodiscard]] transport::Connection& link(size_t node, Channel c) {
    return *peers_[node].link[static_cast<size_t>(c)];
  }

  // Memory that chunks are sent from and received into; it outlives the links.
  void register_slots(transport::Transport& transport, std::span<std::byte> memory) {
    slots_ = transport::try_register(transport, memory.data(), memory.size());
  }
  [[nodiscard]] const transport::Region* slots() const { return slots_.get(); }

  // Queues a call message to every other node. The payload is copied, into memory that was made by
  // connect() and is used again: nothing is allocated while at most kMessages are under way.
  [[nodiscard]] Result<> send_calls(const CallHeader& header, std::span<const std::byte> payload);
  // The oldest call message of a node, if there is one; it stays until take_call(). Its payload
  // lies in the peer's inbox behind the header.
  [[nodiscard]] Result<const CallHeader*> peek_call(size_t node);
  [[nodiscard]] std::span<const std::byte> payload(size_t node) const;
  void take_call(size_t node);

  // Moves bytes on every connection. A peer that closed in an orderly way is an error only when
  // something is still wanted from it, which test() and peek_call() tell.
  void progress();
  // The same for call messages only; whether all that were queued have left.
  void progress_calls();
  [[nodiscard]] bool all_sent() const { return outgoing_.empty(); }
  void poll_fds(std::vector<pollfd>& out) const;

  uint64_t bytes_sent = 0, bytes_received = 0;  // payloads and headers

 private:
  explicit LeaderLinks(transport::Transport* transport) : inboxes_(transport) {}
  void post_inbox(Peer& peer);
  // The calls that a plugin's communicator has under way, and an abort.
  static constexpr size_t kMessages = 4;
  struct Message {
    std::vector<std::byte> bytes;
    size_t sends = 0;  // of it under way; 0: free
  };
  struct Outgoing {
    size_t node;
    transport::Ticket ticket;
    Message* message;
  };
  [[nodiscard]] Message& free_message();
  void reap_outgoing();

  size_t self_ = 0;
  transport::Staging inboxes_;                // of all peers; outlives their connections
  std::deque<Message> messages_;              // they stay where they are
  std::unique_ptr<transport::Region> slots_;  // nullptr: not registered, or nothing was
  std::vector<Peer> peers_;
  std::vector<Outgoing> outgoing_;
};

// Every connection's error as a finding about its peer.
[[nodiscard]] Error peer_error(const Peer& peer, const transport::Connection& link);

}  // namespace prunex::collective
