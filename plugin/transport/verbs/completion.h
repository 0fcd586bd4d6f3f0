// SPDX-License-Identifier: Apache-2.0
// The completion queue that the queue pairs of one port of a connection share.
#pragma once
#include <memory>
#include <span>

#include "plugin/transport/verbs/device.h"

namespace prunex::transport::verbs {

class CompletionQueue {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CompletionQueue>> open(std::shared_ptr<Device> device,
                                                                     uint32_t entries);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  [[nodiscard]] ibv_cq* queue() const { return queue_; }
  // How many completions there were, at most as many as `out` holds; -1: the device failed.
  [[nodiscard]] int poll(std::span<ibv_wc> out) const {
    return device_->context()->ops.poll_cq(queue_, static_cast<int>(out.size()), out.data());
  }
  // For sleeping: asks for an event at the next completion; and takes the events that came.
  void arm();
  void disarm();
  [[nodiscard]] int event_fd() const { return channel_->fd; }

 private:
  explicit CompletionQueue(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  std::shared_ptr<Device> device_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  bool armed_ = false;
};

}  // namespace prunex::transport::verbs
