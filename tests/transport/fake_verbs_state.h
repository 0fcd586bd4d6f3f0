// SPDX-License-Identifier: Apache-2.0
// What the fake's objects hold. Each begins with the library's own structure.
#pragma once
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "tests/transport/fake_verbs.h"

namespace prunex::transport::fake {

struct Context : ibv_context {
  size_t index = 0;
  std::deque<ibv_async_event> events;
};

struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
};

struct Queue : ibv_cq {
  struct Entry {
    ibv_wc wc;
    uint32_t retires = 0;  // places of the send queue that polling it frees
  };
  std::deque<Entry> entries;
  bool armed = false;
  unsigned unacknowledged = 0;
};

struct Work {
  ibv_send_wr request{};
  std::vector<ibv_sge> pieces;
  std::vector<std::byte> bytes;  // inline data
  uint64_t length = 0;
};

struct Pair : ibv_qp {
  ibv_qp_cap cap{};
  ibv_qp_attr attr{};
  std::deque<Work> waiting;
  std::deque<ibv_recv_wr> receives;
  uint32_t outstanding = 0;  // places of the send queue in use: until a completion is polled
  uint32_t silent = 0;       // executed without a completion since the last
};

struct State {
  std::recursive_mutex mutex;
  std::vector<FakeDevice> devices;
  std::vector<std::unique_ptr<ibv_device>> handles;
  std::set<Context*> contexts;
  std::map<uint32_t, ibv_mr*> regions;  // by key
  std::map<uint32_t, Pair*> pairs;
  std::vector<std::string> faults;  // rules that were broken
  verbs::Api api;
  Live live;
  bool held = false, is_cut = false, swallows = false, draining = false;
  uint64_t random = 0;  // not 0: every queue pair works when it likes
  size_t allowed = 0;   // while held: so many may pass
  std::optional<size_t> fail_in;
  ibv_wc_status fail_with = IBV_WC_SUCCESS;
  int refuse = 0, registrations = 0, out_of_receives = 0;
  uint32_t next_key = 0x1000, next_pair = 0x11;
  std::vector<ibv_qp_attr> init, rtr, rts;
  std::vector<Sent> sent;
  Calls calls;

  void fault(std::string text) { faults.push_back(std::move(text)); }
  void complete(ibv_cq* to, const ibv_wc& entry, uint32_t retires);
  void drain();                 // runs what may run, on all pairs
  bool idles();                 // whether a queue pair does not feel like working now
  bool step(Pair& pair);        // one work request; false: nothing, or it must wait
  void break_pair(Pair& pair);  // to the error state, flushing both queues
  Pair* peer_of(const Pair& pair);
  std::byte* local(const Pair& pair, const ibv_sge& piece);
  ibv_wc_status write(const Pair& from, Pair& to, const Work& work);
};

extern State* world;  // the current one

ibv_mr* reg_mr(ibv_pd* pd, void* data, size_t bytes, int access);
ibv_mr* reg_mr_iova2(ibv_pd* pd, void* data, size_t bytes, uint64_t iova, unsigned access);
ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access);
int dereg_mr(ibv_mr* mr);

struct Inside {
  Inside() { ++depth; }
  ~Inside() { --depth; }
};

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int poll_cq(ibv_cq* cq, int n, ibv_wc* out);
int req_notify_cq(ibv_cq* cq, int solicited);
void fill_api(verbs::Api& api);

}  // namespace prunex::transport::fake
