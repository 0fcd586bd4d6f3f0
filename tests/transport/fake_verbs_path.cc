// SPDX-License-Identifier: Apache-2.0
// The fake's data path.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/transport/fake_verbs_state.h"

namespace prunex::transport::fake {
namespace {

ibv_wc entry_of(const Pair& pair, uint64_t id, ibv_wc_status status, ibv_wc_opcode opcode) {
  ibv_wc out{};
  out.wr_id = id;
  out.status = status;
  out.opcode = opcode;
  out.qp_num = pair.qp_num;
  if (status != IBV_WC_SUCCESS) {  // undefined then: make whoever looks regret it
    out.opcode = static_cast<ibv_wc_opcode>(0x5A);
    out.byte_len = 0xDEADBEEF;
  }
  return out;
}

bool announces(const ibv_send_wr& wr) {
  return wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr.opcode == IBV_WR_SEND ||
         wr.opcode == IBV_WR_SEND_WITH_IMM;
}

}  // namespace

void State::complete(ibv_cq* to, const ibv_wc& entry, uint32_t retires) {
  auto* q = static_cast<Queue*>(to);
  if (q->entries.size() >= static_cast<size_t>(q->cqe)) {
    fault("a completion queue overran");
    return;
  }
  q->entries.push_back({entry, retires});
  if (q->armed && q->channel != nullptr) {
    q->armed = false;
    static_cast<Channel*>(q->channel)->events.push_back(q);
    (void)eventfd_write(q->channel->fd, 1);
  }
}

std::byte* State::local(const Pair& pair, const ibv_sge& piece) {
  const auto found = regions.find(piece.lkey);
  if (found == regions.end() || found->second->pd != pair.pd) {
    return nullptr;
  }
  const ibv_mr& mr = *found->second;
  const auto begin = reinterpret_cast<uint64_t>(mr.addr);
  const bool inside = piece.addr >= begin && piece.addr - begin <= mr.length &&
                      piece.length <= mr.length - (piece.addr - begin);
  return inside ? reinterpret_cast<std::byte*>(piece.addr) : nullptr;
}

Pair* State::peer_of(const Pair& pair) {
  const auto found = pairs.find(pair.attr.dest_qp_num);
  if (is_cut || found == pairs.end()) {
    return nullptr;
  }
  Pair& peer = *found->second;
  const ibv_ah_attr& way = pair.attr.ah_attr;
  const auto* there = static_cast<Context*>(peer.context);
  const FakePort& port = devices[there->index].ports.at(peer.attr.port_num - 1U);
  bool reached = way.dlid == port.lid;
  if (way.is_global != 0) {
    reached = std::any_of(port.gids.begin(), port.gids.end(), [&](const FakeGid& g) {
      return std::memcmp(g.bytes.data(), way.grh.dgid.raw, 16) == 0;
    });
  } else if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
    reached = false;
  }
  const bool agree = peer.attr.dest_qp_num == pair.qp_num && peer.attr.rq_psn == pair.attr.sq_psn &&
                     peer.attr.path_mtu == pair.attr.path_mtu;
  const bool ready = peer.state == IBV_QPS_RTR || peer.state == IBV_QPS_RTS;
  return reached && agree && ready && port.state == IBV_PORT_ACTIVE ? &peer : nullptr;
}

