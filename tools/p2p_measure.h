// SPDX-License-Identifier: Apache-2.0
// One size measured between the two ends. Both call this with the same specification.
#pragma once
#include <string>

#include "plugin/base/result.h"
#include "tools/p2p.h"
#include "tools/p2p_data.h"
#include "tools/p2p_link.h"

namespace prunex::tools {

struct P2pSession {
  const P2pSpec& spec;
  int rank;
  P2pPeer& peer;
  P2pLink& link;
  const PluginLibrary& library;
};

// Whether bandwidth is by the sender's times, as ib_write_bw's: a completion over RDMA says that
// the bytes are in the other end's memory. Elsewhere it does not, and what was packed is not yet
// unpacked then.
[[nodiscard]] bool sender_clock(const P2pSpec& spec, const std::string& transport);
[[nodiscard]] Result<P2pRow> measure_p2p(const P2pSession& session, uint64_t bytes);

}  // namespace prunex::tools
