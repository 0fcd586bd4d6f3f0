// SPDX-License-Identifier: Apache-2.0
// The functions behind ncclTuner_v2 to ncclTuner_v6.
#pragma once
#include "plugin/nccl/abi/tuner.h"
#include "plugin/nccl/module/library.h"
#include "plugin/nccl/module/tuning.h"

namespace prunex::nccl::module_side {

struct TunerEntry {
  // v2 to v4
  static Status init(size_t, size_t, Logger log, void** ctx) noexcept {
    if (log != nullptr) {
      remember_logger(log);
    }
    return open(ctx);
  }
  // v5, v6
  static Status init(void** ctx, uint64_t, size_t, size_t, Logger log, abi::NvlDomainInfo*,
                     abi::TunerConstants*) noexcept {
    return init(0, 0, log, ctx);
  }

  // v2
  static Status get_coll_info(void* ctx, abi::Func func, size_t bytes, int coll_net_support, int,
                              int, int* algo, int* proto, int*) noexcept {
    if (algo == nullptr || proto == nullptr) {
      return kInvalidArgument;
    }
    choose(mode_of(ctx), func, bytes, coll_net_support == 1, algo, proto);
    return kSuccess;
  }
  // v3
  static Status get_coll_info(void* ctx, abi::Func func, size_t bytes, int, float** costs,
                              int algos, int protos, int*) noexcept {
    if (costs == nullptr) {
      return kInvalidArgument;
    }
    tune(mode_of(ctx), func, bytes, {reinterpret_cast<float*>(costs), algos, protos});
    return kSuccess;
  }
  // v4 to v6: whether buffers are registered is one rank's business and must not matter
  static Status get_coll_info(void* ctx, abi::Func func, size_t bytes, int pipe_ops, float** costs,
                              int algos, int protos, int /* registered */, int* channels) noexcept {
    return get_coll_info(ctx, func, bytes, pipe_ops, costs, algos, protos, channels);
  }

  static Status destroy(void*) noexcept { return kSuccess; }

 private:
  // A context is the address of its mode: nothing to free.
  static constexpr TunerMode kModes[] = {TunerMode::off, TunerMode::simple, TunerMode::collnet};

  static TunerMode mode_of(const void* ctx) {
    return ctx == nullptr ? TunerMode::off : *static_cast<const TunerMode*>(ctx);
  }

  static Status open(void** ctx) noexcept {
    if (ctx == nullptr) {
      return kInvalidArgument;
    }
    *ctx = const_cast<TunerMode*>(&kModes[0]);
    if (library() == nullptr) {
      return kSuccess;  // NCCL uses its own network then, and its own choices
    }
    return call([&](const InternalTable& t) -> int {
      int mode = 0;
      if (const int status = t.tuner.mode(&mode); status != kSuccess) {
        return status;
      }
      if (mode < 0 || mode > 2) {
        return kInternalError;
      }
      *ctx = const_cast<TunerMode*>(&kModes[mode]);
      return kSuccess;
    });
  }
};

template <class Table>
constexpr Table make_tuner_table() {
  Table t{};
  t.name = kName;
  t.init = TunerEntry::init;
  t.get_coll_info = TunerEntry::get_coll_info;
  t.destroy = TunerEntry::destroy;
  return t;  // get_chunk_size: NULL, NCCL's own
}

}  // namespace prunex::nccl::module_side
