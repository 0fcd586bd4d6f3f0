// SPDX-License-Identifier: Apache-2.0
// A queue pair with its completion queue: made, brought up, posted to, polled. Counts the places of
// its send queue, which not every device does.
#pragma once
#include <memory>
#include <span>

#include "plugin/transport/verbs/device.h"
#include "plugin/transport/verbs/wire.h"

namespace prunex::transport::verbs {

inline constexpr uint64_t kReceiveId = uint64_t{1} << 63;  // marks a receive's completion

class QueuePair {
 public:
  [[nodiscard]] static Result<std::unique_ptr<QueuePair>> open(std::shared_ptr<Device> device);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // To where it can receive and send. Both ends' packets are numbered from their own `packet`.
  [[nodiscard]] Result<> connect(const Endpoint& own, const Endpoint& peer);

  [[nodiscard]] uint32_t number() const { return pair_->qp_num; }
  [[nodiscard]] uint32_t max_inline() const { return max_inline_; }
  [[nodiscard]] uint32_t send_room() const { return send_depth_ - in_flight_; }
  [[nodiscard]] bool idle() const { return in_flight_ == 0; }

  struct Write {
    const void* data = nullptr;
    uint32_t bytes = 0;
    uint32_t local_key = 0;  // not looked at when it goes inline
    uint64_t address = 0;
    uint32_t key = 0;
    bool announces = false;  // consumes a receive at the other end and brings it `immediate`
    uint32_t immediate = 0;
    uint64_t id = 0;
  };
  // send_room() must not be 0. 0 or an errno.
  [[nodiscard]] int post(const Write& write);
  // How many completions there were, at most as many as `out` holds; -1: the device failed.
  // Receives among them are posted again.
  [[nodiscard]] int poll(std::span<ibv_wc> out);

  // For sleeping: asks for an event at the next completion; and takes the events that came.
  void arm();
  void disarm();
  [[nodiscard]] int event_fd() const { return channel_->fd; }

 private:
  explicit QueuePair(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Result<> make_queue();
  Result<> make_pair();
  Result<> modify(ibv_qp_attr& attr, int mask, const char* what);
  int post_receives(uint32_t n);

  std::shared_ptr<Device> device_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  uint32_t max_inline_ = 0, send_depth_ = 0, receive_depth_ = 0;
  uint32_t in_flight_ = 0;  // posted writes whose completion was not polled
  bool counted_ = false, broken_ = false;
  bool armed_ = false;
};

// The end's own side as told to the other one; without what the connection adds.
[[nodiscard]] Endpoint describe_self(const Device& device, const QueuePair& pair, uint32_t packet);

}  // namespace prunex::transport::verbs