ibv_wc_status State::write(const Pair& from, Pair& to, const Work& work) {
  const auto& rdma = work.request.wr.rdma;
  std::byte* into = nullptr;
  if (work.length > 0) {
    const auto found = regions.find(rdma.rkey);
    if (found == regions.end() || found->second->pd != to.pd ||
        (to.attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
      return IBV_WC_REM_ACCESS_ERR;
    }
    const ibv_mr& mr = *found->second;
    const auto begin = reinterpret_cast<uint64_t>(mr.addr);
    // handle: the access flags it was registered with
    if ((mr.handle & IBV_ACCESS_REMOTE_WRITE) == 0 || rdma.remote_addr < begin ||
        rdma.remote_addr - begin > mr.length ||
        work.length > mr.length - (rdma.remote_addr - begin)) {
      return IBV_WC_REM_ACCESS_ERR;
    }
    into = reinterpret_cast<std::byte*>(rdma.remote_addr);
  }
  if (!work.bytes.empty()) {
    std::memcpy(into, work.bytes.data(), work.bytes.size());
    return IBV_WC_SUCCESS;
  }
  for (const ibv_sge& piece : work.pieces) {
    const std::byte* source = local(from, piece);
    if (source == nullptr) {
      return IBV_WC_LOC_PROT_ERR;
    }
    std::memcpy(into, source, piece.length);
    into += piece.length;
  }
  return IBV_WC_SUCCESS;
}

bool State::step(Pair& pair) {
  if (pair.waiting.empty() || pair.state != IBV_QPS_RTS) {
    return false;
  }
  if (held) {
    if (allowed == 0) {
      return false;
    }
    --allowed;
  }
  Work& work = pair.waiting.front();
  Pair* peer = peer_of(pair);
  if (swallows) {
    return false;
  }
  ibv_wc_status status = peer == nullptr ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS;
  if (peer != nullptr && announces(work.request) && peer->receives.empty()) {
    ++out_of_receives;
    if (pair.attr.rnr_retry == 7) {
      return false;  // for ever
    }
    status = IBV_WC_RNR_RETRY_EXC_ERR;
  }
  if (fail_in && (*fail_in)-- == 0) {
    fail_in.reset();
    status = fail_with;
  }
  if (status == IBV_WC_SUCCESS) {
    status = write(pair, *peer, work);
    if (status == IBV_WC_REM_ACCESS_ERR) {
      break_pair(*peer);
    }
  }
  const Work done = std::move(work);
  pair.waiting.pop_front();
  if (status == IBV_WC_SUCCESS && announces(done.request)) {
    ibv_wc entry = entry_of(*peer, peer->receives.front().wr_id, status, IBV_WC_RECV_RDMA_WITH_IMM);
    entry.byte_len = static_cast<uint32_t>(done.length);
    entry.imm_data = done.request.imm_data;
    entry.wc_flags = IBV_WC_WITH_IMM;
    peer->receives.pop_front();
    complete(peer->recv_cq, entry, 0);
  }
  if ((done.request.send_flags & IBV_SEND_SIGNALED) != 0 || status != IBV_WC_SUCCESS) {
    complete(pair.send_cq, entry_of(pair, done.request.wr_id, status, IBV_WC_RDMA_WRITE),
             1 + std::exchange(pair.silent, 0U));
  } else {
    ++pair.silent;
  }
  if (status != IBV_WC_SUCCESS) {
    break_pair(pair);
  }
  return true;
}

void State::break_pair(Pair& pair) {
  if (pair.state == IBV_QPS_ERR) {
    return;
  }
  pair.state = IBV_QPS_ERR;
  for (const Work& w : pair.waiting) {
    complete(pair.send_cq, entry_of(pair, w.request.wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE),
             1);
  }
  for (const ibv_recv_wr& r : pair.receives) {
    complete(pair.recv_cq, entry_of(pair, r.wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV), 0);
  }
  pair.waiting.clear();
  pair.receives.clear();
}

// Not while somebody sleeps on a completion: it would sleep for ever.
bool State::idles() {
  if (random == 0 || std::any_of(pairs.begin(), pairs.end(), [](const auto& p) {
        return static_cast<const Queue*>(p.second->send_cq)->armed;
      })) {
    return false;
  }
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return (random >> 20) % 4 != 0;
}

void State::drain() {
  if (draining) {
    return;
  }
  draining = true;
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& [number, pair] : pairs) {
      moved = (!idles() && step(*pair)) || moved;
    }
  }
  draining = false;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  const Inside inside;
  const std::lock_guard lock(world->mutex);
  ++world->calls.post_send;
  auto& pair = *static_cast<Pair*>(qp);
  for (; wr != nullptr; wr = wr->next) {
    *bad = wr;
    if (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) {
      return EINVAL;
    }
    if (pair.outstanding >= pair.cap.max_send_wr) {
      world->fault("a send queue overran");
      return ENOMEM;
    }
    Work work;
    work.request = *wr;
    work.pieces.assign(wr->sg_list, wr->sg_list + wr->num_sge);
    for (const ibv_sge& piece : work.pieces) {
      work.length += piece.length;
    }
    const bool is_inline = (wr->send_flags & IBV_SEND_INLINE) != 0;
    const auto* context = static_cast<Context*>(qp->context);
    const FakePort& port = world->devices[context->index].ports.at(pair.attr.port_num - 1U);
    if ((is_inline && work.length > pair.cap.max_inline_data) || work.length > port.max_msg ||
        wr->num_sge > static_cast<int>(pair.cap.max_send_sge)) {
      return EINVAL;
    }
    if (is_inline) {
      for (const ibv_sge& piece : work.pieces) {
        const auto* from = reinterpret_cast<const std::byte*>(piece.addr);
        work.bytes.insert(work.bytes.end(), from, from + piece.length);
      }
    }
    world->sent.push_back({wr->opcode, work.length, is_inline, pair.qp_num, context->index});
    ++pair.outstanding;
    if (pair.state == IBV_QPS_ERR) {
      world->complete(pair.send_cq,
                      entry_of(pair, wr->wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE), 1);
      continue;
    }
    pair.waiting.push_back(std::move(work));
  }
  world->drain();
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const Inside inside;
  const std::lock_guard lock(world->mutex);
  ++world->calls.post_recv;
  auto& pair = *static_cast<Pair*>(qp);
  for (; wr != nullptr; wr = wr->next) {
    *bad = wr;
    if (pair.state == IBV_QPS_RESET) {
      return EINVAL;
    }
    if (pair.receives.size() >= pair.cap.max_recv_wr) {
      world->fault("a receive queue overran");
      return ENOMEM;
    }
    if (pair.state == IBV_QPS_ERR) {
      world->complete(pair.recv_cq, entry_of(pair, wr->wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV), 0);
      continue;
    }
    pair.receives.push_back(*wr);
  }
  world->drain();
  return 0;
}

int poll_cq(ibv_cq* cq, int n, ibv_wc* out) {
  const Inside inside;
  const std::lock_guard lock(world->mutex);
  ++world->calls.poll_cq;
  auto& queue = *static_cast<Queue*>(cq);
  if (world->random != 0) {
    world->drain();
  }
  int got = 0;
  for (; got < n && !queue.entries.empty(); ++got) {
    out[got] = queue.entries.front().wc;
    const uint32_t retires = queue.entries.front().retires;
    queue.entries.pop_front();
    if (const auto pair = world->pairs.find(out[got].qp_num); pair != world->pairs.end()) {
      pair->second->outstanding -= retires;
    }
  }
  return got;
}

int req_notify_cq(ibv_cq* cq, int) {
  const Inside inside;
  const std::lock_guard lock(world->mutex);
  ++world->calls.req_notify_cq;
  static_cast<Queue*>(cq)->armed = true;
  if (world->random != 0) {
    world->drain();
  }
  return 0;
}

}  // namespace prunex::transport::fake
