// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/queue_pair.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {
namespace {

constexpr uint8_t kNotReadyForEver = 7;
constexpr uint8_t kNotReadyTimer = 12;  // 0.64 ms

uint32_t bounded(uint32_t wanted, int limit) {
  return limit > 0 ? std::min(wanted, static_cast<uint32_t>(limit)) : wanted;
}

ibv_mtu mtu_code(uint32_t bytes) {
  const int log2 = static_cast<int>(std::bit_width(std::clamp(bytes, 256U, 4096U))) - 1;
  return static_cast<ibv_mtu>(log2 - 7);
}

}  // namespace

QueuePair::Depth QueuePair::depth_of(const PortInfo& port, Role role) {
  // Credits and grants of one direction, messages, asks and pieces of the other; or no more than
  // a stripe of every message.
  const uint32_t messages = static_cast<uint32_t>(kMaxInFlight);
  const uint32_t spare = kRefillBatch + 8;
  const Depth wanted = role == Role::records ? Depth{kSendDepth, 4 * messages + 2 * kPieces + spare}
                                             : Depth{kSendDepth / 2, messages + spare};
  return {bounded(wanted.sends, port.max_work_requests),
          bounded(wanted.receives, port.max_work_requests)};
}

Result<std::unique_ptr<QueuePair>> QueuePair::open(std::shared_ptr<Device> device,
                                                   const CompletionQueue& queue, Role role,
                                                   size_t lane, uint16_t pkey_index) {
  std::unique_ptr<QueuePair> out(new QueuePair(std::move(device), role, lane));
  out->prepare_work();
  if (auto r = out->make_pair(queue); !r) {
    return tl::unexpected<Error>(r.error());
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = pkey_index;
  attr.port_num = static_cast<uint8_t>(out->device_->port().port);
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (auto r = out->modify(
          attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "set up");
      !r) {
    return tl::unexpected<Error>(r.error());
  }
  if (const int error = out->post_receives(out->depth_.receives); error != 0) {
    return fail(Code::system,
                strf("%s takes no receives: %s", out->device_->port().name().c_str(),
                     errno_text(error).c_str()),
                error);
  }
  return out;
}

Result<> QueuePair::make_pair(const CompletionQueue& queue) {
  uint32_t want_inline = device_->options().inline_bytes;
  for (;; want_inline /= 2) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = queue.queue();
    init.qp_type = IBV_QPT_RC;
    init.cap = {depth_.sends, depth_.receives, 1, 1, want_inline};
    errno = 0;
    pair_ = device_->api().create_qp(device_->domain(), &init);
    if (pair_ != nullptr) {
      max_inline_ = init.cap.max_inline_data;
      ++device_->queue_pairs;
      device_->welcome_pair(pair_->qp_num);
      counted_ = true;
      return {};
    }
    if (want_inline == 0) {
      break;
    }
  }
  const int error = errno;
  const PortInfo& port = device_->port();
  return fail(error == ENOMEM ? Code::memory : Code::system,
              strf("%s gives no queue pair of %u sends and %u receives: %s; this process has %d "
                   "there, and the device allows %d for all processes (max_qp): use fewer "
                   "connections, fewer queue pairs per connection or more devices",
                   port.name().c_str(), depth_.sends, depth_.receives, errno_text(error).c_str(),
                   device_->queue_pairs.load(), port.max_queue_pairs),
              error);
}

QueuePair::~QueuePair() {
  if (pair_ != nullptr) {
    device_->api().destroy_qp(pair_);
  }
  if (counted_) {
    --device_->queue_pairs;
  }
}

Result<> QueuePair::modify(ibv_qp_attr& attr, int mask, const char* what) {
  const int error = device_->api().modify_qp(pair_, &attr, mask);
  if (error != 0) {
    return fail(Code::system,
                strf("the queue pair on %s cannot be %s: %s", device_->port().name().c_str(), what,
                     errno_text(error).c_str()),
                error);
  }
  return {};
}

