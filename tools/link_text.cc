// SPDX-License-Identifier: Apache-2.0
#include "tools/link_text.h"

#include "plugin/base/text.h"

namespace prunex::tools {

std::string link_text(int nodes, const LinkFacts& facts) {
  const bool paced = !facts.pacing_rate.empty();
  if (nodes < 2) {
    return "none";
  }
  if (facts.loopback || facts.netlab == "loopback") {
    return paced ? "paced loopback" : "loopback";
  }
  return std::string(paced ? "paced " : "") +
         (facts.netlab == "netns" ? "network namespaces" : "network as it is");
}

std::string link_line(int nodes, const LinkFacts& facts, const char* paced) {
  if (!facts.pacing_rate.empty()) {
    return strf("# %s: at most %s out of each %s; no link's delay or queue is emulated\n",
                link_text(nodes, facts).c_str(), facts.pacing_rate.c_str(), paced);
  }
  return facts.netlab.empty() ? std::string()
                              : strf("# emulated network: %s, rate of each link: %s\n",
                                     facts.netlab.c_str(), facts.netlab_rate.c_str());
}

}  // namespace prunex::tools
