// SPDX-License-Identifier: Apache-2.0
// The module's one tie to libprunex.so: its table, checked, and NCCL's logger.
#pragma once
#include <atomic>
#include <cstdint>

#include "plugin/nccl/abi/types.h"

namespace prunex::nccl::module_side {

inline constexpr const char* kName = "PRUNEX";  // NCCL_NET=PRUNEX; never "IB" or "Socket"

namespace detail {
extern std::atomic<const InternalTable*> checked_table;  // null: not looked at, or no good
const InternalTable* check_library();
}  // namespace detail

// NULL when libprunex.so is from another build; the first such call says so in one line.
inline const InternalTable* library() {
  const InternalTable* const known = detail::checked_table.load(std::memory_order_acquire);
  return known != nullptr ? known : detail::check_library();
}

// The logger that init was given last; NULL is fine.
void remember_logger(Logger log);
Logger logger();

// One line through NCCL's logger; without a logger warnings go to stderr.
void say(abi::LogLevel level, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

// "NET/PRUNEX : ncclNet_v11 of FILE, libprunex VERSION of FILE".
void say_what_is_used(const char* kind, int version);

// Calls `f` with the library's table. What is behind the table does not throw, and the module
// itself neither allocates nor throws: each file has a C++ runtime of its own, and no exception
// could cross.
template <class F>
Status call(F&& f) noexcept {
  const InternalTable* const table = library();
  return table == nullptr ? kInvalidUsage : static_cast<Status>(f(*table));
}

// Sizes were int before v8 and v9.
template <class Size>
bool fits(Size size, const char* what) noexcept {
  if constexpr (sizeof(Size) == sizeof(int)) {
    if (size < 0) {
      say(abi::kLogWarn, __FILE__, __LINE__, "%s: the size is %d, it must not be negative", what,
          static_cast<int>(size));
      return false;
    }
  }
  return true;
}

}  // namespace prunex::nccl::module_side

#define PRUNEX_SAY(level, ...) \
  ::prunex::nccl::module_side::say(::prunex::nccl::abi::level, __FILE__, __LINE__, __VA_ARGS__)
