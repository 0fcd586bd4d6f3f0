// SPDX-License-Identifier: Apache-2.0
#include "tools/net_api.h"

#include <dlfcn.h>

#include <type_traits>

#include "plugin/base/library.h"
#include "plugin/nccl/abi/layout.h"
#include "tools/net_builtin.h"

namespace prunex::tools {
namespace {

namespace abi = nccl::abi;

template <int V>
using Table = typename abi::NetOf<V>::Type;
template <int V>
using Properties = std::remove_pointer_t<std::conditional_t<
    V == 6, abi::PropertiesV6*,
    std::conditional_t<
        V == 7, abi::PropertiesV7*,
        std::conditional_t<V == 8, abi::PropertiesV8*,
                           std::conditional_t<V <= 10, abi::PropertiesV9*,
                                              std::conditional_t<V == 11, abi::PropertiesV11*,
                                                                 abi::PropertiesV12*>>>>>>;

template <int V>
class NetApiOf final : public NetApi {
  using MrSize = std::conditional_t<(V >= 8), size_t, int>;
  using Size = std::conditional_t<(V >= 9), size_t, int>;

 public:
  explicit NetApiOf(const Table<V>* table) : t_(table) {}
  int version() const override { return V; }
  const char* name() const override { return t_->name; }

  int init(uint64_t comm_id, nccl::Logger logger) override {
    if constexpr (V >= 11) {
      return t_->init(&ctx_, comm_id, &config_, logger, nullptr);
    } else if constexpr (V == 10) {
      return t_->init(logger, nullptr);
    } else {
      return t_->init(logger);
    }
  }
  int finalize() override {
    if constexpr (V >= 11) {
      void* const ctx = ctx_;
      ctx_ = nullptr;
      return t_->finalize(ctx);
    } else {
      return 0;
    }
  }
  int devices(int* count) override { return t_->devices(count); }
  int device(int index, NetDevice* out) override {
    Properties<V> p{};
    const int result = t_->get_properties(index, &p);
    if (result == 0) {
      out->name = p.name == nullptr ? "" : p.name;
      out->speed_mbps = p.speed;
      if constexpr (V >= 9) {
        out->max_message = p.max_p2p_bytes;
      }
    }
    return result;
  }
  int listen(int device, void* handle, void** comm) override {
    if constexpr (V >= 11) {
      return t_->listen(ctx_, device, handle, comm);
    } else {
      return t_->listen(device, handle, comm);
    }
  }
  int connect(int device, void* handle, void** comm) override {
    abi::DeviceHandle* offload = nullptr;
    if constexpr (V >= 11) {
      return t_->connect(ctx_, device, handle, comm, &offload);
    } else if constexpr (V == 10) {
      return t_->connect(device, &config_, handle, comm, &offload);
    } else if constexpr (V >= 7) {
      return t_->connect(device, handle, comm, &offload);
    } else {
      return t_->connect(device, handle, comm);
    }
  }
  int accept(void* listen_comm, void** comm) override {
    if constexpr (V >= 7) {
      abi::DeviceHandle* offload = nullptr;
      return t_->accept(listen_comm, comm, &offload);
    } else {
      return t_->accept(listen_comm, comm);
    }
  }
  int reg_mr(void* comm, void* data, size_t bytes, void** mr) override {
    return t_->reg_mr(comm, data, static_cast<MrSize>(bytes), nccl::kPtrHost, mr);
  }
  int dereg_mr(void* comm, void* mr) override { return t_->dereg_mr(comm, mr); }
  int isend(void* comm, void* data, size_t bytes, void* mr, void** request) override {
    *request = nullptr;
    if constexpr (V >= 10) {
      return t_->isend(comm, data, bytes, 0, mr, nullptr, request);
    } else {
      return t_->isend(comm, data, static_cast<Size>(bytes), 0, mr, request);
    }
  }
  int irecv(void* comm, void* data, size_t bytes, void* mr, void** request) override {
    *request = nullptr;
    auto size = static_cast<Size>(bytes);
    int tag = 0;
    if constexpr (V >= 10) {
      return t_->irecv(comm, 1, &data, &size, &tag, &mr, nullptr, request);
    } else {
      return t_->irecv(comm, 1, &data, &size, &tag, &mr, request);
    }
  }
  int test(void* request, int* done, int* bytes) override { return t_->test(request, done, bytes); }
  int close_send(void* comm) override { return t_->close_send(comm); }
  int close_recv(void* comm) override { return t_->close_recv(comm); }
  int close_listen(void* comm) override { return t_->close_listen(comm); }

