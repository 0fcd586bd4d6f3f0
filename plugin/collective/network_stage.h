// SPDX-License-Identifier: Apache-2.0
// The chunks of one rail between its leaders, several in flight: partial sums, the own part's sum,
// results. Runs once the leaders have agreed.
#pragma once
#include <cstdint>
#include <vector>

#include "plugin/collective/context.h"
#include "plugin/collective/plan.h"

namespace prunex::collective {

struct ExchangeInput;

class NetworkStage {
 public:
  NetworkStage(Context& context, const ExchangeInput& input, size_t rail);

  // true: something moved.
  [[nodiscard]] Result<bool> progress();
  // Everything received, and everything sent is with the transport.
  [[nodiscard]] bool complete() const;
  // The peer whose message is due, for naming at a deadline; -1: none.
  [[nodiscard]] int awaited_rank() const;

 private:
  struct Flight {  // one chunk under way
    size_t chunk = 0;
    uint32_t recvs_posted = 0, sends_posted = 0;  // of the partial steps
    uint32_t result_recvs_posted = 0, result_sends_posted = 0;
    std::vector<transport::Ticket> recvs, sends;  // parallel to steps' nodes below
    std::vector<uint16_t> recv_nodes, send_nodes;
    std::vector<Channel> recv_channels, send_channels;
    bool combined = false, received = false;
  };

  [[nodiscard]] Result<bool> advance(Flight& flight, const Flight* before);
  [[nodiscard]] Result<bool> post(Flight& flight, StepKind kind, uint32_t first, uint32_t count,
                                  uint32_t& cursor);
  [[nodiscard]] Result<bool> reap(std::vector<transport::Ticket>& tickets,
                                  std::vector<uint16_t>& nodes, std::vector<Channel>& channels);
  void combine(Flight& flight);
  void retire();
  [[nodiscard]] bool reduced_by_all(uint64_t chunk) const;
  [[nodiscard]] size_t slot_of(size_t chunk) const;
  [[nodiscard]] std::byte* partial_of(const Flight& flight, size_t node) const;

  Context& c_;
  const ExchangeInput& in_;
  const Plan& plan_;
  LeaderLinks& links_;
  size_t rail_;
  size_t partial_stride_ = 0;           // bytes of one node's partial in scratch
  size_t next_ = 0;                     // chunk to admit
  size_t finished_ = 0, released_ = 0;  // chunks of the exchange done so far, as published
  std::vector<Flight> flights_;
  size_t first_ = 0, active_ = 0;  // ring of flights
};

}  // namespace prunex::collective
