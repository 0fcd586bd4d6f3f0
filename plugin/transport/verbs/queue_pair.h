// SPDX-License-Identifier: Apache-2.0
// A queue pair: made, brought up, posted to. Counts the places of its send queue, which not every
// device does.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "plugin/transport/verbs/completion.h"
#include "plugin/transport/verbs/wire.h"

namespace prunex::transport::verbs {

// In the id of a completion: whether it is a receive's, and which of the connection's queue pairs
// it comes from. The rest is the poster's.
inline constexpr uint64_t kReceiveId = uint64_t{1} << 63;
inline constexpr int kLaneShift = 48;
[[nodiscard]] inline size_t lane_of(const ibv_wc& entry) {
  return entry.wr_id >> kLaneShift & (kMaxQueuePairs - 1);
}

inline constexpr uint32_t kRefillBatch = 16;  // receives that are posted again in one call

class QueuePair {
 public:
  struct Depth {
    uint32_t sends, receives;
  };
  enum class Role : uint8_t { records, stripes };  // what it may have to announce
  [[nodiscard]] static Depth depth_of(const PortInfo& port, Role role);
  // lane: which one of its connection's it is, less than kMaxQueuePairs.
  [[nodiscard]] static Result<std::unique_ptr<QueuePair>> open(std::shared_ptr<Device> device,
                                                               const CompletionQueue& queue,
                                                               Role role, size_t lane,
                                                               uint16_t pkey_index);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // To where it can receive and send. Both ends' packets are numbered from their own `packet`.
  [[nodiscard]] Result<> connect(const RailEnd& own, const RailEnd& peer, uint32_t peer_number);

  [[nodiscard]] uint32_t number() const { return pair_->qp_num; }
  [[nodiscard]] size_t lane() const { return lane_; }
  [[nodiscard]] uint32_t max_inline() const { return max_inline_; }
  [[nodiscard]] uint32_t send_room() const { return depth_.sends - in_flight_; }
  [[nodiscard]] bool idle() const { return in_flight_ == 0; }

  struct Write {
    const void* data = nullptr;
    uint32_t bytes = 0;
    uint32_t local_key = 0;  // not looked at when it goes inline
    uint64_t address = 0;
    uint32_t key = 0;
    bool may_inline = true;
    bool announces = false;  // consumes a receive at the other end and brings it `immediate`
    uint32_t immediate = 0;
    uint64_t id = 0;
  };
  // send_room() must not be 0. 0 or an errno.
  [[nodiscard]] int post(const Write& write);
  // Every completion of this pair comes here, before anything else is done with it.
  void take(ibv_wc& entry) {
    if ((entry.wr_id & kReceiveId) != 0) {
      ++taken_;
      entry.imm_data = __builtin_bswap32(entry.imm_data);
    } else {
      --in_flight_;
    }
    broken_ = broken_ || entry.status != IBV_WC_SUCCESS;
  }
  // Posts again the receives that were taken, when they are a batch. false: the device failed.
  [[nodiscard]] bool refill() { return taken_ < refill_from_ || broken_ || post_taken(); }

 private:
  QueuePair(std::shared_ptr<Device> device, Role role, size_t lane)
      : device_(std::move(device)),
        depth_(depth_of(device_->port(), role)),
        refill_from_(std::clamp(depth_.receives / 4, 1U, kRefillBatch)),
        lane_(lane) {}
  Result<> make_pair(const CompletionQueue& queue);
  Result<> modify(ibv_qp_attr& attr, int mask, const char* what);
  int post_receives(uint32_t n);
  void prepare_work();
  bool post_taken();

  std::shared_ptr<Device> device_;
  Depth depth_;
  uint32_t refill_from_;  // a device may give fewer places than were asked for
  size_t lane_;
  ibv_qp* pair_ = nullptr;
  uint32_t max_inline_ = 0;
  uint32_t in_flight_ = 0;  // posted writes whose completion was not taken
  uint32_t taken_ = 0;      // receives to post again
  bool counted_ = false, broken_ = false;
  // What is the same in every post stays in these.
  ibv_sge piece_{};
  ibv_send_wr send_{};
  std::array<ibv_recv_wr, kRefillBatch> receives_{};
};

}  // namespace prunex::transport::verbs
