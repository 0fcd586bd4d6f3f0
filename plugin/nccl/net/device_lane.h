// SPDX-License-Identifier: Apache-2.0
// How device memory travels. Messages that a mask or their zeros make smaller are packed by the
// device's kernels into pinned memory that the network sends from, and expanded by them out of it.
// The others are sent from where they are, and arrive there, where network and device can do that
// (dmabuf), and else are copied through the same pinned memory.
//
// That memory belongs to the connection and is as long as what NCCL has under way on one, however
// long the registered buffers are. It is made, as streams and events are, when the first buffer is
// registered. What is called on the data path only enqueues and asks: where there is no room, the
// answer is "not yet".
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

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
  struct Room {
    size_t message = 0;    // bytes of the longest message that is copied
    size_t staging = 0;    // bytes of all that are under way
    bool expands = false;  // frames are expanded by the host, too
  };
  [[nodiscard]] static Result<std::shared_ptr<DeviceLane>> open(
      const cuda::Table& table, int device, std::shared_ptr<transport::Transport> transport,
      const Room& room);
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
  // What the network wrote to the device's memory is seen by all that the device does later.
  [[nodiscard]] bool flush();
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
  [[nodiscard]] size_t most_message() const { return room_.message; }
  // Pinned: where the host expands one frame, and whether what was copied from there is done.
  [[nodiscard]] std::byte* place() const { return pinned_ + ring_.bytes(); }
  [[nodiscard]] bool place_is_free() { return state(kPlaceEvent) != LaneState::busy; }
  [[nodiscard]] bool copy_from_place(void* to, size_t bytes) {
    return copy(to, place(), bytes) && mark(kPlaceEvent);
  }
  // Of the device: the map of a piece's blocks, then room for the blocks.
  [[nodiscard]] std::span<std::byte> block_room() const;

  static constexpr size_t kMostBlocks = (size_t{1} << 20) / 128;
  // Whether the network may write to the device's memory.
  [[nodiscard]] bool sees_remote_writes() const {
    return remote_writes_ != cuda::RemoteWrites::never;
  }
  [[nodiscard]] const cuda::Table& table() const { return table_; }
  [[nodiscard]] int device() const { return device_; }

 private:
  DeviceLane(const cuda::Table& table, int device, std::shared_ptr<transport::Transport> transport,
             const Room& room);
  [[nodiscard]] Result<> make();
  [[nodiscard]] Result<> make_memory();
  [[nodiscard]] size_t pinned_bytes() const;
  [[nodiscard]] bool good(int code, const char* what);

  const cuda::Table& table_;
  const int device_;
  const std::shared_ptr<transport::Transport> transport_;  // outlives the region
  const Room room_;
  cuda::RemoteWrites remote_writes_ = cuda::RemoteWrites::never;
  void* stream_ = nullptr;
  static constexpr size_t kPlaceEvent = kMaxRequests;
  std::array<void*, kMaxRequests + 1> events_{};
  std::byte* pinned_ = nullptr;
  std::unique_ptr<transport::Region> region_;  // of pinned_; none: the transport does without
  StagingRing ring_;
  std::byte* scratch_ = nullptr;  // of the device: for audits, for block scans, for blocks
  size_t block_scratch_ = 0;      // bytes of the second
  int code_ = 0;
  const char* failed_ = "";
};

// What NCCL has under way on one connection, by the length of its buffers: no longer message is
// copied, nor comes in an encoded form that is longer than that and kSideSlack.
[[nodiscard]] constexpr size_t most_staged_message(size_t fifo_bytes) {
  return std::clamp(fifo_bytes, size_t{4} << 20, size_t{64} << 20);
}
[[nodiscard]] Error too_long_to_stage(size_t bytes, const DeviceLane& lane);

// The lane of a connection, made with the first buffer. Buffers are registered on one thread while
// another moves messages.
class LaneOfComm {
 public:
  LaneOfComm() = default;
  ~LaneOfComm();  // nothing is copied after the connection is closed
  LaneOfComm(const LaneOfComm&) = delete;
  LaneOfComm& operator=(const LaneOfComm&) = delete;
  [[nodiscard]] Result<std::shared_ptr<DeviceLane>> of(
      const void* data, const std::shared_ptr<transport::Transport>& transport,
      const DeviceLane::Room& room);
  // Whether messages of a buffer that the network does not reach can all be copied. NCCL registers
  // what it copies through itself first, which may be long and cut into short messages; a user's
  // buffers come later, their messages are as long as they are, and NCCL does without registering
  // them.
  [[nodiscard]] bool takes_copied(size_t bytes, const DeviceLane::Room& room, size_t fifo_bytes);
  void drain();  // waits for what was enqueued, if there is a lane

 private:
  std::mutex mutex_;
  std::shared_ptr<DeviceLane> lane_;
  bool has_nccls_ = false;
};

}  // namespace prunex::nccl
