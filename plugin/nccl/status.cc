// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/status.h"

namespace prunex::nccl {

Status to_status(Code code) {
  switch (code) {
    case Code::invalid_argument:
    case Code::invalid_handle:
      return kInvalidArgument;
    case Code::config:
    case Code::unsupported:
    case Code::mismatch:
    case Code::busy:
      return kInvalidUsage;
    case Code::timeout:
    case Code::peer_lost:
      return kRemoteError;
    case Code::system:
    case Code::memory:
      return kSystemError;
    case Code::internal:
      break;
  }
  return kInternalError;
}

int report(const Error& error) {
  PRUNEX_LOG(warn, "%s", error.text.c_str());
  return to_status(error.code);
}

int invalid(const char* call, const char* what) {
  PRUNEX_LOG(warn, "%s: %s", call, what);
  return kInvalidArgument;
}

}  // namespace prunex::nccl
