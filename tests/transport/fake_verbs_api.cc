// SPDX-License-Identifier: Apache-2.0
// The fake's control path: devices, objects, queue pair states.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/transport/fake_verbs_state.h"

namespace prunex::transport::fake {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

FakeDevice& device_of(ibv_context* c) { return world->devices[static_cast<Context*>(c)->index]; }

ibv_device** get_device_list(int* n) {
  const Lock lock(world->mutex);
  auto** list = new ibv_device*[world->handles.size() + 1]();
  for (size_t i = 0; i < world->handles.size(); ++i) {
    list[i] = world->handles[i].get();
  }
  *n = static_cast<int>(world->handles.size());
  return list;
}
void free_device_list(ibv_device** list) { delete[] list; }
const char* get_device_name(ibv_device* d) { return d->name; }

ibv_context* open_device(ibv_device* d) {
  const Lock lock(world->mutex);
  size_t i = 0;
  while (world->handles[i].get() != d) {
    ++i;
  }
  if (!world->devices[i].opens) {
    errno = EPERM;
    return nullptr;
  }
  auto* c = new Context();
  c->device = d;
  c->index = i;
  c->ops.post_send = post_send;
  c->ops.post_recv = post_recv;
  c->ops.poll_cq = poll_cq;
  c->ops.req_notify_cq = req_notify_cq;
  c->async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  world->contexts.insert(c);
  ++world->live.contexts;
  return c;
}
int close_device(ibv_context* context) {
  const Lock lock(world->mutex);
  auto* c = static_cast<Context*>(context);
  world->contexts.erase(c);
  --world->live.contexts;
  ::close(c->async_fd);
  delete c;
  return 0;
}

int query_device(ibv_context* c, ibv_device_attr* out) {
  *out = {};
  const FakeDevice& d = device_of(c);
  out->phys_port_cnt = static_cast<uint8_t>(d.ports.size());
  out->max_qp = d.max_qp;
  out->max_qp_wr = d.max_qp_wr;
  out->max_cqe = d.max_cqe;
  out->max_cq = 1 << 16;
  out->max_mr = 1 << 20;
  out->node_guid = 0x1234;  // the same for all, as virtual functions may have it
  return 0;
}
int query_port(ibv_context* c, uint8_t number, _compat_ibv_port_attr* compat) {
  const FakeDevice& d = device_of(c);
  if (number < 1 || number > d.ports.size()) {
    return EINVAL;
  }
  const FakePort& p = d.ports[number - 1U];
  auto* out = reinterpret_cast<ibv_port_attr*>(compat);
  out->state = p.state;
  out->max_mtu = out->active_mtu = p.mtu;
  out->gid_tbl_len = static_cast<int>(p.gids.size());
  out->pkey_tbl_len = static_cast<uint16_t>(p.pkeys.size());
  out->max_msg_sz = p.max_msg;
  out->lid = p.lid;
  out->link_layer = p.link_layer;
  out->flags = p.flags;
  out->active_speed = p.speed;
  out->active_width = p.width;
  return 0;
}
int query_gid(ibv_context* c, uint8_t port, int index, ibv_gid* out) {
  const auto& gids = device_of(c).ports.at(port - 1U).gids;
  if (index < 0 || static_cast<size_t>(index) >= gids.size()) {
    return -1;
  }
  std::memcpy(out->raw, gids[static_cast<size_t>(index)].bytes.data(), 16);
  return 0;
}
int query_gid_ex(ibv_context* c, uint32_t port, uint32_t index, ibv_gid_entry* out, uint32_t,
                 size_t) {
  const auto& gids = device_of(c).ports.at(port - 1U).gids;
  if (index >= gids.size() || gids[index].bytes == std::array<uint8_t, 16>{}) {
    return ENODATA;
  }
  std::memcpy(out->gid.raw, gids[index].bytes.data(), 16);
  out->gid_index = index;
  out->port_num = port;
  out->gid_type = gids[index].type;
  return 0;
}
int query_pkey(ibv_context* c, uint8_t port, int index, __be16* out) {
  const auto& keys = device_of(c).ports.at(port - 1U).pkeys;
  if (static_cast<size_t>(index) >= keys.size()) {
    return -1;
  }
  *out = __builtin_bswap16(keys[static_cast<size_t>(index)]);
  return 0;
}

ibv_pd* alloc_pd(ibv_context* c) {
  const Lock lock(world->mutex);
  ++world->live.domains;
  auto* pd = new ibv_pd();
  pd->context = c;
  return pd;
}
int dealloc_pd(ibv_pd* pd) {
  const Lock lock(world->mutex);
  for (const auto& [key, mr] : world->regions) {
    if (mr->pd == pd) {
      world->fault("a protection domain was freed before its regions");
    }
  }
  --world->live.domains;
  delete pd;
  return 0;
}
ibv_comp_channel* create_comp_channel(ibv_context* c) {
  const Lock lock(world->mutex);
  auto* out = new Channel();
  out->context = c;
  out->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  ++world->live.channels;
  return out;
}
int destroy_comp_channel(ibv_comp_channel* channel) {
  const Lock lock(world->mutex);
  ::close(channel->fd);
  --world->live.channels;
  delete static_cast<Channel*>(channel);
  return 0;
}
ibv_cq* create_cq(ibv_context* c, int entries, void* context, ibv_comp_channel* channel, int) {
  const Lock lock(world->mutex);
  if (entries < 1 || entries > device_of(c).max_cqe) {
    errno = EINVAL;
    return nullptr;
  }
  auto* out = new Queue();
  out->context = c;
  out->cq_context = context;
  out->channel = channel;
  out->cqe = entries;
  ++world->live.completion_queues;
  return out;
}
int destroy_cq(ibv_cq* cq) {
  const Lock lock(world->mutex);
  auto* q = static_cast<Queue*>(cq);
  if (q->unacknowledged > 0) {
    world->fault("a completion queue was destroyed with events nobody acknowledged: it would hang");
  }
  for (const auto& [number, pair] : world->pairs) {
    if (pair->send_cq == cq || pair->recv_cq == cq) {
      world->fault("a completion queue was destroyed before its queue pairs");
    }
  }
  if (q->channel != nullptr) {
    std::erase(static_cast<Channel*>(q->channel)->events, cq);
  }
  --world->live.completion_queues;
  delete q;
  return 0;
}
int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** context) {
  const Inside inside;
  eventfd_t value = 0;
  if (eventfd_read(channel->fd, &value) != 0) {
    return -1;
  }
  const Lock lock(world->mutex);
  auto& events = static_cast<Channel*>(channel)->events;
  if (events.empty()) {
    return -1;
  }
  *cq = events.front();
  *context = events.front()->cq_context;
  events.pop_front();
  ++static_cast<Queue*>(*cq)->unacknowledged;
  return 0;
}
void ack_cq_events(ibv_cq* cq, unsigned n) {
  const Lock lock(world->mutex);
  static_cast<Queue*>(cq)->unacknowledged -= n;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  const Lock lock(world->mutex);
  const FakeDevice& d = device_of(pd->context);
  errno = init->cap.max_inline_data > d.max_inline ||
                  init->cap.max_send_wr > static_cast<uint32_t>(d.max_qp_wr) ||
                  init->cap.max_recv_wr > static_cast<uint32_t>(d.max_qp_wr) ||
                  init->qp_type != IBV_QPT_RC
              ? EINVAL
          : world->live.queue_pairs >= d.max_qp ? ENOMEM
                                                : 0;
  if (errno != 0) {
    return nullptr;
  }
  auto* out = new Pair();
  out->context = pd->context;
  out->pd = pd;
  out->send_cq = init->send_cq;
  out->recv_cq = init->recv_cq;
  out->qp_num = world->next_pair++;
  out->state = IBV_QPS_RESET;
  out->cap = init->cap;
  world->pairs[out->qp_num] = out;
  ++world->live.queue_pairs;
  return out;
}

