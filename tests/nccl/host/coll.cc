// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/host/tables_common.h"

namespace prunex::nccl::host {
namespace {

template <int V>
class Coll final : public HostColl {
 public:
  explicit Coll(void* library) : t_(coll_table<V>(library)) {}

  [[nodiscard]] int version() const override { return V; }
  [[nodiscard]] bool gathers() const override { return V >= 8; }

  Status init(uint64_t comm_id, Logger log) override {
    const std::lock_guard lock(plugin_mutex());
    if constexpr (V >= 11) {
      return t_.init(&ctx_, comm_id, log);
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
  Status connect(void** handles, int ranks, int rank, void* listen_comm, void** comm) override {
    return t_.connect(handles, ranks, rank, listen_comm, comm);
  }
  Status reduce_support(abi::DataType type, abi::RedOp op, int* supported) override {
    return t_.reduce_support(type, op, supported);
  }
  Status reg_mr(void* comm, void* data, size_t bytes, int type, void** mr) override {
    return t_.reg_mr(comm, data, narrow<std::conditional_t<(V < 8), int, size_t>>(bytes), type, mr);
  }
  Status dereg_mr(void* comm, void* mr) override { return t_.dereg_mr(comm, mr); }

  Status iallreduce(void* comm, void* send, void* recv, size_t count, abi::DataType type,
                    abi::RedOp op, void* send_mr, void* recv_mr, void** request) override {
    return t_.iallreduce(comm, send, recv, narrow<std::conditional_t<(V < 9), int, size_t>>(count),
                         type, op, send_mr, recv_mr, request);
  }

  Status iallgather(void* comm, void* send, void* recv, size_t bytes_per_rank, size_t offset,
                    size_t bytes, void* send_mr, void* recv_mr, void** request) override {
    if constexpr (V >= 8) {
      auto part = sge(recv, bytes, recv_mr);
      return t_.iallgather(comm, send, 1, &part, bytes_per_rank, offset, bytes, send_mr, request);
    } else {
      throw Failure("this version has no iallgather");
    }
  }

  Status ireducescatter(void* comm, void* send, void* recv, size_t bytes_per_rank, size_t offset,
                        size_t bytes, abi::DataType type, abi::RedOp op, void* send_mr,
                        void* recv_mr, void** request) override {
    if constexpr (V >= 8) {
      auto part = sge(send, bytes, send_mr);
      return t_.ireducescatter(comm, 1, &part, recv, bytes_per_rank, offset, bytes, type, op,
                               recv_mr, request);
    } else {
      throw Failure("this version has no ireducescatter");
    }
  }

  Status iflush(void* comm, void* data, int bytes, void* mr, void** request) override {
    return t_.iflush(comm, data, bytes, mr, request);
  }
  Status test(void* request, int* done, int* size) override { return t_.test(request, done, size); }
  Status close_coll(void* comm) override { return t_.close_coll(comm); }
  Status close_listen(void* comm) override { return t_.close_listen(comm); }

 private:
  using Sge = std::conditional_t<V == 8, abi::SgeV8, abi::SgeV9>;

  static Sge sge(void* address, size_t bytes, void* mr) {
    Sge part;
    // v8's size has four bytes; whatever stands behind it is none of the plugin's business.
    static_assert(sizeof part == 24);
    __builtin_memset(static_cast<void*>(&part), 0xee, sizeof part);
    part.mr = mr;
    part.address = address;
    part.size = narrow<decltype(part.size)>(bytes);
    return part;
  }

  template <class P>
  static P properties_of(abi::GetProperties<P>*) {
    return {};
  }

  const abi::CollNet<V>& t_;
  void* ctx_ = nullptr;
};

}  // namespace

std::unique_ptr<HostColl> open_coll(void* library, int version) {
  return for_version(version, [&]<int V>() -> std::unique_ptr<HostColl> {
    return std::make_unique<Coll<V>>(library);
  });
}

}  // namespace prunex::nccl::host
