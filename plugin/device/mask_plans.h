// SPDX-License-Identifier: Apache-2.0
// Registered masks as plans of the kernels, for whoever moves messages of device memory: made by
// the threads that register masks and buffers, so that the threads which move data only look them
// up.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/table.h"
#include "kernels/mask.h"
#include "plugin/base/result.h"
#include "plugin/device/plan_maker.h"

namespace prunex::device {

class MaskPlan {
 public:
  [[nodiscard]] static Result<std::shared_ptr<const MaskPlan>> make(
      const cuda::Table& table, int device, const std::shared_ptr<const CompiledMask>& mask,
      size_t element_bytes);
  ~MaskPlan();  // frees the device's memory, which waits for the device
  MaskPlan(const MaskPlan&) = delete;
  MaskPlan& operator=(const MaskPlan&) = delete;

  // Packs or unpacks the kept ones of elements [begin, end) of the tensor, which are bytes without
  // a type, of `element_bytes` each: 1, 2, 4 or 8. `mask`: one that it is made for. Buffer, packed
  // bytes, audit and stream are the caller's to fill in.
  [[nodiscard]] cuda::MoveCall call(const CompiledMask& mask, size_t element_bytes, uint64_t begin,
                                    uint64_t end) const;
  [[nodiscard]] bool is_for(const CompiledMask& mask) const {
    return mask.digest == digest_ && mask.count == made_.lowered.count &&
           mask.kept == made_.lowered.kept;
  }

 private:
  MaskPlan(const cuda::Table& table, int device, uint64_t digest)
      : table_(table), device_(device), digest_(digest) {}

  const cuda::Table& table_;
  const int device_;
  const uint64_t digest_;
  MadePlan made_;
};

class MaskPlans {
 public:
  [[nodiscard]] static MaskPlans& instance();

  // Messages of a device's memory are to come, or no more; counted. With the last of a device its
  // plans go. The caller prepares the masks that are registered by then.
  void open(int device);
  void close(int device);

  // Makes a plan of the mask of the tensor at `base` if messages of its device's memory are to come
  // and there is none yet. Allocates and waits for the device; never fails: without a plan messages
  // travel without the mask. Plans of masks that nobody has any more go.
  void prepare(const void* base, const std::shared_ptr<const CompiledMask>& mask,
               size_t element_bytes);

  // Null: there is none. Allocates nothing, waits for nothing.
  [[nodiscard]] std::shared_ptr<const MaskPlan> find(const CompiledMask& mask, int device) const;

 private:
  struct Entry {
    std::shared_ptr<const MaskPlan> plan;
    std::vector<std::weak_ptr<const CompiledMask>> masks;  // equal ones
    void add(const std::shared_ptr<const CompiledMask>& mask);
    [[nodiscard]] bool forgotten() const;
  };
  using Plans = std::unordered_map<uint64_t, Entry>;  // by digest
  struct OfDevice {
    int users = 0;
    Plans plans;
  };

  [[nodiscard]] bool wants(int device, const std::shared_ptr<const CompiledMask>& mask);
  std::vector<std::shared_ptr<const MaskPlan>> take_forgotten();

  mutable std::mutex mutex_;  // held for look-ups only
  std::map<int, OfDevice> devices_;
  std::vector<std::shared_ptr<const MaskPlan>> replaced_;  // by others with the same digest
  std::atomic<int> open_{0};
};

}  // namespace prunex::device
