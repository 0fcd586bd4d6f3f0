// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/module/own_contexts.h"

#include "plugin/nccl/module/library.h"

namespace prunex::nccl::module_side {
namespace {

bool has_devices(const InternalTable& table) {
  int count = 0;
  return table.net.devices(&count) == kSuccess && count > 0;
}

}  // namespace

Status OwnContexts::init(const InternalTable& table, Logger log) {
  const std::lock_guard lock(mutex_);
  const bool same_logger = log == log_;
  log_ = log;
  if (count_ > 0 && same_logger && has_devices(table)) {
    return kSuccess;
  }
  if (same_logger) {  // nobody can be using a context without devices
    for (size_t i = 0; i < count_; ++i) {
      close_(table, held_[i].ctx);
    }
  }  // else: connections of the other logger's owner may still live in the old contexts
  count_ = 0;
  void* ctx = nullptr;
  return open_one(table, abi::kTrafficClassUnset, &ctx);
}

Status OwnContexts::get(const InternalTable& table, int traffic_class, void** ctx) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < count_; ++i) {
    if (held_[i].traffic_class == traffic_class) {
      *ctx = held_[i].ctx;
      return kSuccess;
    }
  }
  return open_one(table, traffic_class, ctx);
}

Status OwnContexts::open_one(const InternalTable& table, int traffic_class, void** ctx) {
  if (count_ == kMost) {
    PRUNEX_SAY(kLogWarn,
               "NET/PRUNEX : traffic class %d is one more than the %zu different ones that a "
               "process may use",
               traffic_class, kMost);
    return kInvalidUsage;
  }
  void* opened = nullptr;
  const auto status = static_cast<Status>(open_(table, &opened, traffic_class, log_));
  if (status == kSuccess) {
    held_[count_++] = {traffic_class, opened};
    *ctx = opened;
  }
  return status;
}

}  // namespace prunex::nccl::module_side
