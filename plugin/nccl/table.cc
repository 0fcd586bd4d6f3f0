// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "plugin/nccl/coll_calls.h"
#include "plugin/nccl/internal_table.h"
#include "plugin/nccl/net_calls.h"
#include "plugin/nccl/tuner.h"
#include "prunex/prunex.h"

#define PRUNEX_TEXT_OF(x) #x
#define PRUNEX_TEXT(x) PRUNEX_TEXT_OF(x)

namespace prunex::nccl {
namespace {

constexpr const char* kRelease = PRUNEX_TEXT(PRUNEX_VERSION_MAJOR) "." PRUNEX_TEXT(
    PRUNEX_VERSION_MINOR) "." PRUNEX_TEXT(PRUNEX_VERSION_PATCH);

InternalTable make_table() {
  InternalTable table{};
  table.bytes = sizeof table;
  table.version = kTableVersion;
  table.release = kRelease;
  Dl_info info{};  // dli_fname lives as long as the library, which is never unloaded
  const bool known = ::dladdr(reinterpret_cast<const void*>(&prunex_internal_table), &info) != 0;
  table.file = known && info.dli_fname != nullptr ? info.dli_fname : "libprunex.so";
  table.net = net_calls();
  table.coll = coll_calls();
  table.tuner = tuner_calls();
  return table;
}

}  // namespace
}  // namespace prunex::nccl

// Answered whatever was asked for: the plugin's message can then name both versions.
const prunex::nccl::InternalTable* prunex_internal_table(uint32_t, uint32_t) {
  static const prunex::nccl::InternalTable kTable = prunex::nccl::make_table();
  return &kTable;
}
