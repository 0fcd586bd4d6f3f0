// SPDX-License-Identifier: Apache-2.0
// The plugin's tables, of whatever version, behind one interface: what NCCL's shims are to NCCL.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "plugin/nccl/abi/layout.h"

namespace prunex::nccl::host {

using Handle = unsigned char[kHandleBytes];

// As the newest version has them; what an older one lacks keeps these values.
struct Properties {
  std::string name;
  std::string pci_path;
  uint64_t guid = 0;
  int ptr_support = 0, speed = 0, port = 0, max_comms = 0, max_recvs = 0;
  float latency = 0;
  int reg_is_global = -1, force_flush = -1, net_device_type = -1, net_device_version = -1;
  int virtual_count = -1, virtual_first = -1;
  size_t max_p2p_bytes = 0, max_coll_bytes = 0;
  int max_multi_request = -1, rail = -2, plane = -2;
};

// The network of one communicator. Results are the plugin's own.
class HostNet {
 public:
  virtual ~HostNet() = default;
  [[nodiscard]] virtual int version() const = 0;
  [[nodiscard]] virtual const char* name() const = 0;
  virtual Status init(uint64_t comm_id, int traffic_class, Logger log) = 0;
  virtual Status finalize() = 0;  // before v11 NCCL has nothing to call
  virtual Status devices(int* count) = 0;
  virtual Status properties(int device, Properties* out) = 0;
  virtual Status listen(int device, void* handle, void** comm) = 0;
  virtual Status connect(int device, void* handle, void** comm) = 0;
  virtual Status accept(void* listen_comm, void** comm) = 0;
  virtual Status reg_mr(void* comm, void* data, size_t bytes, int type, void** mr) = 0;
  virtual Status dereg_mr(void* comm, void* mr) = 0;
  virtual Status isend(void* comm, void* data, size_t bytes, int tag, void* mr, void** request) = 0;
  // optional: NCCL does not look at the completion (LL, LL128), where the version can say so.
  virtual Status irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mrs,
                       bool optional, void** request) = 0;
  virtual Status iflush(void* comm, int n, void** data, int* sizes, void** mrs, void** request) = 0;
  virtual Status test(void* request, int* done, int* sizes) = 0;
  virtual Status close_send(void* comm) = 0;
  virtual Status close_recv(void* comm) = 0;
  virtual Status close_listen(void* comm) = 0;
  virtual Status set_attr(uint32_t op, uint32_t algo, uint32_t proto) = 0;
};

class HostColl {
 public:
  virtual ~HostColl() = default;
  [[nodiscard]] virtual int version() const = 0;
  [[nodiscard]] virtual bool gathers() const = 0;  // has iallgather and ireducescatter
  virtual Status init(uint64_t comm_id, Logger log) = 0;
  virtual Status finalize() = 0;
  virtual Status devices(int* count) = 0;
  virtual Status properties(int device, Properties* out) = 0;
  virtual Status listen(int device, void* handle, void** comm) = 0;
  virtual Status connect(void** handles, int ranks, int rank, void* listen_comm, void** comm) = 0;
  virtual Status reduce_support(abi::DataType type, abi::RedOp op, int* supported) = 0;
  virtual Status reg_mr(void* comm, void* data, size_t bytes, int type, void** mr) = 0;
  virtual Status dereg_mr(void* comm, void* mr) = 0;
  virtual Status iallreduce(void* comm, void* send, void* recv, size_t count, abi::DataType type,
                            abi::RedOp op, void* send_mr, void* recv_mr, void** request) = 0;
  virtual Status iallgather(void* comm, void* send, void* recv, size_t bytes_per_rank,
                            size_t offset, size_t bytes, void* send_mr, void* recv_mr,
                            void** request) = 0;
  virtual Status ireducescatter(void* comm, void* send, void* recv, size_t bytes_per_rank,
                                size_t offset, size_t bytes, abi::DataType type, abi::RedOp op,
                                void* send_mr, void* recv_mr, void** request) = 0;
  virtual Status iflush(void* comm, void* data, int bytes, void* mr, void** request) = 0;
  virtual Status test(void* request, int* done, int* size) = 0;
  virtual Status close_coll(void* comm) = 0;
  virtual Status close_listen(void* comm) = 0;
};

// As NCCL: RTLD_NOW | RTLD_LOCAL. Throws Failure with dlerror's words.
void* load_plugin(const std::string& path);
std::string plugin_path();  // of this build
void* symbol(void* library, const std::string& name);

template <int V>
const abi::Net<V>& net_table(void* library) {
  return *static_cast<const abi::Net<V>*>(symbol(library, "ncclNetPlugin_v" + std::to_string(V)));
}
template <int V>
const abi::CollNet<V>& coll_table(void* library) {
  return *static_cast<const abi::CollNet<V>*>(
      symbol(library, "ncclCollNetPlugin_v" + std::to_string(V)));
}

std::unique_ptr<HostNet> open_net(void* library, int version);
std::unique_ptr<HostColl> open_coll(void* library, int version);

}  // namespace prunex::nccl::host
