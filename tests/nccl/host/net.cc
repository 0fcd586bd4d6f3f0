// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "tests/nccl/host/tables_common.h"

namespace prunex::nccl::host {
namespace {

Status profile(void**, int, void*, int64_t, void*) { return kSuccess; }

template <int V>
class Net final : public HostNet {
 public:
  explicit Net(void* library) : t_(net_table<V>(library)) {}

  [[nodiscard]] int version() const override { return V; }
  [[nodiscard]] const char* name() const override { return t_.name; }

  Status init(uint64_t comm_id, int traffic_class, Logger log) override {
    const std::lock_guard lock(plugin_mutex());
    config_.traffic_class = traffic_class;
    if constexpr (V >= 11) {
      return t_.init(&ctx_, comm_id, &config_, log, profile);
    } else if constexpr (V == 10) {
      return t_.init(log, profile);
    } else {
      return t_.init(log);
    }
  }
  Status finalize() override {
    const std::lock_guard lock(plugin_mutex());
    if constexpr (V >= 11) {
      return t_.finalize(ctx_);
    } else {
      return kSuccess;
    }
  }
  Status devices(int* count) override {
    const std::lock_guard lock(plugin_mutex());
    return t_.devices(count);
  }
  Status properties(int device, Properties* out) override {
    auto raw = properties_of(t_.get_properties);
    const Status status = t_.get_properties(device, &raw);
    if (status == kSuccess) {
      *out = widen(raw);
    }
    return status;
  }

  Status listen(int device, void* handle, void** comm) override {
    if constexpr (V >= 11) {
      return t_.listen(ctx_, device, handle, comm);
    } else {
      return t_.listen(device, handle, comm);
    }
  }
  Status connect(int device, void* handle, void** comm) override {
    [[maybe_unused]] abi::DeviceHandle* offload = nullptr;
    if constexpr (V >= 11) {
      return t_.connect(ctx_, device, handle, comm, &offload);
    } else if constexpr (V == 10) {
      return t_.connect(device, &config_, handle, comm, &offload);
    } else if constexpr (V >= 7) {
      return t_.connect(device, handle, comm, &offload);
    } else {
      return t_.connect(device, handle, comm);
    }
  }
  Status accept(void* listen_comm, void** comm) override {
    [[maybe_unused]] abi::DeviceHandle* offload = nullptr;
    if constexpr (V >= 7) {
      return t_.accept(listen_comm, comm, &offload);
    } else {
      return t_.accept(listen_comm, comm);
    }
  }

  Status reg_mr(void* comm, void* data, size_t bytes, int type, void** mr) override {
    return t_.reg_mr(comm, data, narrow<std::conditional_t<(V < 8), int, size_t>>(bytes), type, mr);
  }
  Status dereg_mr(void* comm, void* mr) override { return t_.dereg_mr(comm, mr); }

  Status isend(void* comm, void* data, size_t bytes, int tag, void* mr, void** request) override {
    if constexpr (V >= 10) {
      return t_.isend(comm, data, bytes, tag, mr, nullptr, request);
    } else {
      return t_.isend(comm, data, narrow<std::conditional_t<(V < 9), int, size_t>>(bytes), tag, mr,
                      request);
    }
  }

  Status irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mrs, bool optional,
               void** request) override {
    if constexpr (V < 9) {
      int narrowed[64] = {};
      for (int i = 0; i < n; ++i) {
        narrowed[i] = narrow<int>(sizes[i]);
      }
      *request = nullptr;
      return t_.irecv(comm, n, data, narrowed, tags, mrs, request);
    } else {
      *request = optional ? reinterpret_cast<void*>(kOptionalRecv) : nullptr;
      Status status = kSuccess;
      if constexpr (V == 9) {
        status = t_.irecv(comm, n, data, sizes, tags, mrs, request);
      } else {
        status = t_.irecv(comm, n, data, sizes, tags, mrs, nullptr, request);
      }
      PRUNEX_MUST(*request != reinterpret_cast<void*>(kOptionalRecv), "the hint came back");
      return status;
    }
  }

  Status iflush(void* comm, int n, void** data, int* sizes, void** mrs, void** request) override {
    return t_.iflush(comm, n, data, sizes, mrs, request);
  }
  Status test(void* request, int* done, int* sizes) override {
    return t_.test(request, done, sizes);
  }
  Status close_send(void* comm) override { return t_.close_send(comm); }
  Status close_recv(void* comm) override { return t_.close_recv(comm); }
  Status close_listen(void* comm) override { return t_.close_listen(comm); }

  Status set_attr(uint32_t op, uint32_t algo, uint32_t proto) override {
    if constexpr (V >= 11) {
      abi::NetAttr attr{{-1, -1, -1, -1}, {-1, -1, -1, -1}, op, algo, proto};
      return t_.set_net_attr(ctx_, &attr);
    } else {
      return kSuccess;
    }
  }

 private:
  template <class P>
  static P properties_of(abi::GetProperties<P>*) {
    return {};
  }

  const abi::Net<V>& t_;
  void* ctx_ = nullptr;
  abi::CommConfig config_{abi::kTrafficClassUnset};
};

}  // namespace

std::mutex& plugin_mutex() {
  static std::mutex one;
  return one;
}

void* load_plugin(const std::string& path) {
  const std::lock_guard lock(plugin_mutex());
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  PRUNEX_MUST(library != nullptr, "%s", ::dlerror());
  return library;
}

std::string plugin_path() { return PRUNEX_NCCL_PLUGIN; }

void* symbol(void* library, const std::string& name) {
  void* const address = ::dlsym(library, name.c_str());
  PRUNEX_MUST(address != nullptr, "%s", name.c_str());
  return address;
}

std::unique_ptr<HostNet> open_net(void* library, int version) {
  return for_version(version, [&]<int V>() -> std::unique_ptr<HostNet> {
    return std::make_unique<Net<V>>(library);
  });
}

}  // namespace prunex::nccl::host
