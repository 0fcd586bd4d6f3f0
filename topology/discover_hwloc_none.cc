// SPDX-License-Identifier: Apache-2.0
// Stands in for discover_hwloc.cc where hwloc's header was absent at build time.
#include "topology/discover.h"

namespace prunex::topo {

Result<Machine> discover_hwloc(const std::string&) {
  return fail(Code::unsupported, "hwloc is not used: this build has no support for it");
}

Result<Machine> parse_hwloc_xml(const std::string&, const std::string&, const std::string& name) {
  return fail(
      Code::unsupported,
      "cannot load '" + name + "': this build has no hwloc support; build it with libhwloc-dev");
}

}  // namespace prunex::topo