struct Step {
  ibv_qp_state from, to;
  int needed;
};
constexpr Step kSteps[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
         IBV_QP_MAX_QP_RD_ATOMIC}};

bool is_valid(const Pair& pair, const ibv_qp_attr& a) {
  const FakeDevice& d = device_of(pair.context);
  if (a.qp_state == IBV_QPS_INIT) {
    return a.port_num >= 1 && a.port_num <= d.ports.size() &&
           a.pkey_index < d.ports[a.port_num - 1U].pkeys.size();
  }
  const FakePort& port = d.ports[pair.attr.port_num - 1U];
  if (a.qp_state == IBV_QPS_RTR) {
    const bool global = a.ah_attr.is_global != 0;
    const bool must =
        port.link_layer == IBV_LINK_LAYER_ETHERNET || (port.flags & IBV_QPF_GRH_REQUIRED) != 0;
    return a.path_mtu <= port.mtu && (global || !must) &&
           (!global || a.ah_attr.grh.sgid_index < port.gids.size()) && a.rq_psn < 1U << 24 &&
           a.ah_attr.port_num == pair.attr.port_num;
  }
  return a.sq_psn < 1U << 24 && a.retry_cnt <= 7 && a.rnr_retry <= 7 && a.timeout <= 31;
}

void take(ibv_qp_attr& into, const ibv_qp_attr& a) {
  const Lock lock(world->mutex);
  switch (a.qp_state) {
    case IBV_QPS_INIT:
      into.port_num = a.port_num;
      into.pkey_index = a.pkey_index;
      into.qp_access_flags = a.qp_access_flags;
      world->init.push_back(a);
      break;
    case IBV_QPS_RTR:
      into.ah_attr = a.ah_attr;
      into.path_mtu = a.path_mtu;
      into.dest_qp_num = a.dest_qp_num;
      into.rq_psn = a.rq_psn;
      into.min_rnr_timer = a.min_rnr_timer;
      world->rtr.push_back(a);
      break;
    default:
      into.sq_psn = a.sq_psn;
      into.timeout = a.timeout;
      into.retry_cnt = a.retry_cnt;
      into.rnr_retry = a.rnr_retry;
      world->rts.push_back(a);
  }
}

