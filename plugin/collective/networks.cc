// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/networks.h"

#include <algorithm>

#include "plugin/base/address.h"

namespace prunex::collective {
namespace {

bool has_rdma(const topo::RankFacts& facts) {
  return (facts.transports & topo::kTransportVerbs) != 0;
}

topo::NicFacts nic_at(std::string name, const SocketAddress& address, bool rdma) {
  topo::NicFacts nic;
  nic.name = std::move(name);
  nic.address = host_text(address);
  nic.rdma = rdma;
  return nic;
}

}  // namespace

std::vector<topo::NicFacts> nics_of(const transport::Rdma& rdma,
                                    std::span<const Interface> chosen) {
  std::vector<topo::NicFacts> nics;
  for (const transport::RdmaPort& port : rdma.ports) {
    const Interface& meets = transport::meeting_interface(port.info, chosen);
    nics.push_back(nic_at(transport::device_name(rdma, port), meets.address, true));
  }
  if (!nics.empty()) {
    return nics;
  }
  for (const Interface& i : chosen) {
    const bool known = std::any_of(nics.begin(), nics.end(),
                                   [&](const topo::NicFacts& n) { return n.name == i.name; });
    if (!known) {
      nics.push_back(nic_at(i.name, i.address, false));
    }
  }
  return nics;
}

void settle_nics(std::vector<topo::RankFacts>& facts) {
  if (std::all_of(facts.begin(), facts.end(), has_rdma)) {
    return;
  }
  for (topo::RankFacts& f : facts) {
    std::vector<topo::NicFacts> kept;
    for (topo::NicFacts& nic : f.nics) {
      const bool known = std::any_of(kept.begin(), kept.end(), [&](const topo::NicFacts& other) {
        return other.address == nic.address;
      });
      if (!known) {
        kept.push_back(std::move(nic));
      }
    }
    f.nics = std::move(kept);
  }
}

NetworkChoice choose_network(const topo::World& world, std::span<const topo::RankFacts> facts) {
  NetworkChoice choice;
  if (world.nodes.size() < 2) {
    return choice;
  }
  std::string with, without;
  for (const topo::Node& node : world.nodes) {
    for (const topo::Leader& leader : node.leaders) {
      std::string& list = has_rdma(facts[static_cast<size_t>(leader.rank)]) ? with : without;
      list += strf("%srank %d (%s)", list.empty() ? "" : ", ", leader.rank, node.host.c_str());
    }
  }
  choice.rdma = without.empty();
  choice.why = choice.rdma    ? "leaders talk over RDMA: all of them have it"
               : with.empty() ? "leaders talk over TCP: none of them uses RDMA"
                              : "leaders talk over TCP: there is no RDMA at " + without +
                                    "; `prunex info` there says why";
  return choice;
}

Result<std::unique_ptr<transport::Transport>> open_network(const NetworkChoice& choice,
                                                           const Config& config,
                                                           const transport::Rdma& rdma,
                                                           const topo::NicFacts* nic,
                                                           transport::SocketOptions meeting) {
  if (nic != nullptr) {
    if (auto at = parse_host(nic->address, 0)) {
      meeting.address = *at;
    }
  }
  if (!choice.rdma) {
    if (config.transport == Choice::verbs) {
      return fail(Code::unsupported,
                  "PRUNEX_TRANSPORT=verbs, but not all leaders can: " + choice.why);
    }
    return transport::open_socket_transport(meeting);
  }
  const auto port =
      std::find_if(rdma.ports.begin(), rdma.ports.end(), [&](const transport::RdmaPort& p) {
        return nic != nullptr && transport::device_name(rdma, p) == nic->name;
      });
  if (port == rdma.ports.end()) {
    return fail(Code::internal, strf("a leader of RDMA without a port: %s",
                                     nic == nullptr ? "no NIC" : nic->name.c_str()));
  }
  return transport::open_verbs_transport(transport::verbs_options(config.ib, meeting, port->rail));
}

}  // namespace prunex::collective
