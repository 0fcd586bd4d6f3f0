// SPDX-License-Identifier: Apache-2.0
// Shared by the two adapters.
#pragma once
#include <mutex>

#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/tables.h"

namespace prunex::nccl::host {

// NCCL loads a plugin, inits it, asks for its devices and finalizes under one lock of the process.
std::mutex& plugin_mutex();

template <class P>
Properties widen(const P& from) {
  Properties to;
  to.name = from.name == nullptr ? "" : from.name;
  to.pci_path = from.pci_path == nullptr ? "" : from.pci_path;
  to.guid = from.guid;
  to.ptr_support = from.ptr_support;
  to.speed = from.speed;
  to.port = from.port;
  to.latency = from.latency;
  to.max_comms = from.max_comms;
  to.max_recvs = from.max_recvs;
  if constexpr (requires { from.reg_is_global; }) {
    to.reg_is_global = from.reg_is_global;
  }
  if constexpr (requires { from.net_device_type; }) {
    to.net_device_type = from.net_device_type;
    to.net_device_version = from.net_device_version;
  }
  if constexpr (requires { from.virtual_device; }) {
    to.force_flush = from.force_flush;
    to.virtual_count = from.virtual_device.count;
    to.virtual_first = from.virtual_device.devices[0];
    to.max_p2p_bytes = from.max_p2p_bytes;
    to.max_coll_bytes = from.max_coll_bytes;
  }
  if constexpr (requires { from.max_multi_request_size; }) {
    to.max_multi_request = from.max_multi_request_size;
  }
  if constexpr (requires { from.rail_id; }) {
    to.rail = from.rail_id;
    to.plane = from.plane_id;
  }
  return to;
}

// NCCL passes what fits an int to tables whose sizes are ints.
template <class Wanted>
Wanted narrow(size_t size) {
  if constexpr (sizeof(Wanted) < sizeof(size_t)) {
    PRUNEX_MUST(size <= 0x7fffffff, "%zu bytes do not fit this version", size);
  }
  return static_cast<Wanted>(size);
}

// Calls f.operator()<V>() for the version asked for.
template <class F>
auto for_version(int version, F&& f) {
  switch (version) {
    case 6:
      return f.template operator()<6>();
    case 7:
      return f.template operator()<7>();
    case 8:
      return f.template operator()<8>();
    case 9:
      return f.template operator()<9>();
    case 10:
      return f.template operator()<10>();
    case 11:
      return f.template operator()<11>();
    default:
      return f.template operator()<12>();
  }
}

}  // namespace prunex::nccl::host