Result<> QueuePair::connect(const RailEnd& own, const RailEnd& peer, uint32_t peer_number) {
  const PortInfo& port = device_->port();
  const VerbsOptions& options = device_->options();
  const auto type = static_cast<GidType>(peer.gid_type);
  if (peer.link != port.link) {
    return fail(Code::mismatch, strf("one of %s and %s is Ethernet, the other InfiniBand: choose "
                                     "ports of one kind with PRUNEX_IB_HCA",
                                     port.name().c_str(), peer.device.c_str()));
  }
  const auto mine = static_cast<GidType>(own.gid_type);
  if (port.link == Link::ethernet && type != mine && type != GidType::unknown &&
      mine != GidType::unknown) {
    return fail(Code::mismatch,
                strf("%s uses %s (GID index %d), %s uses %s (GID index %u): they do not understand "
                     "each other; set PRUNEX_IB_GID_INDEX",
                     port.name().c_str(), to_text(mine), int{own.gid_index}, peer.device.c_str(),
                     to_text(type), unsigned{peer.gid_index}));
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = mtu_code(std::min(own.mtu, peer.mtu));
  attr.dest_qp_num = peer_number;
  attr.rq_psn = peer.packet;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = kNotReadyTimer;
  attr.ah_attr.dlid = peer.lid;
  attr.ah_attr.sl = options.service_level;
  attr.ah_attr.port_num = static_cast<uint8_t>(port.port);
  if (needs_global_route(port, own.gid, peer.gid)) {
    attr.ah_attr.is_global = 1;
    std::memcpy(attr.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(own.gid_index);
    attr.ah_attr.grh.hop_limit = 255;
    attr.ah_attr.grh.traffic_class = options.traffic_class;
  }
  if (auto r = modify(attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                      strf("made ready to receive from %s (GID %s)", peer.device.c_str(),
                           to_text(peer.gid).c_str())
                          .c_str());
      !r) {
    r.error().text += strf(
        "; its own GID is %d, %s: do both ports have addresses of one kind that "
        "reach each other? PRUNEX_IB_GID_INDEX chooses another",
        int{own.gid_index}, to_text(own.gid).c_str());
    return r;
  }
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = own.packet;
  attr.timeout = options.timeout;
  attr.retry_cnt = options.retry_count;
  attr.rnr_retry = kNotReadyForEver;
  attr.max_rd_atomic = 1;
  return modify(attr,
                IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                "made ready to send");
}

// Announcements bring no data of their own: the receives have no memory.
void QueuePair::prepare_work() {
  for (size_t i = 0; i < receives_.size(); ++i) {
    receives_[i].wr_id = kReceiveId | uint64_t{lane_} << kLaneShift;
    receives_[i].next = i + 1 < receives_.size() ? &receives_[i + 1] : nullptr;
  }
  send_.sg_list = &piece_;
}

int QueuePair::post_receives(uint32_t n) {
  while (n > 0) {
    const uint32_t batch = std::min(n, kRefillBatch);
    ibv_recv_wr* bad = nullptr;
    const int error =
        device_->context()->ops.post_recv(pair_, &receives_[kRefillBatch - batch], &bad);
    if (error != 0) {
      return error;
    }
    n -= batch;
  }
  return 0;
}

int QueuePair::post(const Write& write) {
  piece_.addr = reinterpret_cast<uint64_t>(write.data);
  piece_.length = write.bytes;
  piece_.lkey = write.local_key;
  send_.wr_id = write.id | uint64_t{lane_} << kLaneShift;
  send_.num_sge = write.bytes > 0 ? 1 : 0;
  send_.opcode = write.announces ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  const bool goes_inline = write.bytes > 0 && write.bytes <= max_inline_ && write.may_inline;
  send_.send_flags = IBV_SEND_SIGNALED | (goes_inline ? IBV_SEND_INLINE : 0);
  send_.imm_data = __builtin_bswap32(write.immediate);
  send_.wr.rdma.remote_addr = write.address;
  send_.wr.rdma.rkey = write.key;
  ibv_send_wr* bad = nullptr;
  const int error = device_->context()->ops.post_send(pair_, &send_, &bad);
  in_flight_ += error == 0 ? 1 : 0;
  return error;
}

bool QueuePair::post_taken() { return post_receives(std::exchange(taken_, 0U)) == 0; }

}  // namespace prunex::transport::verbs
