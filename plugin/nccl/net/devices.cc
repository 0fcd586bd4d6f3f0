// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/devices.h"

#include <algorithm>
#include <tuple>

#include "plugin/base/digest.h"
#include "topology/discover.h"

namespace prunex::nccl {
namespace {

std::string sysfs_path(const topo::Place& place) {
  std::string out;
  for (const std::string& part : place.path) {
    out += (out.empty() ? "/sys/devices/" : "/") + part;
  }
  return out;
}

Result<std::vector<Interface>> let_through(std::span<const Interface> have, const Config& config) {
  const auto fitting = of_family(have, config.family);
  if (!fitting) {
    return tl::unexpected(fitting.error());
  }
  return choose_interfaces(*fitting, config.socket_ifname);
}

void look_up(const topo::Machine& machine, const std::string& name, Device* d) {
  d->speed_mbps = kAssumedSpeedMbps;
  if (const int nic = topo::find_nic(machine, name); nic >= 0) {
    const topo::Nic& found = machine.nics[static_cast<size_t>(nic)];
    d->pci_path = sysfs_path(found.place);
    d->speed_mbps = found.speed_mbps > 0 ? found.speed_mbps : kAssumedSpeedMbps;
  }
}

}  // namespace

Result<std::vector<Device>> choose_devices(std::span<const Interface> have,
                                           const topo::Machine& machine, const Config& config) {
  auto chosen = let_through(have, config);
  if (!chosen) {
    return tl::unexpected(chosen.error());
  }
  std::vector<Device> out;
  for (const Interface& i : *chosen) {
    if (std::any_of(out.begin(), out.end(), [&](const Device& d) { return d.name == i.name; })) {
      continue;  // its first address is its best
    }
    Device d;
    d.name = i.name;
    d.address = i.address;
    look_up(machine, i.name, &d);
    d.guid = Digest().add(d.pci_path).add(d.name).value();
    out.push_back(std::move(d));
  }
  std::sort(out.begin(), out.end(), [](const Device& a, const Device& b) {
    return std::forward_as_tuple(a.pci_path.empty(), a.pci_path, a.name) <
           std::forward_as_tuple(b.pci_path.empty(), b.pci_path, b.name);
  });
  for (auto d = out.begin(); d != out.end(); ++d) {  // interfaces of one PCI function are its ports
    d->port = static_cast<int>(std::count_if(out.begin(), d, [&](const Device& other) {
      return !d->pci_path.empty() && other.pci_path == d->pci_path;
    }));
  }
  return out;
}

Result<std::vector<Device>> choose_rdma_devices(const transport::Rdma& rdma,
                                                std::span<const Interface> have,
                                                const topo::Machine& machine,
                                                const Config& config) {
  const auto chosen = let_through(have, config);
  if (!chosen) {
    return tl::unexpected(chosen.error());
  }
  std::vector<Device> out;
  for (const transport::RdmaPort& p : rdma.ports) {
    Device d;
    d.rdma = true;
    d.rail = p.rail;
    d.name = transport::device_name(rdma, p);
    look_up(machine, p.info.device, &d);
    // By function and not by GUID, which the functions of one card may share.
    d.guid = Digest().add(d.pci_path).add(p.info.device).value();
    d.port = p.info.port;
    d.address = transport::meeting_interface(p.info, *chosen).address;
    out.push_back(std::move(d));
  }
  return out;
}

Result<FoundDevices> find_devices(const Config& config) {
  auto rdma = transport::find_rdma(config);
  if (!rdma) {
    return tl::unexpected(rdma.error());
  }
  auto have = list_interfaces();
  if (!have) {
    return tl::unexpected(have.error());
  }
  // hwloc would add nothing to what the kernel says about network interfaces.
  topo::DiscoverOptions options;
  options.hwloc = false;
  const topo::Machine machine = topo::discover(options);
  auto devices = rdma->usable() ? choose_rdma_devices(*rdma, *have, machine, config)
                                : choose_devices(*have, machine, config);
  if (!devices) {
    return tl::unexpected(devices.error());
  }
  return FoundDevices{*std::move(devices), *std::move(rdma)};
}

}  // namespace prunex::nccl
