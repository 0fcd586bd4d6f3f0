// SPDX-License-Identifier: Apache-2.0
// Where messages between two ranks come in at a communicator's creation.
#include "plugin/base/log.h"
#include "plugin/base/wire.h"
#include "plugin/collective/comm.h"

namespace prunex::collective {

// Collective. A rank that finds no port to listen on costs only the messages to it.
Result<> Comm::open_point_to_point(const topo::RankFacts& own) {
  if (context_.world.size == 1) {
    return {};
  }
  transport::SocketOptions options;
  const topo::Node& node = context_.world.nodes[context_.node];
  int nic = own.nics.empty() ? -1 : 0;
  for (const topo::Leader& leader : node.leaders) {
    nic = leader.rank == context_.rank && leader.nic >= 0 ? leader.nic : nic;
  }
  if (nic >= 0) {
    if (auto at = parse_host(own.nics[static_cast<size_t>(nic)].address, 0)) {
      options.address = *at;
    }
  }
  if (auto range = parse_port_range(options_.config.port_range)) {
    options.ports = *range;
  }
  options.streams = options_.config.streams;
  options.refused_s = 3;  // a listener lives as long as its communicator
  PointToPoint::Place place;
  place.rank = context_.rank;
  place.world = &context_.world;
  place.control = control_.get();
  place.timeout_s = options_.config.timeout_s;
  place.die = [this](const Error& finding) { return die_of_message(finding); };
  auto opened = PointToPoint::open(options, place);
  if (!opened) {
    PRUNEX_LOG(info, "no messages can be sent to this rank: %s", opened.error().text.c_str());
    // It may still send: on any port of the kernel's choice.
    options.ports = {};
    opened = PointToPoint::open(options, place);
  }
  const bool listens = opened && (options_.config.port_range.empty() || options.ports.lo != 0);
  auto handles = agree(opened ? Result<>() : Result<>(tl::unexpected(opened.error())),
                       listens ? (*opened)->handle() : std::string());
  if (!handles) {
    return tl::unexpected(handles.error());
  }
  messages_ = std::move(*opened);
  messages_->set_handles(std::move(*handles));
  return {};
}

}  // namespace prunex::collective
