// SPDX-License-Identifier: Apache-2.0
// Messages of device memory in their encoded form, packed and expanded by the device. Everything
// here enqueues on the lane and returns; lane.error() says what failed.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "plugin/device/mask_plans.h"
#include "plugin/nccl/net/device_lane.h"
#include "plugin/nccl/net/message.h"

namespace prunex::nccl {

// One message on its way out, in a piece of the lane's pinned memory: the encoded bytes, and what
// the kernels found.
class DevicePacking {
 public:
  enum class Verdict : unsigned char { packed, more, violated, does_not_pay, failed };

  // Pinned bytes that it takes.
  [[nodiscard]] static size_t masked_room(size_t encoded, size_t bytes);
  [[nodiscard]] static size_t blocks_room(size_t bytes);

  // `from`: the message, in device memory. false: the lane failed.
  [[nodiscard]] bool pack_masked(DeviceLane& lane, MessageEncoder& encoder,
                                 std::shared_ptr<const device::MaskPlan> plan,
                                 const MaskedPiece& piece, const std::byte* from, size_t bytes,
                                 std::span<std::byte> room);
  // One frame after the other: where one begins is known when the one before is packed.
  [[nodiscard]] bool pack_blocks(DeviceLane& lane, const std::byte* from, size_t bytes,
                                 std::span<std::byte> room);

  // When the lane has done it. more: there is work enqueued again. failed: the lane did.
  [[nodiscard]] Verdict finish();
  // The encoded message, then.
  [[nodiscard]] std::span<const std::byte> encoded() const { return encoded_; }

 private:
  [[nodiscard]] Verdict finish_blocks();
  [[nodiscard]] bool pack_frame();
  [[nodiscard]] std::byte* payload() const;

  DeviceLane* lane_ = nullptr;
  std::shared_ptr<const device::MaskPlan> plan_;  // masked: until the kernels are done
  std::span<std::byte> encoded_;
  const cuda::AuditRecord* records_ = nullptr;  // masked: one per frame
  size_t frames_ = 0;
  // Blocks: how many are set in the open frame, then its tail; in place of it, where the frame is
  // stored.
  std::byte* block_facts_ = nullptr;
  const std::byte* from_ = nullptr;
  size_t bytes_ = 0, at_ = 0, size_ = 0;  // of the message, and where the open frame begins
  bool stores_ = false;
};

// Expands a message out of the lane's pinned memory.
class DeviceUnpacking final : public FrameSink {
 public:
  void begin(DeviceLane& lane, std::byte* target);
  bool take(const Frame& frame) override;
  std::byte* place() override { return lane_->place(); }
  bool ready() override { return lane_->place_is_free(); }
  void expanded(size_t at, size_t length) override;

  // Keeps a mask's plan, until the kernels are done.
  [[nodiscard]] std::shared_ptr<const device::MaskPlan> release() { return std::move(plan_); }
  [[nodiscard]] size_t by_kernels() const { return by_kernels_; }  // frames

 private:
  [[nodiscard]] bool unpack_masked(const Frame& frame);
  void unpack_blocks(const Frame& frame);

  DeviceLane* lane_ = nullptr;
  std::byte* target_ = nullptr;
  std::shared_ptr<const device::MaskPlan> plan_;
  size_t by_kernels_ = 0;
};

}  // namespace prunex::nccl
