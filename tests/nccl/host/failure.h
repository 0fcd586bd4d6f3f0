// SPDX-License-Identifier: Apache-2.0
// The stand-in's own way to fail: its bodies run in processes where GoogleTest does not see them.
#pragma once
#include <cstdio>
#include <stdexcept>
#include <string>

namespace prunex::nccl::host {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Arguments>
std::string format(const char* how, Arguments... arguments) {
  char text[1024];
  if constexpr (sizeof...(arguments) == 0) {
    std::snprintf(text, sizeof text, "%s", how);
  } else {
    std::snprintf(text, sizeof text, how, arguments...);
  }
  return text;
}

template <class... Arguments>
[[noreturn]] void fail_at(const char* file, int line, const char* what, const char* how,
                          Arguments... arguments) {
  throw Failure(format("%s:%d: %s: ", file, line, what) + format(how, arguments...));
}

}  // namespace prunex::nccl::host

// Ends the body when the condition does not hold; a printf format and its values say more.
#define PRUNEX_MUST(condition, ...)                                                  \
  do {                                                                               \
    if (!(condition)) {                                                              \
      ::prunex::nccl::host::fail_at(__FILE__, __LINE__, #condition, "" __VA_ARGS__); \
    }                                                                                \
  } while (0)
