// SPDX-License-Identifier: Apache-2.0
// From Result<T> to C: no exception leaves an entry point, and a failure leaves its text behind.
#pragma once
#include <exception>
#include <new>
#include <utility>

#include "plugin/base/result.h"
#include "prunex/prunex.h"

namespace prunex::api {

[[nodiscard]] prunex_result_t to_c(Code code);
void set_last_error(const char* text) noexcept;
prunex_result_t report(const Error& error) noexcept;

template <class F>
prunex_result_t guard(F&& body) noexcept {
  try {
    Result<> result = body();
    return result ? PRUNEX_SUCCESS : report(result.error());
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return PRUNEX_ERROR_MEMORY;
  } catch (const std::exception& e) {
    set_last_error(e.what());
    return PRUNEX_ERROR_INTERNAL;
  }
}

[[nodiscard]] inline tl::unexpected<Error> null_argument(const char* name) {
  return fail(Code::invalid_argument, strf("%s is NULL", name));
}

template <class Enum>
Result<> check_enum(Enum value, int limit, const char* name) {
  if (static_cast<int>(value) < 0 || static_cast<int>(value) >= limit) {
    return fail(Code::invalid_argument, strf("%s %d is unknown", name, static_cast<int>(value)));
  }
  return {};
}

// Every public struct starts with its size, so that a caller built against another header is told
// so.
template <class T>
Result<> check_size(const T* s, const char* name) {
  if (s == nullptr) {
    return null_argument(name);
  }
  if (s->struct_size != sizeof(T)) {
    return fail(
        Code::invalid_argument,
        strf("%s.struct_size is %zu, this library (version %d.%d.%d) expects %zu: set it to "
             "sizeof and compile against the installed prunex.h",
             name, s->struct_size, PRUNEX_VERSION_MAJOR, PRUNEX_VERSION_MINOR, PRUNEX_VERSION_PATCH,
             sizeof(T)));
  }
  return {};
}

}  // namespace prunex::api
