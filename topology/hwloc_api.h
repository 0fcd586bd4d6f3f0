// SPDX-License-Identifier: Apache-2.0
// The part of hwloc that we call, opened at run time: nothing here is linked against the library,
// so only its non-inline functions may be used.
#pragma once
#include <hwloc.h>

#include <memory>
#include <string>

#include "plugin/base/result.h"

namespace prunex::topo {

class HwlocLibrary {
 public:
  // Fails when the library is absent, too old, or of another major version than its header here.
  [[nodiscard]] static Result<HwlocLibrary> open(const std::string& library);

  decltype(&hwloc_get_api_version) get_api_version = nullptr;
  decltype(&hwloc_topology_init) topology_init = nullptr;
  decltype(&hwloc_topology_destroy) topology_destroy = nullptr;
  decltype(&hwloc_topology_load) topology_load = nullptr;
  decltype(&hwloc_topology_set_xmlbuffer) topology_set_xmlbuffer = nullptr;
  decltype(&hwloc_topology_set_flags) topology_set_flags = nullptr;
  decltype(&hwloc_topology_set_components) topology_set_components = nullptr;
  decltype(&hwloc_topology_set_io_types_filter) topology_set_io_types_filter = nullptr;
  decltype(&hwloc_topology_is_thissystem) topology_is_thissystem = nullptr;
  decltype(&hwloc_get_type_depth) get_type_depth = nullptr;
  decltype(&hwloc_get_nbobjs_by_depth) get_nbobjs_by_depth = nullptr;
  decltype(&hwloc_get_obj_by_depth) get_obj_by_depth = nullptr;
  decltype(&hwloc_bitmap_next) bitmap_next = nullptr;

 private:
  struct Close {
    void operator()(void* handle) const;
  };
  std::unique_ptr<void, Close> handle_;
};

}  // namespace prunex::topo
