// SPDX-License-Identifier: Apache-2.0
// Result<T>: what every control-path function returns. The data path returns plain enums instead.
#pragma once
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace prunex {

// One code per kind of remedy; include/prunex/prunex.h has the same list for C callers.
enum class Code {
  invalid_argument,  // the caller passed something wrong: fix the call
  invalid_handle,    // unknown or already destroyed handle
  config,            // a variable or configuration file cannot be understood
  mismatch,          // ranks disagree about a call; buffers are untouched
  timeout,           // a deadline passed; `rank` is the rank that was waited for
  peer_lost,         // a peer died or closed; `rank` is that peer
  system,            // the operating system refused; `sys_errno` says why
  memory,            // out of memory or address space
  unsupported,       // a valid request that this build or machine cannot serve
  busy,              // in use; try again after completion
  internal,          // a bug in this library
};

struct Error {
  Code code = Code::internal;
  std::string text;   // what, which peer or value, expected and got, and the remedy
  int sys_errno = 0;  // 0: none
  int rank = -1;      // the culprit, -1: none
};

template <class T = void>
using Result = tl::expected<T, Error>;

[[nodiscard]] inline tl::unexpected<Error> fail(Code code, std::string text, int sys_errno = 0,
                                                int rank = -1) {
  return tl::unexpected<Error>(Error{code, std::move(text), sys_errno, rank});
}

// printf-style text for messages; the plugin's libraries do not use iostreams.
[[nodiscard]] __attribute__((format(printf, 1, 2))) std::string strf(const char* format, ...);

}  // namespace prunex
