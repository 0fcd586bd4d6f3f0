// SPDX-License-Identifier: Apache-2.0
// What leaders of different nodes talk over: RDMA when all of them have it, else TCP. Pure
// functions of the facts, so that no two ranks choose differently.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/interfaces.h"
#include "plugin/transport/choose.h"
#include "plugin/transport/transport.h"
#include "topology/facts.h"
#include "topology/world.h"

namespace prunex::collective {

// A rank's NICs: its RDMA ports where it has any, with the address at which connections over them
// begin; else the chosen interfaces. `chosen`: not empty.
[[nodiscard]] std::vector<topo::NicFacts> nics_of(const transport::Rdma& rdma,
                                                  std::span<const Interface> chosen);

// Where not all ranks have RDMA, several ports of one address are one NIC for TCP.
void settle_nics(std::vector<topo::RankFacts>& facts);

struct NetworkChoice {
  bool rdma = false;
  std::string why;  // for people; empty: there is only one node, or nothing to say
};
[[nodiscard]] NetworkChoice choose_network(const topo::World& world,
                                           std::span<const topo::RankFacts> facts);

// The transport of the leader whose NIC that is. `meeting`: with everything but the address.
[[nodiscard]] Result<std::unique_ptr<transport::Transport>> open_network(
    const NetworkChoice& choice, const Config& config, const transport::Rdma& rdma,
    const topo::NicFacts* nic, transport::SocketOptions meeting);

}  // namespace prunex::collective
