// SPDX-License-Identifier: Apache-2.0
// Any NCCL network plugin, driven as NCCL drives it, behind one set of functions whatever the
// version of its table.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/base/result.h"
#include "plugin/nccl/internal_table.h"

namespace prunex::tools {

inline constexpr int kOldestNetApi = 6, kNewestNetApi = 12;

struct NetDevice {
  std::string name;
  int speed_mbps = 0;
  size_t max_message = 0;  // bytes; 0: the table does not say
};

// Answers are NCCL's result codes, 0 is success. A comm or request that stays NULL: ask again.
class NetApi {
 public:
  NetApi() = default;
  NetApi(const NetApi&) = delete;
  NetApi& operator=(const NetApi&) = delete;
  virtual ~NetApi() = default;

  [[nodiscard]] virtual int version() const = 0;
  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual int init(uint64_t comm_id, nccl::Logger logger) = 0;
  [[nodiscard]] virtual int finalize() = 0;  // versions without it: nothing happens
  [[nodiscard]] virtual int devices(int* count) = 0;
  [[nodiscard]] virtual int device(int index, NetDevice* out) = 0;
  [[nodiscard]] virtual int listen(int device, void* handle, void** comm) = 0;
  [[nodiscard]] virtual int connect(int device, void* handle, void** comm) = 0;
  [[nodiscard]] virtual int accept(void* listen_comm, void** comm) = 0;
  [[nodiscard]] virtual int reg_mr(void* comm, void* data, size_t bytes, void** mr) = 0;
  [[nodiscard]] virtual int dereg_mr(void* comm, void* mr) = 0;
  [[nodiscard]] virtual int isend(void* comm, void* data, size_t bytes, void* mr,
                                  void** request) = 0;
  [[nodiscard]] virtual int irecv(void* comm, void* data, size_t bytes, void* mr,
                                  void** request) = 0;
  [[nodiscard]] virtual int test(void* request, int* done, int* bytes) = 0;
  [[nodiscard]] virtual int close_send(void* comm) = 0;
  [[nodiscard]] virtual int close_recv(void* comm) = 0;
  [[nodiscard]] virtual int close_listen(void* comm) = 0;
};

struct OpenedNet {
  void* library = nullptr;  // of dlopen; never closed, as NCCL's plugins are not
  std::string path;
  std::unique_ptr<NetApi> api;
};

// Loads the file and takes the table of version `api`; 0: the newest there is. `network` other than
// empty: the file is libnccl, and the network is one of its own (tools/net_builtin.h).
[[nodiscard]] Result<OpenedNet> open_net(const std::string& path, int api,
                                         const std::string& network = {});

[[nodiscard]] const char* nccl_result_text(int result);
[[nodiscard]] Error net_error(const NetApi& api, const char* call, int result);

}  // namespace prunex::tools
