// SPDX-License-Identifier: Apache-2.0
// ncclCollNet_v6 to ncclCollNet_v12: collectives among one rank per node. make_vdevice may be NULL.
#pragma once
#include "plugin/nccl/abi/net.h"

namespace prunex::nccl::abi {

using CollInitV11 = Status(void** ctx, uint64_t comm_id, Logger log);
using CollConnect = Status(void** handles, int ranks, int rank, void* listen_comm,
                           void** coll_comm);
using ReduceSupport = Status(DataType type, RedOp op, int* supported);
template <class Count>
using Iallreduce = Status(void* comm, void* send, void* recv, Count count, DataType type, RedOp op,
                          void* send_mr, void* recv_mr, void** request);
template <class Sge>
using Iallgather = Status(void* comm, void* send, int parts, Sge* recv, size_t bytes_per_rank,
                          size_t window_offset, size_t window_bytes, void* send_mr, void** request);
template <class Sge>
using Ireducescatter = Status(void* comm, int parts, Sge* send, void* recv, size_t bytes_per_rank,
                              size_t window_offset, size_t window_bytes, DataType type, RedOp op,
                              void* recv_mr, void** request);
using CollIflush = Status(void* comm, void* data, int size, void* mr, void** request);

// v6 and v7 differ in the properties only.
template <class Properties>
struct CollNetOldest {
  const char* name;
  InitLog* init;
  Devices* devices;
  GetProperties<Properties>* get_properties;
  Listen* listen;
  CollConnect* connect;
  ReduceSupport* reduce_support;
  RegMr<int>* reg_mr;
  RegMrDmabuf* reg_mr_dmabuf;
  DeregMr* dereg_mr;
  Iallreduce<int>* iallreduce;
  CollIflush* iflush;
  Test* test;
  Close *close_coll, *close_listen;
};
using CollNetV6 = CollNetOldest<PropertiesV6>;
using CollNetV7 = CollNetOldest<PropertiesV7>;

struct CollNetV8 {
  const char* name;
  InitLog* init;
  Devices* devices;
  GetProperties<PropertiesV8>* get_properties;
  Listen* listen;
  CollConnect* connect;
  ReduceSupport* reduce_support;
  RegMr<size_t>* reg_mr;
  RegMrDmabuf* reg_mr_dmabuf;
  DeregMr* dereg_mr;
  Iallreduce<int>* iallreduce;
  Iallgather<SgeV8>* iallgather;
  Ireducescatter<SgeV8>* ireducescatter;
  CollIflush* iflush;
  Test* test;
  Close *close_coll, *close_listen;
};

struct CollNetV9 {
  const char* name;
  InitLog* init;
  Devices* devices;
  GetProperties<PropertiesV9>* get_properties;
  Listen* listen;
  CollConnect* connect;
  ReduceSupport* reduce_support;
  RegMr<size_t>* reg_mr;
  RegMrDmabuf* reg_mr_dmabuf;
  DeregMr* dereg_mr;
  Iallreduce<size_t>* iallreduce;
  Iallgather<SgeV9>* iallgather;
  Ireducescatter<SgeV9>* ireducescatter;
  CollIflush* iflush;
  Test* test;
  Close *close_coll, *close_listen;
  MakeVDevice<VDeviceV9>* make_vdevice;
};
using CollNetV10 = CollNetV9;

// v11 and v12 differ in the properties only.
template <class Properties, class Virtual>
struct CollNetWithContext {
  const char* name;
  CollInitV11* init;
  Devices* devices;
  GetProperties<Properties>* get_properties;
  ListenV11* listen;
  CollConnect* connect;
  ReduceSupport* reduce_support;
  RegMr<size_t>* reg_mr;
  RegMrDmabuf* reg_mr_dmabuf;
  DeregMr* dereg_mr;
  Iallreduce<size_t>* iallreduce;
  Iallgather<SgeV9>* iallgather;
  Ireducescatter<SgeV9>* ireducescatter;
  CollIflush* iflush;
  Test* test;
  Close *close_coll, *close_listen;
  MakeVDevice<Virtual>* make_vdevice;
  Finalize* finalize;
};
using CollNetV11 = CollNetWithContext<PropertiesV11, VDeviceV9>;
using CollNetV12 = CollNetWithContext<PropertiesV12, VDeviceV12>;

}  // namespace prunex::nccl::abi
