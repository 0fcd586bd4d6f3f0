// SPDX-License-Identifier: Apache-2.0
// The one registry of masks and layouts of a process. It lives as long as the process:
// communicators and plugins come and go around it.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/mask.h"
#include "plugin/base/dtype.h"
#include "plugin/base/result.h"
#include "plugin/collective/masked_layout.h"

namespace prunex::api {

// One version of a mask; replaced as a whole by an update, so that a call in flight keeps its own.
struct MaskVersion {
  std::shared_ptr<const CompiledMask> mask;
  collective::Contract contract = collective::Contract::lossless;
  uint64_t epoch = 0;
  std::string name;
  std::shared_ptr<const collective::MaskedLayout> alone;  // the mask as a buffer of its own
};

// The mask, for as long as the version lives.
[[nodiscard]] inline std::shared_ptr<const CompiledMask> mask_of(
    const std::shared_ptr<const MaskVersion>& version) {
  return {version, version->mask.get()};
}

struct MaskEntry {
  uint64_t id = 0;
  uintptr_t base = 0;  // 0: only layouts use it
  DType type = DType::f32;
  std::vector<int64_t> sizes, strides;
  uint64_t count = 0;
  std::shared_ptr<const MaskVersion> version;  // under the registry's lock
  std::atomic<uint64_t> hits{0}, stale{0};
  std::shared_ptr<std::atomic<uint64_t>> violations = std::make_shared<std::atomic<uint64_t>>(0);
  // Found by address. An empty tensor may lie anywhere, also where another one begins.
  [[nodiscard]] bool addressed() const { return base != 0 && count > 0; }
  [[nodiscard]] uintptr_t end() const { return base + count * size_of(type); }
};

enum class Lookup : uint8_t {
  none,   // nothing is registered in this process
  miss,   // masks exist, none of them here
  stale,  // something is registered here with another length or type
  hit,
};

// Bytes that lie inside one registered tensor, and the mask that was in force when they were found.
struct RangeHit {
  std::shared_ptr<const MaskVersion> version;
  std::shared_ptr<std::atomic<uint64_t>> violations;  // of the mask, whatever its version
  DType type = DType::f32;
  size_t element_bytes = 4;
  uint64_t byte_offset = 0;  // of the range's first byte within the tensor
  uint64_t count = 0;        // elements of the whole tensor
};

class Registry {
 public:
  [[nodiscard]] static Registry& instance();

  [[nodiscard]] Result<uint64_t> add(std::shared_ptr<MaskEntry> entry);
  [[nodiscard]] Result<> update(uint64_t id, std::shared_ptr<const MaskVersion> version);
  [[nodiscard]] Result<> remove(uint64_t id);
  [[nodiscard]] Result<std::shared_ptr<MaskEntry>> find(uint64_t id) const;
  [[nodiscard]] std::shared_ptr<const MaskVersion> version_of(const MaskEntry& entry) const;

  // By address: exact pointer, length and type.
  [[nodiscard]] Lookup find(const void* base, uint64_t count, DType type,
                            std::shared_ptr<const collective::MaskedLayout>* out) const;

  [[nodiscard]] bool has_addressed() const { return addressed_ > 0; }
  // By address: the bytes lie wholly inside one registered tensor. A range that reaches past it is
  // stale; one of no bytes is a miss. O(log); may run beside everything else.
  [[nodiscard]] Lookup find_range(const void* ptr, uint64_t bytes, RangeHit* out) const;

  // A mask as it is now that keeps the same elements; null: none does. O(masks).
  [[nodiscard]] std::shared_ptr<const CompiledMask> find_digest(uint64_t digest) const;

  // All masks that have an address, as they are now.
  struct Addressed {
    const void* base;
    std::shared_ptr<const MaskVersion> version;
    size_t element_bytes;
  };
  [[nodiscard]] std::vector<Addressed> addressed() const;

  // Hears of every version of a mask that has an address, once it is found by that; on the thread
  // of whoever registers or updates it. There is one at most.
  using Watcher = void (*)(const MaskVersion& version);
  void watch(Watcher watcher) { watcher_.store(watcher, std::memory_order_release); }
  void tell(const MaskVersion& version) const;

  struct LayoutSegment {
    uint64_t offset = 0, count = 0;
    std::shared_ptr<MaskEntry> mask;
  };
  [[nodiscard]] Result<uint64_t> add_layout(std::vector<LayoutSegment> segments, uint64_t count);
  [[nodiscard]] Result<> remove_layout(uint64_t id);
  // The layout with its masks as they are now.
  [[nodiscard]] Result<std::shared_ptr<const collective::MaskedLayout>> layout(uint64_t id);

 private:
  struct LayoutEntry {
    std::vector<LayoutSegment> segments;
    uint64_t count = 0;
    uint64_t generation = 0;  // of the registry when `current` was made
    std::shared_ptr<const collective::MaskedLayout> current;
  };
  [[nodiscard]] Result<std::shared_ptr<const collective::MaskedLayout>> build(
      const LayoutEntry& entry) const;

  mutable std::shared_mutex mutex_;
  std::atomic<Watcher> watcher_{nullptr};
  uint64_t next_id_ = 1;     // handles are never reused
  uint64_t generation_ = 1;  // moves with every update
  std::unordered_map<uint64_t, std::shared_ptr<MaskEntry>> masks_;
  std::map<uintptr_t, std::shared_ptr<MaskEntry>> by_address_;
  std::atomic<size_t> addressed_{0};  // their number, for those who send and have registered none
  std::unordered_map<uint64_t, LayoutEntry> layouts_;
};

}  // namespace prunex::api
