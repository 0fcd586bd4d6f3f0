// SPDX-License-Identifier: Apache-2.0
// What Net and CollNet tables share: every signature that NCCL has had for a slot is an overload,
// and the slot's type picks it. An ABI that is not covered fails to compile.
#pragma once
#include <atomic>

#include "plugin/nccl/abi/layout.h"
#include "plugin/nccl/module/library.h"
#include "plugin/nccl/module/own_contexts.h"

namespace prunex::nccl::module_side {

// Every field of every version.
template <class P>
void fill_properties(const NetProperties& from, int device, P* to) {
  *to = P{};
  to->name = const_cast<char*>(from.name);
  to->pci_path = const_cast<char*>(from.pci_path);
  to->guid = from.guid;
  to->ptr_support = from.ptr_support;
  to->speed = from.speed_mbps;
  to->port = from.port;
  to->latency = from.latency_us;
  to->max_comms = from.max_comms;
  to->max_recvs = from.max_recvs;
  if constexpr (requires { to->reg_is_global; }) {
    to->reg_is_global = from.reg_is_global;
  }
  if constexpr (requires { to->force_flush; }) {
    to->force_flush = from.force_flush;
  }
  if constexpr (requires { to->net_device_type; }) {
    to->net_device_type = abi::kNetDeviceHost;
    to->net_device_version = abi::kNetDeviceInvalidVersion;
  }
  if constexpr (requires { to->virtual_device; }) {
    to->virtual_device.count = 1;
    to->virtual_device.devices[0] = device;
  }
  if constexpr (requires { to->max_p2p_bytes; }) {
    to->max_p2p_bytes = from.max_p2p_bytes;
    to->max_coll_bytes = from.max_coll_bytes;
  }
  if constexpr (requires { to->max_multi_request_size; }) {
    to->max_multi_request_size = 1;
  }
  if constexpr (requires { to->rail_id; }) {
    to->rail_id = abi::kIdUnset;
    to->plane_id = abi::kIdUnset;
  }
}

// CollNet device i is Net device i: NCCL merges them by name and passes on the index.
struct DeviceEntry {
  static Status devices(int* count) noexcept {
    return call([&](const InternalTable& t) { return t.net.devices(count); });
  }
  template <class P>
  static Status properties(int device, P* out) noexcept {
    return properties_of(device, out, ~0);
  }
  template <class P>
  static Status properties_of(int device, P* out, int pointers) noexcept {
    return call([&](const InternalTable& t) -> int {
      if (out == nullptr) {
        return kInvalidArgument;
      }
      NetProperties from{};
      const int status = t.net.properties(device, &from);
      from.ptr_support &= pointers;
      if (status == kSuccess) {
        fill_properties(from, device, out);
      }
      return status;
    });
  }
};

// Says once per process which table NCCL chose.
template <int V>
void tell_chosen(const char* kind, std::atomic<bool>& told) {
  if (!told.exchange(true)) {
    say_what_is_used(kind, V);
  }
}

}  // namespace prunex::nccl::module_side
