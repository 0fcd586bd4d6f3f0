// SPDX-License-Identifier: Apache-2.0
// For builds without the header of libibverbs.
#include "plugin/transport/verbs/verbs.h"

namespace prunex::transport {
namespace {

tl::unexpected<Error> not_built() {
  return fail(Code::unsupported,
              "RDMA is not used: this prunex was built without infiniband/verbs.h; install "
              "libibverbs-dev and build again");
}

}  // namespace

Result<std::vector<verbs::PortInfo>> list_verbs_ports(const VerbsOptions&) { return not_built(); }
Result<std::unique_ptr<Transport>> open_verbs_transport(const VerbsOptions&,
                                                        std::vector<std::string>*) {
  return not_built();
}

}  // namespace prunex::transport
