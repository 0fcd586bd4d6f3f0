// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/mask_plans.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/tuning.h"
#include "kernels/exact.h"
#include "plugin/base/log.h"
#include "plugin/device/backend.h"
#include "plugin/device/on_device.h"

namespace prunex::device {
namespace {

// A launch moves a piece of a message, not the whole tensor: tiles are cut as for a buffer of so
// many bytes, that all of the device has work.
constexpr uint64_t kTunedBytes = uint64_t{4} << 20;

DType bytes_of_size(size_t element_bytes) {
  switch (element_bytes) {
    case 8:
      return DType::u64;
    case 4:
      return DType::u32;
    case 2:
      return DType::f16;
    default:
      return DType::u8;
  }
}

}  // namespace

Result<std::shared_ptr<const MaskPlan>> MaskPlan::make(
    const cuda::Table& table, int device, const std::shared_ptr<const CompiledMask>& mask,
    size_t element_bytes) {
  const OnDevice on(table, device);
  cuda::DeviceFacts facts{};
  if (auto known = check_cuda(table, table.device_facts(device, &facts), "device facts"); !known) {
    return tl::unexpected(known.error());
  }
  const uint64_t count = mask->count;
  auto layout = make_layout({Segment{0, count, mask, {}}}, count);
  if (!layout) {
    return tl::unexpected(layout.error());
  }
  std::shared_ptr<MaskPlan> out(new MaskPlan(table, device, mask->digest));
  const uint32_t tile = cuda::tile_elements(
      cuda::tuning_of(static_cast<uint32_t>(facts.arch)), static_cast<uint32_t>(facts.sms),
      std::min<uint64_t>(count, kTunedBytes / element_bytes), element_bytes);
  auto made = make_plan(table, *layout, tile);
  if (!made) {
    return tl::unexpected(made.error());
  }
  out->made_ = *std::move(made);
  return std::shared_ptr<const MaskPlan>(std::move(out));
}

MaskPlan::~MaskPlan() {
  const OnDevice on(table_, device_);
  destroy_plan(table_, made_);
}

cuda::MoveCall MaskPlan::call(const CompiledMask& mask, size_t element_bytes, uint64_t begin,
                              uint64_t end) const {
  const cuda::TileSpan span = cuda::tiles_of(made_.lowered, begin, end);
  cuda::MoveCall call{};
  call.plan = made_.plan;
  call.type = bytes_of_size(element_bytes);
  call.exact = true;
  call.range = {begin, end, kept_before(mask, begin)};
  call.first_tile = static_cast<uint32_t>(span.first);
  call.last_tile = static_cast<uint32_t>(span.last);
  return call;
}

// Never destroyed: whoever still calls during exit finds it alive.
MaskPlans& MaskPlans::instance() {
  static MaskPlans* const plans = new MaskPlans;
  return *plans;
}

void MaskPlans::open(int device) {
  const std::lock_guard lock(mutex_);
  ++devices_[device].users;
  ++open_;
}

void MaskPlans::close(int device) {
  Plans gone;  // freed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(device);
  if (found == devices_.end()) {
    return;
  }
  --open_;
  if (--found->second.users == 0) {
    gone = std::move(found->second.plans);
    devices_.erase(found);
  }
}

void MaskPlans::Entry::add(const std::shared_ptr<const CompiledMask>& mask) {
  std::erase_if(masks, [&](const auto& other) { return other.expired() || other.lock() == mask; });
  masks.push_back(mask);
}

// Whoever uses a plan got it under the lock: one that nobody else has stays so.
bool MaskPlans::Entry::forgotten() const {
  return plan.use_count() == 1 &&
         std::ranges::all_of(masks, [](const auto& mask) { return mask.expired(); });
}

bool MaskPlans::wants(int device, const std::shared_ptr<const CompiledMask>& mask) {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(device);
  if (found == devices_.end()) {
    return false;
  }
  const auto entry = found->second.plans.find(mask->digest);
  if (entry == found->second.plans.end() || !entry->second.plan->is_for(*mask)) {
    return true;
  }
  entry->second.add(mask);
  return false;
}

std::vector<std::shared_ptr<const MaskPlan>> MaskPlans::take_forgotten() {
  std::vector<std::shared_ptr<const MaskPlan>> out;
  const std::lock_guard lock(mutex_);
  std::erase_if(replaced_, [&](auto& plan) {
    const bool forgotten = plan.use_count() == 1;
    if (forgotten) {
      out.push_back(std::move(plan));
    }
    return forgotten;
  });
  for (auto& [device, of] : devices_) {
    std::erase_if(of.plans, [&](auto& of_digest) {
      const bool forgotten = of_digest.second.forgotten();
      if (forgotten) {
        out.push_back(std::move(of_digest.second.plan));
      }
      return forgotten;
    });
  }
  return out;
}

void MaskPlans::prepare(const void* base, const std::shared_ptr<const CompiledMask>& mask,
                        size_t element_bytes) {
  if (open_ == 0 || base == nullptr) {
    return;
  }
  (void)take_forgotten();
  auto table = cuda_table();
  cuda::PointerFacts facts{};
  if (!table || (*table)->pointer_facts(base, &facts) != 0 || facts.device < 0 ||
      facts.kind == cuda::PointerKind::pinned || !wants(facts.device, mask)) {
    return;
  }
  auto made = MaskPlan::make(**table, facts.device, mask, element_bytes);
  if (!made) {
    PRUNEX_LOG(
        info, "a mask of %llu elements has no plan on device %d, which sends it as it is: %s",
        static_cast<unsigned long long>(mask->count), facts.device, made.error().text.c_str());
    return;
  }
  std::shared_ptr<const MaskPlan> other;  // made meanwhile by somebody else; freed without the lock
  const std::lock_guard lock(mutex_);
  if (const auto found = devices_.find(facts.device); found != devices_.end()) {
    Entry& entry = found->second.plans[mask->digest];
    const bool has_one = entry.plan != nullptr && entry.plan->is_for(*mask);
    other = has_one ? *std::move(made) : std::exchange(entry.plan, *std::move(made));
    if (other != nullptr && !has_one) {
      replaced_.push_back(std::move(other));  // who has it must not be the last: that waits
    }
    entry.add(mask);
  }
}

std::shared_ptr<const MaskPlan> MaskPlans::find(const CompiledMask& mask, int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(device);
  if (found == devices_.end()) {
    return nullptr;
  }
  const auto entry = found->second.plans.find(mask.digest);
  return entry != found->second.plans.end() && entry->second.plan->is_for(mask) ? entry->second.plan
                                                                                : nullptr;
}

}  // namespace prunex::device
