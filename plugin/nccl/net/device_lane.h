// SPDX-License-Identifier: Apache-2.0
// How device memory travels over a network that only takes host memory. Messages that a mask or
// their zeros make smaller are packed by the device's kernels into pinned memory that the network
// sends from, and expanded by them out of it. All others go through a shadow: every registered
// buffer of a GPU has one in pinned memory, byte for byte at the same offset.
//
// What is called on the data path only enqueues and asks; all memory, events and the stream are
// made when a buffer is registered.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "kernels/cuda/table.h"
#include "plugin/base/result.h"
#include "plugin/nccl/internal_table.h"
#include "plugin/nccl/net/staging_ring.h"
#include "plugin/transport/transport.h"

namespace prunex::nccl {

enum class LaneState : unsigned char { busy, done, failed };

// One connection's stream, an event for each of its requests, and its pinned memory; of one device.
class DeviceLane {
 public:
  // Packed messages that are on their way at once: as much as NCCL has in flight.
  static constexpr size_t kStagingBytes = (size_t{4} << 20) + (size_t{512} << 10);

  [[nodiscard]] static Result<std::shared_ptr<DeviceLane>> open(
      const cuda::Table& table, int device, std::shared_ptr<transport::Transport> transport);
  ~DeviceLane();  // waits for what was enqueued
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  // These enqueue, one behind the other. false: see error().
  [[nodiscard]] bool copy(void* to, const void* from, size_t bytes);
  [[nodiscard]] bool pack(cuda::MoveCall call);
  [[nodiscard]] bool unpack(cuda::MoveCall call);
  // At most kMostBlocks; scratch and stream are the lane's.
  [[nodiscard]] bool pack_blocks(cuda::BlockCall call);
  [[nodiscard]] bool unpack_blocks(cuda::BlockCall call);
  // state(slot) says when all that was enqueued before is done.
  [[nodiscard]] bool mark(size_t slot);
  [[nodiscard]] bool start(size_t slot, void* to, const void* from, size_t bytes) {
    return copy(to, from, bytes) && mark(slot);
  }
  [[nodiscard]] LaneState state(size_t slot);
  [[nodiscard]] bool failed() const { return code_ != 0; }
  [[nodiscard]] Error error() const;
  void drain();  // waits

  // Pinned memory, registered with the network. Null: no room now.
  [[nodiscard]] std::byte* take(size_t bytes);
  void give(const std::byte* piece);
  [[nodiscard]] const transport::Region* region() const { return region_.get(); }
  // Of the device: the map of a piece's blocks, then room for the blocks.
  [[nodiscard]] std::span<std::byte> block_room() const;

  static constexpr size_t kMostBlocks = (size_t{1} << 20) / 128;
  [[nodiscard]] const cuda::Table& table() const { return table_; }
  [[nodiscard]] int device() const { return device_; }

 private:
  DeviceLane(const cuda::Table& table, int device, std::shared_ptr<transport::Transport> transport);
  [[nodiscard]] Result<> make();
  [[nodiscard]] bool good(int code, const char* what);

  const cuda::Table& table_;
  const int device_;
  const std::shared_ptr<transport::Transport> transport_;  // outlives the region
  void* stream_ = nullptr;
  std::array<void*, kMaxRequests> events_{};
  std::byte* pinned_ = nullptr;
  std::unique_ptr<transport::Region> region_;  // of pinned_; none: the transport does without
  StagingRing ring_{kStagingBytes};
  std::byte* scratch_ = nullptr;  // of the device: for audits, for block scans, for blocks
  size_t block_scratch_ = 0;      // bytes of the second
  int code_ = 0;
  const char* failed_ = "";
};

// Pinned memory that stands for a registered buffer.
class Shadow {
 public:
  [[nodiscard]] static Result<Shadow> make(std::shared_ptr<DeviceLane> lane, size_t bytes);
  Shadow() = default;
  Shadow(Shadow&& other) noexcept { *this = std::move(other); }
  Shadow& operator=(Shadow&& other) noexcept {
    std::swap(lane_, other.lane_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Shadow();

  [[nodiscard]] std::byte* data() const { return memory_; }
  [[nodiscard]] const std::shared_ptr<DeviceLane>& lane() const { return lane_; }

 private:
  std::shared_ptr<DeviceLane> lane_;
  std::byte* memory_ = nullptr;
};

// The lane of a connection, made with the first buffer. Buffers are registered on one thread while
// another moves messages.
class LaneOfComm {
 public:
  LaneOfComm() = default;
  ~LaneOfComm();  // nothing is copied after the connection is closed
  LaneOfComm(const LaneOfComm&) = delete;
  LaneOfComm& operator=(const LaneOfComm&) = delete;
  [[nodiscard]] Result<std::shared_ptr<DeviceLane>> of(
      const void* data, const std::shared_ptr<transport::Transport>& transport);
  void drain();  // waits for what was enqueued, if there is a lane

 private:
  std::mutex mutex_;
  std::shared_ptr<DeviceLane> lane_;
};

}  // namespace prunex::nccl
