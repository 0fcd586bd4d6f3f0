// SPDX-License-Identifier: Apache-2.0
// From Result<T> to NCCL's codes: every failure leaves one line in NCCL's log, and no exception
// crosses the table.
#pragma once
#include <exception>
#include <new>

#include "plugin/base/log.h"
#include "plugin/base/result.h"
#include "plugin/nccl/internal_table.h"

namespace prunex::nccl {

[[nodiscard]] Status to_status(Code code);

// Says it and translates it.
[[nodiscard]] int report(const Error& error);
[[nodiscard]] int invalid(const char* call, const char* what);

template <class F>
int guard(const char* call, F&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    PRUNEX_LOG(warn, "%s: out of memory", call);
    return kSystemError;
  } catch (const std::exception& e) {
    PRUNEX_LOG(warn, "%s: %s", call, e.what());
    return kInternalError;
  } catch (...) {
    return kInternalError;
  }
}

}  // namespace prunex::nccl
