// SPDX-License-Identifier: Apache-2.0
// How device memory travels over a network that only takes host memory: every registered buffer of
// a GPU has a shadow in pinned memory, byte for byte at the same offset, and a message is copied
// between the two by a stream of the connection's own. What is called on the data path only
// enqueues and asks; all memory, events and the stream are made when a buffer is registered.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/cuda/table.h"
#include "plugin/base/result.h"
#include "plugin/nccl/internal_table.h"

namespace prunex::nccl {

enum class LaneState : unsigned char { busy, done, failed };

// One connection's stream and an event for each of its requests; of one device.
class DeviceLane {
 public:
  [[nodiscard]] static Result<std::shared_ptr<DeviceLane>> open(const cuda::Table& table,
                                                                int device);
  ~DeviceLane();  // waits for what was enqueued
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  // Starts a copy; state(slot) says when it is done. false: see error().
  [[nodiscard]] bool start(size_t slot, void* to, const void* from, size_t bytes);
  [[nodiscard]] LaneState state(size_t slot);
  [[nodiscard]] Error error() const;
  void drain();  // waits

  [[nodiscard]] const cuda::Table& table() const { return table_; }
  [[nodiscard]] int device() const { return device_; }

 private:
  DeviceLane(const cuda::Table& table, int device) : table_(table), device_(device) {}
  [[nodiscard]] bool good(int code, const char* what);

  const cuda::Table& table_;
  const int device_;
  void* stream_ = nullptr;
  std::array<void*, kMaxRequests> events_{};
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
  [[nodiscard]] Result<std::shared_ptr<DeviceLane>> of(const void* data);

 private:
  std::mutex mutex_;
  std::shared_ptr<DeviceLane> lane_;
};

}  // namespace prunex::nccl
