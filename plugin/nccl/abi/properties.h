// SPDX-License-Identifier: Apache-2.0
// What a network device says about itself, in each version that NCCL has had.
#pragma once
#include "plugin/nccl/abi/types.h"

namespace prunex::nccl::abi {

template <int Devices>
struct VDevice {  // ncclNetVDeviceProps: the physical devices behind one virtual NIC
  int count;
  int devices[Devices];
};
using VDeviceV9 = VDevice<4>;   // v9 to v11
using VDeviceV12 = VDevice<8>;  // v12
static_assert(sizeof(VDeviceV9) == 20 && sizeof(VDeviceV12) == 36);

struct PropertiesV6 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int speed;  // Mbit/s
  int port;
  float latency;  // microseconds
  int max_comms;
  int max_recvs;
};

struct PropertiesV7 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
};

struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
};

struct PropertiesV9 {  // and v10
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  VDeviceV9 virtual_device;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
};

struct PropertiesV11 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  VDeviceV9 virtual_device;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
  int max_multi_request_size;
};

struct PropertiesV12 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  VDeviceV12 virtual_device;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
  int max_multi_request_size;
  int16_t rail_id;
  int16_t plane_id;
};

static_assert(sizeof(PropertiesV6) == 48 && sizeof(PropertiesV7) == 56);
static_assert(sizeof(PropertiesV8) == 64 && sizeof(PropertiesV9) == 104);
static_assert(sizeof(PropertiesV11) == 112 && sizeof(PropertiesV12) == 128);

static_assert(offsetof(PropertiesV6, speed) == 28 && offsetof(PropertiesV6, max_recvs) == 44);
static_assert(offsetof(PropertiesV7, speed) == 28 && offsetof(PropertiesV7, max_recvs) == 44);
static_assert(offsetof(PropertiesV7, net_device_type) == 48);
static_assert(offsetof(PropertiesV8, reg_is_global) == 28 && offsetof(PropertiesV8, speed) == 32);
static_assert(offsetof(PropertiesV8, max_recvs) == 48);
static_assert(offsetof(PropertiesV8, net_device_type) == 52);

// v9 to v12 grow at the end only, but for the virtual device's list.
template <class P>
constexpr bool kLaidOutAsV9 = offsetof(P, name) == 0 && offsetof(P, pci_path) == 8 &&
                              offsetof(P, guid) == 16 && offsetof(P, ptr_support) == 24 &&
                              offsetof(P, reg_is_global) == 28 && offsetof(P, force_flush) == 32 &&
                              offsetof(P, speed) == 36 && offsetof(P, port) == 40 &&
                              offsetof(P, latency) == 44 && offsetof(P, max_comms) == 48 &&
                              offsetof(P, max_recvs) == 52 && offsetof(P, net_device_type) == 56 &&
                              offsetof(P, net_device_version) == 60 &&
                              offsetof(P, virtual_device) == 64;
static_assert(kLaidOutAsV9<PropertiesV9> && kLaidOutAsV9<PropertiesV11>);
static_assert(kLaidOutAsV9<PropertiesV12>);
static_assert(offsetof(PropertiesV9, max_p2p_bytes) == 88);
static_assert(offsetof(PropertiesV9, max_coll_bytes) == 96);
static_assert(offsetof(PropertiesV11, max_p2p_bytes) == 88);
static_assert(offsetof(PropertiesV11, max_coll_bytes) == 96);
static_assert(offsetof(PropertiesV11, max_multi_request_size) == 104);
static_assert(offsetof(PropertiesV12, max_p2p_bytes) == 104);
static_assert(offsetof(PropertiesV12, max_coll_bytes) == 112);
static_assert(offsetof(PropertiesV12, max_multi_request_size) == 120);
static_assert(offsetof(PropertiesV12, rail_id) == 124 && offsetof(PropertiesV12, plane_id) == 126);

}  // namespace prunex::nccl::abi
