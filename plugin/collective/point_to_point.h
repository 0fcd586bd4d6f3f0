// SPDX-License-Identifier: Apache-2.0
// Messages between any two ranks, beside the collectives: they take no turn in their order and need
// no third rank. The communicator's thread moves them, while it sleeps and while it waits inside a
// collective that it runs. Always over TCP, also inside a node.
#pragma once
#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plugin/bootstrap/control.h"
#include "plugin/collective/p2p_peer.h"
#include "plugin/transport/socket/socket.h"
#include "topology/world.h"

namespace prunex::collective {

struct P2pSpec {
  void* buffer = nullptr;  // of a send: only read
  size_t bytes = 0;
  int peer = -1;
  int64_t tag = 0;
  bool sends = false;
};

class PointToPoint {
 public:
  struct Place {
    int rank = 0;
    const topo::World* world = nullptr;
    Control* control = nullptr;
    double timeout_s = 0;
    std::function<Error(const Error&)> die;  // from a finding to the common story
  };
  [[nodiscard]] static Result<std::unique_ptr<PointToPoint>> open(
      const transport::SocketOptions& options, const Place& place);

  [[nodiscard]] std::string handle() const { return listener_->handle(); }
  // By rank; an empty one could not open a port.
  void set_handles(std::vector<std::string> handles) { handles_ = std::move(handles); }

  // Any thread. Whoever posts wakes the communicator's thread.
  [[nodiscard]] std::shared_ptr<Completion> post(const P2pSpec& spec);
  [[nodiscard]] bool busy() const { return busy_.load(std::memory_order_acquire); }
  [[nodiscard]] P2pCounters counters() const;

  // The communicator's thread. Until nothing moves.
  void progress();
  void poll_fds(std::vector<pollfd>& out) const;

 private:
  PointToPoint(const Place& place);
  [[nodiscard]] Result<bool> step();
  [[nodiscard]] Result<bool> accept();
  [[nodiscard]] Result<> check_deadlines() const;
  void fail_all(const Error& error);

  Place place_;
  mutable std::mutex mutex_;
  std::unique_ptr<transport::Transport> network_;
  std::unique_ptr<transport::Listener> listener_;
  std::vector<std::string> handles_;
  std::vector<std::unique_ptr<P2pOut>> out_;  // by rank; null for this one
  std::vector<std::unique_ptr<P2pIn>> in_;
  P2pCounters counters_;
  std::optional<Error> dead_;
  std::atomic<bool> busy_{false};
};

}  // namespace prunex::collective
