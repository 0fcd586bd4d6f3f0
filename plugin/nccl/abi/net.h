// SPDX-License-Identifier: Apache-2.0
// ncclNet_v6 to ncclNet_v12: tables of functions behind the symbols ncclNetPlugin_vN. Slots that a
// network may leave NULL: reg_mr_dmabuf, get_device_mr, irecv_consumed, make_vdevice, set_net_attr.
#pragma once
#include "plugin/nccl/abi/properties.h"

namespace prunex::nccl::abi {

// Signatures that several versions share. comm, mr, request are the plugin's own.
using InitLog = Status(Logger log);
using InitV10 = Status(Logger log, ProfilerCallback* profiler);
using InitV11 = Status(void** ctx, uint64_t comm_id, CommConfig* config, Logger log,
                       ProfilerCallback* profiler);
using Devices = Status(int* count);
template <class Properties>
using GetProperties = Status(int device, Properties* out);
using Listen = Status(int device, void* handle, void** listen_comm);
using ListenV11 = Status(void* ctx, int device, void* handle, void** listen_comm);
using ConnectV6 = Status(int device, void* handle, void** send_comm);
using ConnectV7 = Status(int device, void* handle, void** send_comm, DeviceHandle** offload);
using ConnectV10 = Status(int device, CommConfig* config, void* handle, void** send_comm,
                          DeviceHandle** offload);
using ConnectV11 = Status(void* ctx, int device, void* handle, void** send_comm,
                          DeviceHandle** offload);
using AcceptV6 = Status(void* listen_comm, void** recv_comm);
using AcceptV7 = Status(void* listen_comm, void** recv_comm, DeviceHandle** offload);
template <class Size>
using RegMr = Status(void* comm, void* data, Size size, int type, void** mr);
using RegMrDmabuf = Status(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                           void** mr);
using DeregMr = Status(void* comm, void* mr);
template <class Size>
using Isend = Status(void* comm, void* data, Size size, int tag, void* mr, void** request);
using IsendV10 = Status(void* comm, void* data, size_t size, int tag, void* mr, void* event,
                        void** request);
template <class Size>
using Irecv = Status(void* comm, int n, void** data, Size* sizes, int* tags, void** mrs,
                     void** request);
using IrecvV10 = Status(void* comm, int n, void** data, size_t* sizes, int* tags, void** mrs,
                        void** events, void** request);
using Iflush = Status(void* comm, int n, void** data, int* sizes, void** mrs, void** request);
using Test = Status(void* request, int* done, int* sizes);
using Close = Status(void* comm);
using GetDeviceMr = Status(void* comm, void* mr, void** device_mr);
using IrecvConsumed = Status(void* comm, int n, void* request);
template <class Virtual>
using MakeVDevice = Status(int* device, Virtual* what);
using Finalize = Status(void* ctx);
using SetNetAttr = Status(void* ctx, NetAttr* attr);

struct NetV6 {
  const char* name;
  InitLog* init;
  Devices* devices;
  GetProperties<PropertiesV6>* get_properties;
  Listen* listen;
  ConnectV6* connect;
  AcceptV6* accept;
  RegMr<int>* reg_mr;
  RegMrDmabuf* reg_mr_dmabuf;
  DeregMr* dereg_mr;
  Isend<int>* isend;
  Irecv<int>* irecv;
  Iflush* iflush;
  Test* test;
  Close *close_send, *close_recv, *close_listen;
};

// v7 and v8 differ in the properties and in regMr's size.
template <class Properties, class MrSize>
struct NetWithOffload {
  const char* name;
  InitLog* init;
  Devices* devices;
  GetProperties<Properties>* get_properties;
  Listen* listen;
  ConnectV7* connect;
  AcceptV7* accept;
  RegMr<MrSize>* reg_mr;
  RegMrDmabuf* reg_mr_dmabuf;
  DeregMr* dereg_mr;
  Isend<int>* isend;
  Irecv<int>* irecv;
  Iflush* iflush;
  Test* test;
  Close *close_send, *close_recv, *close_listen;
  GetDeviceMr* get_device_mr;
  IrecvConsumed* irecv_consumed;
};
using NetV7 = NetWithOffload<PropertiesV7, int>;
using NetV8 = NetWithOffload<PropertiesV8, size_t>;

struct NetV9 {
  const char* name;
  InitLog* init;
  Devices* devices;
  GetProperties<PropertiesV9>* get_properties;
  Listen* listen;
  ConnectV7* connect;
  AcceptV7* accept;
  RegMr<size_t>* reg_mr;
  RegMrDmabuf* reg_mr_dmabuf;
  DeregMr* dereg_mr;
  Isend<size_t>* isend;
  Irecv<size_t>* irecv;
  Iflush* iflush;
  Test* test;
  Close *close_send, *close_recv, *close_listen;
  GetDeviceMr* get_device_mr;
  IrecvConsumed* irecv_consumed;
  MakeVDevice<VDeviceV9>* make_vdevice;
};

struct NetV10 {
  const char* name;
  InitV10* init;
  Devices* devices;
  GetProperties<PropertiesV9>* get_properties;
  Listen* listen;
  ConnectV10* connect;
  AcceptV7* accept;
  RegMr<size_t>* reg_mr;
  RegMrDmabuf* reg_mr_dmabuf;
  DeregMr* dereg_mr;
  IsendV10* isend;
  IrecvV10* irecv;
  Iflush* iflush;
  Test* test;
  Close *close_send, *close_recv, *close_listen;
  GetDeviceMr* get_device_mr;
  IrecvConsumed* irecv_consumed;
  MakeVDevice<VDeviceV9>* make_vdevice;
};

// v11 and v12 differ in the properties only.
template <class Properties, class Virtual>
struct NetWithContext {
  const char* name;
  InitV11* init;
  Devices* devices;
  GetProperties<Properties>* get_properties;
  ListenV11* listen;
  ConnectV11* connect;
  AcceptV7* accept;
  RegMr<size_t>* reg_mr;
  RegMrDmabuf* reg_mr_dmabuf;
  DeregMr* dereg_mr;
  IsendV10* isend;
  IrecvV10* irecv;
  Iflush* iflush;
  Test* test;
  Close *close_send, *close_recv, *close_listen;
  GetDeviceMr* get_device_mr;
  IrecvConsumed* irecv_consumed;
  MakeVDevice<Virtual>* make_vdevice;
  Finalize* finalize;
  SetNetAttr* set_net_attr;
};
using NetV11 = NetWithContext<PropertiesV11, VDeviceV9>;
using NetV12 = NetWithContext<PropertiesV12, VDeviceV12>;

}  // namespace prunex::nccl::abi
