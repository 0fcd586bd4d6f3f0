// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/queue_pair.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {
namespace {

// Announcements that may be under way at once: credits and grants of one direction, messages and
// asks of the other.
constexpr uint32_t kReceiveDepth = 4 * static_cast<uint32_t>(kMaxInFlight) + 8;
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

Result<std::unique_ptr<QueuePair>> QueuePair::open(std::shared_ptr<Device> device) {
  std::unique_ptr<QueuePair> out(new QueuePair(std::move(device)));
  if (auto r = out->make_queue(); !r) {
    return tl::unexpected<Error>(r.error());
  }
  if (auto r = out->make_pair(); !r) {
    return tl::unexpected<Error>(r.error());
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = out->device_->pkey_index();
  attr.port_num = static_cast<uint8_t>(out->device_->port().port);
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (auto r = out->modify(
          attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "set up");
      !r) {
    return tl::unexpected<Error>(r.error());
  }
  if (const int error = out->post_receives(out->receive_depth_); error != 0) {
    return fail(Code::system,
                strf("%s takes no receives: %s", out->device_->port().name().c_str(),
                     errno_text(error).c_str()),
                error);
  }
  return out;
}

Result<> QueuePair::make_queue() {
  const Api& api = device_->api();
  const PortInfo& port = device_->port();
  send_depth_ = bounded(kSendDepth, port.max_work_requests);
  receive_depth_ = bounded(kReceiveDepth, port.max_work_requests);
  const uint32_t completions = send_depth_ + receive_depth_;
  if (port.max_completions > 0 && completions > static_cast<uint32_t>(port.max_completions)) {
    return fail(Code::unsupported,
                strf("%s has completion queues of at most %d entries (max_cqe); %u are needed",
                     port.name().c_str(), port.max_completions, completions));
  }
  errno = 0;
  channel_ = api.create_comp_channel(device_->context());
  queue_ = channel_ == nullptr ? nullptr
                               : api.create_cq(device_->context(), static_cast<int>(completions),
                                               nullptr, channel_, 0);
  if (queue_ == nullptr) {
    const int error = errno;
    return fail(error == ENOMEM ? Code::memory : Code::system,
                strf("no completion queue of %u entries on %s: %s%s", completions,
                     port.name().c_str(), errno_text(error).c_str(),
                     error == ENOMEM ? "; raise the limit of locked memory (ulimit -l unlimited) "
                                       "in the launcher"
                                     : ""),
                error);
  }
  (void)::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  return {};
}

Result<> QueuePair::make_pair() {
  uint32_t want_inline = device_->options().inline_bytes;
  for (;; want_inline /= 2) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = queue_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {send_depth_, receive_depth_, 1, 1, want_inline};
    errno = 0;
    pair_ = device_->api().create_qp(device_->domain(), &init);
    if (pair_ != nullptr) {
      max_inline_ = init.cap.max_inline_data;
      ++device_->queue_pairs;
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
                   "connections or more devices",
                   port.name().c_str(), send_depth_, receive_depth_, errno_text(error).c_str(),
                   device_->queue_pairs.load(), port.max_queue_pairs),
              error);
}

QueuePair::~QueuePair() {
  const Api& api = device_->api();
  if (pair_ != nullptr) {
    api.destroy_qp(pair_);
  }
  if (counted_) {
    --device_->queue_pairs;
  }
  if (queue_ != nullptr) {
    disarm();
    api.destroy_cq(queue_);
  }
  if (channel_ != nullptr) {
    api.destroy_comp_channel(channel_);
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

Result<> QueuePair::connect(const Endpoint& own, const Endpoint& peer) {
  const PortInfo& port = device_->port();
  const VerbsOptions& options = device_->options();
  const auto type = static_cast<GidType>(peer.gid_type);
  if (peer.link != port.link) {
    return fail(Code::mismatch, strf("one of %s and %s is Ethernet, the other InfiniBand: choose "
                                     "ports of one kind with PRUNEX_IB_HCA",
                                     port.name().c_str(), peer.device.c_str()));
  }
  const GidType mine = device_->gid().type;
  if (port.link == Link::ethernet && type != mine && type != GidType::unknown &&
      mine != GidType::unknown) {
    return fail(Code::mismatch,
                strf("%s uses %s (GID index %d), %s uses %s (GID index %u): they do not understand "
                     "each other; set PRUNEX_IB_GID_INDEX",
                     port.name().c_str(), to_text(mine), device_->gid().index, peer.device.c_str(),
                     to_text(type), unsigned{peer.gid_index}));
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = mtu_code(std::min(own.mtu, peer.mtu));
  attr.dest_qp_num = peer.queue_pair;
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

int QueuePair::post_receives(uint32_t n) {
  // Announcements bring no data of their own: the receives have no memory.
  constexpr uint32_t kBatch = 32;
  std::array<ibv_recv_wr, kBatch> work;
  while (n > 0) {
    const uint32_t batch = std::min(n, kBatch);
    for (uint32_t i = 0; i < batch; ++i) {
      work[i] = {};
      work[i].wr_id = kReceiveId;
      work[i].next = i + 1 < batch ? &work[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    const int error = device_->context()->ops.post_recv(pair_, work.data(), &bad);
    if (error != 0) {
      return error;
    }
    n -= batch;
  }
  return 0;
}

int QueuePair::post(const Write& write) {
  ibv_sge piece{};
  piece.addr = reinterpret_cast<uint64_t>(write.data);
  piece.length = write.bytes;
  piece.lkey = write.local_key;
  ibv_send_wr work{};
  work.wr_id = write.id;
  work.sg_list = &piece;
  work.num_sge = write.bytes > 0 ? 1 : 0;
  work.opcode = write.announces ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  work.send_flags = IBV_SEND_SIGNALED;
  if (write.bytes > 0 && write.bytes <= max_inline_) {
    work.send_flags |= IBV_SEND_INLINE;
  }
  work.imm_data = __builtin_bswap32(write.immediate);
  work.wr.rdma.remote_addr = write.address;
  work.wr.rdma.rkey = write.key;
  ibv_send_wr* bad = nullptr;
  const int error = device_->context()->ops.post_send(pair_, &work, &bad);
  in_flight_ += error == 0 ? 1 : 0;
  return error;
}

int QueuePair::poll(std::span<ibv_wc> out) {
  const int n = device_->context()->ops.poll_cq(queue_, static_cast<int>(out.size()), out.data());
  uint32_t receives = 0;
  for (int i = 0; i < n; ++i) {
    ibv_wc& entry = out[static_cast<size_t>(i)];
    if (entry.wr_id == kReceiveId) {
      ++receives;
      entry.imm_data = __builtin_bswap32(entry.imm_data);
    } else {
      --in_flight_;
    }
    broken_ = broken_ || entry.status != IBV_WC_SUCCESS;
  }
  if (receives > 0 && !broken_ && post_receives(receives) != 0) {
    return -1;
  }
  return n;
}

void QueuePair::arm() {
  if (!armed_) {
    armed_ = device_->context()->ops.req_notify_cq(queue_, 0) == 0;
  }
}

void QueuePair::disarm() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (device_->api().get_cq_event(channel_, &queue, &context) == 0) {
    device_->api().ack_cq_events(queue, 1);
    armed_ = false;
  }
}

Endpoint describe_self(const Device& device, const QueuePair& pair, uint32_t packet) {
  Endpoint e;
  const PortInfo& port = device.port();
  e.device = port.name();
  e.queue_pair = pair.number();
  e.packet = packet;
  e.lid = port.lid;
  e.link = port.link;
  e.gid_type = static_cast<uint8_t>(device.gid().type);
  e.gid_index = static_cast<uint16_t>(device.gid().index);
  e.gid = device.gid().bytes;
  e.mtu = static_cast<uint32_t>(port.mtu);
  e.max_message = port.max_message;
  return e;
}

}  // namespace prunex::transport::verbs