int modify_qp(ibv_qp* qp, ibv_qp_attr* a, int mask) {
  const Lock lock(world->mutex);
  auto& pair = *static_cast<Pair*>(qp);
  if ((mask & IBV_QP_STATE) == 0) {
    return EINVAL;
  }
  if (a->qp_state == IBV_QPS_ERR) {
    world->break_pair(pair);
    return 0;
  }
  const auto* step = std::find_if(std::begin(kSteps), std::end(kSteps), [&](const Step& s) {
    return s.from == pair.state && s.to == a->qp_state;
  });
  if (step == std::end(kSteps) || mask != (step->needed | IBV_QP_STATE) || !is_valid(pair, *a)) {
    return EINVAL;
  }
  take(pair.attr, *a);
  pair.state = a->qp_state;
  world->drain();
  return 0;
}
int destroy_qp(ibv_qp* qp) {
  const Lock lock(world->mutex);
  auto* pair = static_cast<Pair*>(qp);
  for (ibv_cq* cq : {pair->send_cq, pair->recv_cq}) {
    std::erase_if(static_cast<Queue*>(cq)->entries,
                  [&](const auto& e) { return e.wc.qp_num == pair->qp_num; });
  }
  world->pairs.erase(pair->qp_num);
  --world->live.queue_pairs;
  delete pair;
  world->drain();
  return 0;
}

int get_async_event(ibv_context* c, ibv_async_event* out) {
  const Inside inside;
  eventfd_t value = 0;
  if (eventfd_read(c->async_fd, &value) != 0) {
    return -1;
  }
  const Lock lock(world->mutex);
  auto& events = static_cast<Context*>(c)->events;
  *out = events.front();
  events.pop_front();
  return 0;
}
void ack_async_event(ibv_async_event*) {}

const char* wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_WR_FLUSH_ERR:
      return "Work Request Flushed Error";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retry counter exceeded";
    default:
      return "another error";
  }
}

}  // namespace

void fill_api(verbs::Api& api) {
#define PRUNEX_VERBS_FAKE(name) api.name = name;
  PRUNEX_VERBS_NEEDED(PRUNEX_VERBS_FAKE)
#undef PRUNEX_VERBS_FAKE
  api.query_port = query_port;
  api.query_gid_ex = query_gid_ex;
  api.reg_mr_iova2 = reg_mr_iova2;
  api.reg_dmabuf_mr = reg_dmabuf_mr;
}

}  // namespace prunex::transport::fake
