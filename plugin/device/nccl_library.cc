// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "plugin/base/library.h"

namespace prunex::device {
namespace {

constexpr int kOldest = 2701;  // grouped collectives that we use are as they are now

}  // namespace

std::string nccl_version_text(int v) {
  return v < 10000 ? strf("%d.%d.%d", v / 1000, v % 1000 / 100, v % 100)
                   : strf("%d.%d.%d", v / 10000, v % 10000 / 100, v % 100);
}

Result<NcclApi> open_nccl(const std::string& file) {
  const auto opened = open_shared(file);
  if (!opened) {
    return fail(Code::unsupported,
                "device memory needs NCCL (put libnccl.so.2 into LD_LIBRARY_PATH, or import the "
                "framework that brings it first): " +
                    opened.error().text);
  }
  void* const library = *opened;
  NcclApi api;
  std::string missing;
  const auto look_up = [&](auto& function, const char* name, bool needed) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr && needed) {
      missing += missing.empty() ? name : std::string(", ") + name;
    }
  };
#define PRUNEX_NCCL(name, needed) look_up(api.name, "nccl" #name, needed)
  PRUNEX_NCCL(GetVersion, true);
  PRUNEX_NCCL(GetUniqueId, true);
  PRUNEX_NCCL(CommInitRank, true);
  PRUNEX_NCCL(AllReduce, true);
  PRUNEX_NCCL(Reduce, true);
  PRUNEX_NCCL(ReduceScatter, true);
  PRUNEX_NCCL(AllGather, true);
  PRUNEX_NCCL(Broadcast, true);
  PRUNEX_NCCL(GroupStart, true);
  PRUNEX_NCCL(GroupEnd, true);
  PRUNEX_NCCL(CommGetAsyncError, true);
  PRUNEX_NCCL(CommAbort, true);
  PRUNEX_NCCL(CommDestroy, true);
  PRUNEX_NCCL(GetErrorString, true);
  PRUNEX_NCCL(CommInitRankConfig, false);
  PRUNEX_NCCL(CommSplit, false);
  PRUNEX_NCCL(GetLastError, false);
#undef PRUNEX_NCCL
  Dl_info info{};
  const bool known = api.GetVersion != nullptr &&
                     ::dladdr(reinterpret_cast<const void*>(api.GetVersion), &info) != 0 &&
                     info.dli_fname != nullptr;
  api.file = known ? info.dli_fname : file;
  if (!missing.empty()) {
    ::dlclose(library);
    return fail(Code::unsupported, strf("%s lacks %s: NCCL 2.7 or newer is needed",
                                        api.file.c_str(), missing.c_str()));
  }
  if (api.GetVersion(&api.version) != nccl::kSuccess || api.version < kOldest) {
    return fail(Code::unsupported, strf("%s is NCCL %s: 2.7 or newer is needed", api.file.c_str(),
                                        nccl_version_text(api.version).c_str()));
  }
  return api;  // it stays open
}

}  // namespace prunex::device
