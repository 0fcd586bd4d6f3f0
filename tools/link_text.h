// SPDX-License-Identifier: Apache-2.0
// What joins the nodes of a measurement, for the reader of its figures.
#pragma once
#include <string>

namespace prunex::tools {

struct LinkFacts {
  std::string netlab, netlab_rate;  // the emulated network, as scripts/netlab.sh says; empty: none
  std::string pacing_rate;          // PRUNEX_PACING_RATE; empty: not set
  bool loopback = false;            // known to be the interface lo
};

// "none" on one node, "paced loopback", "network namespaces", ...
[[nodiscard]] std::string link_text(int nodes, const LinkFacts& facts);
// The table's line about it, with its end; empty where the network is as it is. paced: what has the
// rate, such as "node".
[[nodiscard]] std::string link_line(int nodes, const LinkFacts& facts, const char* paced);

}  // namespace prunex::tools