 private:
  const Table<V>* t_;
  [[maybe_unused]] void* ctx_ = nullptr;
  [[maybe_unused]] abi::CommConfig config_{abi::kTrafficClassUnset};
};

template <int V = kNewestNetApi>
std::unique_ptr<NetApi> wrap(const void* table, int version) {
  if (version == V) {
    return std::make_unique<NetApiOf<V>>(static_cast<const Table<V>*>(table));
  }
  if constexpr (V > kOldestNetApi) {
    return wrap<V - 1>(table, version);
  } else {
    return nullptr;
  }
}

std::unique_ptr<NetApi> look_up(void* library, int wanted) {
  for (int v = kNewestNetApi; v >= kOldestNetApi; --v) {
    const std::string symbol = strf("ncclNetPlugin_v%d", v);
    const void* const table =
        wanted == 0 || wanted == v ? ::dlsym(library, symbol.c_str()) : nullptr;
    if (table != nullptr) {
      return wrap(table, v);
    }
  }
  return nullptr;
}

}  // namespace

Result<OpenedNet> open_net(const std::string& path, int api, const std::string& network) {
  OpenedNet out;
  out.path = path;
  const auto opened = open_shared(path);
  if (!opened) {
    const char* const why = opened.error().text.c_str();
    return fail(Code::system,
                network.empty()
                    ? strf("cannot load the plugin: %s", why)
                    : strf("--network %s is inside NCCL, which cannot be loaded: %s; give --plugin "
                           "the path of libnccl.so.2, or LD_LIBRARY_PATH its folder",
                           network.c_str(), why));
  }
  out.library = *opened;
  if (!network.empty()) {
    const auto builtin = find_builtin(out.library, path, network);
    if (!builtin) {
      return tl::unexpected(builtin.error());
    }
    if (api != 0 && api != builtin->api) {
      return fail(Code::unsupported, strf("network %s of %s has table v%d only; --api 0 takes it",
                                          network.c_str(), path.c_str(), builtin->api));
    }
    out.api = wrap(builtin->table, builtin->api);
    return out;
  }
  out.api = look_up(out.library, api);
  if (out.api == nullptr) {
    return fail(Code::unsupported,
                api == 0 ? strf("%s has no ncclNetPlugin_v%d to _v%d: it is no network plugin of "
                                "NCCL 2.19 or newer",
                                path.c_str(), kOldestNetApi, kNewestNetApi)
                         : strf("%s has no ncclNetPlugin_v%d; --api 0 takes the newest it has",
                                path.c_str(), api));
  }
  return out;
}

const char* nccl_result_text(int result) {
  switch (result) {
    case nccl::kSuccess:
      return "success";
    case nccl::kUnhandledCudaError:
      return "unhandled CUDA error";
    case nccl::kSystemError:
      return "system error";
    case nccl::kInternalError:
      return "internal error";
    case nccl::kInvalidArgument:
      return "invalid argument";
    case nccl::kInvalidUsage:
      return "invalid usage";
    case nccl::kRemoteError:
      return "remote error";
    case nccl::kInProgress:
      return "in progress";
    default:
      return "unknown result";
  }
}

Error net_error(const NetApi& api, const char* call, int result) {
  return {result == nccl::kRemoteError ? Code::peer_lost : Code::system,
          strf("%s of network %s (v%d) answered %d, %s", call, api.name(), api.version(), result,
               nccl_result_text(result))};
}

}  // namespace prunex::tools
