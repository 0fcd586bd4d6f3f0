// SPDX-License-Identifier: Apache-2.0
// Up to v10 NCCL's tables know no context and no finalize: init is called once per process, or
// again after all communicators are gone. The module then holds contexts of its own, one per
// traffic class.
#pragma once
#include <array>
#include <cstddef>
#include <mutex>

#include "plugin/nccl/abi/types.h"

namespace prunex::nccl::module_side {

class OwnContexts {
 public:
  using Open = int (*)(const InternalTable& table, void** ctx, int traffic_class, Logger log);
  using Close = int (*)(const InternalTable& table, void* ctx);

  constexpr OwnContexts(Open open, Close close) : open_(open), close_(close) {}

  // Idempotent. Opens a new context when the logger is another one, or when the old context had no
  // devices: the configuration may have changed.
  Status init(const InternalTable& table, Logger log);

  // A context is opened where init was not called, as after a plugin was unloaded and loaded again.
  Status get(const InternalTable& table, int traffic_class, void** ctx);

 private:
  struct Held {
    int traffic_class;
    void* ctx;
  };
  static constexpr size_t kMost = 64;  // InfiniBand has 16 service levels, IP 64 code points

  Status open_one(const InternalTable& table, int traffic_class, void** ctx);

  Open open_;
  Close close_;
  std::mutex mutex_;
  std::array<Held, kMost> held_{};
  size_t count_ = 0;
  Logger log_ = nullptr;
};

}  // namespace prunex::nccl::module_side
