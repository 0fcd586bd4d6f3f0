// SPDX-License-Identifier: Apache-2.0
// hwloc's view, copied into plain data. The topology is never restricted in place
// (hwloc_topology_restrict fails on memory without processors); who may run where is our own
// business.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>

#include "topology/discover.h"
#include "topology/hwloc_api.h"

namespace prunex::topo {
namespace {

using Object = const hwloc_obj*;

// hwloc's PCI back end and its component list are not safe against a second load in parallel.
constinit std::mutex hwloc_lock;

struct Destroy {
  const HwlocLibrary* api;
  void operator()(hwloc_topology_t topology) const { api->topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

Result<Topology> make_topology(const HwlocLibrary& api) {
  hwloc_topology_t raw = nullptr;
  if (api.topology_init(&raw) != 0) {
    return fail(Code::unsupported, "hwloc is not used: it cannot create a topology");
  }
  Topology topology(raw, Destroy{&api});
  // x86 binds this thread to every CPU in turn; the others would start GPU drivers in our host's
  // process. A component that this build of hwloc lacks is refused, which is as good.
  for (const char* component : {"x86", "cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"}) {
    (void)api.topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  // A restricted cpuset must not hide the NUMA nodes that devices are at.
  (void)api.topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  (void)api.topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  return topology;
}

std::string info(Object object, std::string_view name) {
  for (unsigned i = 0; i < object->infos_count; ++i) {
    if (object->infos[i].name == name) {
      return object->infos[i].value;
    }
  }
  return {};
}

// hwloc's built-in parser, the one in use when its plugins are not found, knows no comments, and no
// blank line before the first element.
std::string without_comments(std::string xml) {
  for (size_t at = 0; (at = xml.find("<!--", at)) != xml.npos;) {
    size_t end = xml.find("-->", at + 4);
    end = end == xml.npos ? end : xml.find_first_not_of(" \t\r\n", end + 3);
    xml.erase(at, end == xml.npos ? end : end - at);
  }
  return xml;
}

// hwloc's parsers may lose memory on half a file, so a cut one is not even shown to them.
bool is_whole(std::string_view xml) {
  const size_t last = xml.find_last_not_of(" \t\r\n");
  return last != xml.npos && xml.substr(0, last + 1).ends_with("</topology>");
}

class Reader {
 public:
  Reader(const HwlocLibrary& api, hwloc_topology_t topology) : api_(api), topology_(topology) {}

  Machine read() {
    if (Object root = api_.get_obj_by_depth(topology_, 0, 0)) {
      machine_.host = info(root, "HostName");
    }
    each(api_.get_type_depth(topology_, HWLOC_OBJ_PACKAGE), [this](Object object) {
      machine_.packages.push_back({static_cast<int>(object->os_index), cpus(object->cpuset)});
    });
    each(HWLOC_TYPE_DEPTH_NUMANODE, [this](Object object) {
      machine_.numas.push_back({static_cast<int>(object->os_index), -1, cpus(object->cpuset),
                                object->attr->numanode.local_memory});
    });
    settle(machine_);
    each(HWLOC_TYPE_DEPTH_PCI_DEVICE, [this](Object object) { read_gpu(object); });
    each(HWLOC_TYPE_DEPTH_OS_DEVICE, [this](Object object) { read_net(object); });
    each(HWLOC_TYPE_DEPTH_OS_DEVICE, [this](Object object) { read_rdma(object); });
    settle(machine_);
    return std::move(machine_);
  }

 private:
  template <class Visit>
  void each(int depth, Visit visit) {
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) {
      return;
    }
    const unsigned n = api_.get_nbobjs_by_depth(topology_, depth);
    for (unsigned i = 0; i < n; ++i) {
      if (Object object = api_.get_obj_by_depth(topology_, depth, i)) {
        visit(object);
      }
    }
  }

  CpuSet cpus(hwloc_const_bitmap_t bitmap) const {
    CpuSet set;
    // A full bitmap has no end.
    for (int i = -1; bitmap != nullptr && (i = api_.bitmap_next(bitmap, i)) >= 0 &&
                     static_cast<size_t>(i) < CpuSet::kLimit;) {
      set.add(static_cast<size_t>(i));
    }
    return set;
  }

  static std::string address(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
    return pci_address(strf("%04x:%02x:%02x.%01x", unsigned{pci.domain}, unsigned{pci.bus},
                            unsigned{pci.dev}, unsigned{pci.func}));
  }

  Place place(Object object) const {
    Place out;
    for (; object != nullptr; object = object->parent) {
      if (object->type == HWLOC_OBJ_PCI_DEVICE) {
        out.path.push_back(address(object->attr->pcidev));
      } else if (object->type == HWLOC_OBJ_BRIDGE) {
        const hwloc_obj_attr_u::hwloc_bridge_attr_s& bridge = object->attr->bridge;
        out.path.push_back(bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI
                               ? address(bridge.upstream.pci)
                               : strf("pci%04x:%02x", unsigned{bridge.downstream.pci.domain},
                                      unsigned{bridge.downstream.pci.secondary_bus}));
      } else if (object->type != HWLOC_OBJ_OS_DEVICE && object->type != HWLOC_OBJ_MISC) {
        break;
      }
    }
    std::reverse(out.path.begin(), out.path.end());
    if (object == nullptr) {
      return out;
    }
    out.numa = numa_of(machine_, cpus(object->cpuset));
    if (out.numa < 0 && object->nodeset != nullptr) {
      // Beside memory without processors; unless it is beside several.
      const int first = api_.bitmap_next(object->nodeset, -1);
      out.numa = first >= 0 && api_.bitmap_next(object->nodeset, first) < 0 ? first : -1;
    }
    for (; object != nullptr; object = object->parent) {
      if (object->type == HWLOC_OBJ_PACKAGE) {
        out.package = static_cast<int>(object->os_index);
      }
    }
    return out;
  }

  void read_gpu(Object object) {
    const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci = object->attr->pcidev;
    std::vector<Object> cuda, nvml;
    for (Object child = object->io_first_child; child; child = child->next_sibling) {
      const std::string backend = info(child, "Backend");
      if (backend == "CUDA") {
        cuda.push_back(child);
      } else if (backend == "NVML") {
        nvml.push_back(child);
      }
    }
    const bool display = pci.class_id == 0x0302 || pci.class_id == 0x0300;
    if (cuda.empty() && nvml.empty() && !(pci.vendor_id == 0x10de && display)) {
      return;
    }
    // A GPU cut into instances shows several devices on one function.
    const size_t n = std::max<size_t>(1, cuda.empty() ? nvml.size() : cuda.size());
    for (size_t i = 0; i < n; ++i) {
      Gpu gpu{address(pci), "", info(object, "PCIDevice"), place(object)};
      for (const auto* list : {&cuda, &nvml}) {
        if (i < list->size()) {
          const std::string uuid = info((*list)[i], "NVIDIAUUID");
          const std::string model = info((*list)[i], "GPUModel");
          gpu.uuid = uuid.empty() ? gpu.uuid : uuid;
          gpu.model = model.empty() ? gpu.model : model;
        }
      }
      machine_.gpus.push_back(std::move(gpu));
    }
  }

  static int speed(Object object) {
    const std::string text = info(object, "LinkSpeedMbps");
    const long value = std::strtol(text.c_str(), nullptr, 10);
    return value > 0 && value < 10'000'000 ? static_cast<int>(value) : 0;
  }

  static bool has_name(Object object) {
    return object->name != nullptr && *object->name != '\0' && std::strcmp(object->name, "lo") != 0;
  }

  void read_net(Object object) {
    if (object->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && has_name(object)) {
      machine_.nics.push_back({object->name, "", speed(object), place(object)});
    }
  }

  void read_rdma(Object object) {
    if (object->attr->osdev.type != HWLOC_OBJ_OSDEV_OPENFABRICS || !has_name(object)) {
      return;
    }
    bool joined = false;
    Place at = place(object);
    for (Nic& nic : machine_.nics) {
      if (!nic.netdev.empty() && nic.ibdev.empty() && !at.path.empty() &&
          nic.place.path == at.path) {
        nic.ibdev = object->name;
        nic.speed_mbps = nic.speed_mbps > 0 ? nic.speed_mbps : speed(object);
        joined = true;
      }
    }
    if (!joined) {
      machine_.nics.push_back({"", object->name, speed(object), std::move(at)});
    }
  }

  const HwlocLibrary& api_;
  hwloc_topology_t topology_;
  Machine machine_;
};

}  // namespace

Result<Machine> discover_hwloc(const std::string& library) {
  const std::lock_guard lock(hwloc_lock);
  const auto api = HwlocLibrary::open(library);
  if (!api) {
    return tl::unexpected(api.error());
  }
  auto topology = make_topology(*api);
  if (!topology) {
    return tl::unexpected(topology.error());
  }
  if (api->topology_load(topology->get()) != 0) {
    return fail(Code::unsupported, "hwloc is not used: it cannot load this machine's topology");
  }
  if (api->topology_is_thissystem(topology->get()) == 0) {
    return fail(Code::unsupported,
                "hwloc is not used: an HWLOC_* variable makes it describe another machine");
  }
  Machine machine = Reader(*api, topology->get()).read();
  machine.source = "hwloc";
  return machine;
}

Result<Machine> parse_hwloc_xml(const std::string& library, const std::string& text,
                                const std::string& name) {
  const std::string xml = without_comments(text);
  const std::lock_guard lock(hwloc_lock);
  const auto api = HwlocLibrary::open(library);
  if (!api) {
    return fail(api.error().code, "cannot load '" + name + "': " + api.error().text);
  }
  auto topology = make_topology(*api);
  if (!topology) {
    return tl::unexpected(topology.error());
  }
  // A buffer set here outranks HWLOC_XMLFILE and its kin. Its length includes the final NUL.
  if (!is_whole(xml) || xml.size() >= INT32_MAX ||
      api->topology_set_xmlbuffer(topology->get(), xml.c_str(), static_cast<int>(xml.size() + 1)) !=
          0 ||
      api->topology_load(topology->get()) != 0) {
    return fail(Code::config, "'" + name +
                                  "' is not a topology that hwloc reads; expected what "
                                  "`lstopo --of xml` writes");
  }
  Machine machine = Reader(*api, topology->get()).read();
  machine.source = "hwloc, file " + name;
  return machine;
}

}  // namespace prunex::topo
