// SPDX-License-Identifier: Apache-2.0
// Calls that a rank cannot make.
#pragma once
#include "plugin/base/result.h"
#include "plugin/collective/comm.h"

namespace prunex::device {

// A call of device memory as all its ranks announce it.
[[nodiscard]] collective::CallSpec header_of(const collective::CallSpec& spec, bool offences);

// Kernels and NCCL take addresses that are multiples of the element's size. INVALID_ARGUMENT: of
// this rank, before anybody is told of the call.
[[nodiscard]] Result<> check_alignment(const collective::CallSpec& spec);

// Of a rank whose buffers are device memory that it cannot use: takes part in the announcement, so
// that all ranks get this error at once and none waits. Returns it, or what was wrong with the call
// itself. The communicator stays as it is.
[[nodiscard]] Result<> refuse_call(collective::Comm& comm, const collective::CallSpec& spec,
                                   const Error& why);

}  // namespace prunex::device
