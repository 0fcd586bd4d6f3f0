// SPDX-License-Identifier: Apache-2.0
#include "topology/hwloc_api.h"

#include <dlfcn.h>

#include <type_traits>

#include "plugin/base/library.h"

namespace prunex::topo {

void HwlocLibrary::Close::operator()(void* handle) const { dlclose(handle); }

Result<HwlocLibrary> HwlocLibrary::open(const std::string& library) {
  HwlocLibrary api;
  // NODELETE: its plugins may leave threads and handlers behind that must not lose their code.
  const auto opened = open_shared(library, RTLD_NODELETE);
  if (!opened) {
    return fail(Code::unsupported, "hwloc is not used: " + opened.error().text);
  }
  api.handle_.reset(*opened);
  const char* missing = nullptr;
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        dlsym(api.handle_.get(), name));
    missing = function == nullptr && missing == nullptr ? name : missing;
  };
  resolve(api.get_api_version, "hwloc_get_api_version");
  // Asked before anything else is looked up: another major version may well lack the rest.
  if (missing == nullptr) {
    const unsigned found = api.get_api_version();
    if (found >> 16 != HWLOC_API_VERSION >> 16) {
      return fail(
          Code::unsupported,
          strf("hwloc is not used: %s has API version 0x%x, this library was built for 0x%x",
               library.c_str(), found, unsigned{HWLOC_API_VERSION}));
    }
  }
  resolve(api.topology_init, "hwloc_topology_init");
  resolve(api.topology_destroy, "hwloc_topology_destroy");
  resolve(api.topology_load, "hwloc_topology_load");
  resolve(api.topology_set_xmlbuffer, "hwloc_topology_set_xmlbuffer");
  resolve(api.topology_set_flags, "hwloc_topology_set_flags");
  resolve(api.topology_set_components, "hwloc_topology_set_components");
  resolve(api.topology_set_io_types_filter, "hwloc_topology_set_io_types_filter");
  resolve(api.topology_is_thissystem, "hwloc_topology_is_thissystem");
  resolve(api.get_type_depth, "hwloc_get_type_depth");
  resolve(api.get_nbobjs_by_depth, "hwloc_get_nbobjs_by_depth");
  resolve(api.get_obj_by_depth, "hwloc_get_obj_by_depth");
  resolve(api.bitmap_next, "hwloc_bitmap_next");
  if (missing != nullptr) {
    return fail(Code::unsupported,
                strf("hwloc is not used: %s has no %s; version 2.1 or newer is needed",
                     library.c_str(), missing));
  }
  return api;
}

}  // namespace prunex::topo
