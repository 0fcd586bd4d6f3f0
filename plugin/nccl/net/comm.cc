// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/comm.h"

#include <algorithm>

#include "plugin/base/log.h"
#include "plugin/nccl/status.h"

namespace prunex::nccl {

NetComm::NetComm(Tag tag_of, Link link) : Object(tag_of), link_(std::move(link)) {
  stats().connects.add(1);
  stats().open.fetch_add(1);
  PRUNEX_LOG(trace, "%s %s", tag_of == Tag::send ? "sending on" : "receiving on",
             connection().describe().c_str());
}

// The last comm of a communicator to close sums up.
NetComm::~NetComm() {
  if (stats().open.fetch_sub(1) == 1) {
    Totals totals;
    totals.add(stats());
    PRUNEX_LOG(info, "communicator %#llx: %s", static_cast<unsigned long long>(context().comm_id),
               summary(totals).c_str());
    write_metrics();
  }
}

int NetComm::test(Request& request, int* done, int* bytes) {
  *done = 0;
  if (!request.done) {
    if (const int status = pump(&request); status != kSuccess) {
      return status;
    }
  }
  if (request.done) {
    *done = 1;
    if (bytes != nullptr) {
      bytes[0] = static_cast<int>(std::min<size_t>(request.bytes, INT32_MAX));
    }
    request.used = false;
  }
  return kSuccess;
}

Error buffer_was_taken() {
  return {Code::invalid_argument, "a buffer was deregistered before its message was done"};
}

int NetComm::broken(const Error& why) {
  if (status_ == kSuccess) {
    stats().failures.add(1);
    status_ = report(why);
  }
  return status_;
}

}  // namespace prunex::nccl
