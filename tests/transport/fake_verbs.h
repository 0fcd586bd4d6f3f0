// SPDX-License-Identifier: Apache-2.0
// A libibverbs in one process: reliable connected queue pairs that move bytes by memcpy, check what
// hardware checks, complete in order, and go wrong on command. Work is done when it is posted,
// unless it is held. One World at a time.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/transport/verbs/api.h"

namespace prunex::transport::fake {

struct FakeGid {
  std::array<uint8_t, 16> bytes{};
  unsigned type = IBV_GID_TYPE_ROCE_V2;  // of ibv_gid_type
};

struct FakePort {
  ibv_port_state state = IBV_PORT_ACTIVE;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_4096;
  uint32_t max_msg = 1U << 30;
  uint8_t flags = 0;
  uint8_t speed = 32, width = 2;  // active_speed and active_width: 4 lanes of 25 Gb/s
  std::vector<FakeGid> gids;      // all zero: an empty place of the table
  std::vector<uint16_t> pkeys = {0xFFFF};
};

struct FakeDevice {
  std::string name = "rxe0";
  bool opens = true;
  ibv_transport_type kind = IBV_TRANSPORT_IB;
  std::string sysfs;  // folder of what the kernel says about it
  std::vector<FakePort> ports = {FakePort{}};
  int max_qp = 1000, max_qp_wr = 4096, max_cqe = 65536;
  uint32_t max_inline = 64;
  bool takes_relaxed = true;  // else reg_mr_iova2 refuses optional flags
  int dmabuf_error = 0;       // of reg_dmabuf_mr; 0: it works
};

// rxe0 with a link-local GID and 10.0.0.1.
[[nodiscard]] FakeDevice plain_device(const char* name = "rxe0", uint8_t host = 1);
// The same, in 10.0.`network`.0/24.
[[nodiscard]] FakeDevice device_in(const char* name, uint8_t network, uint8_t host);

struct Live {
  int contexts = 0, domains = 0, regions = 0, channels = 0, completion_queues = 0, queue_pairs = 0;
  [[nodiscard]] int all() const {
    return contexts + domains + regions + channels + completion_queues + queue_pairs;
  }
};

struct Sent {  // one posted work request
  ibv_wr_opcode opcode;
  uint64_t bytes;
  bool is_inline;
  uint32_t qp_num;
  size_t device;
};

struct Calls {  // of the data path, by whoever
  size_t post_send = 0, post_recv = 0, poll_cq = 0, req_notify_cq = 0;
};

struct State;

// How deep the calling thread is in the fake, whose own allocations are nobody's business.
extern thread_local int depth;

class World {
 public:
  explicit World(std::vector<FakeDevice> devices);
  ~World();  // complains about what was not destroyed, and about every broken rule
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] const verbs::Api& api() const;
  [[nodiscard]] verbs::Api& api_to_change();
  [[nodiscard]] FakeDevice& device(size_t i);

  void hold();                  // what is posted from now on waits
  size_t release(size_t n);     // lets so many of the oldest waiting through; how many there were
  void resume();                // all of them, and no more holding
  void scatter(uint64_t seed);  // from now on every queue pair works when it likes
  void cut();                   // the network is gone: whatever is sent ends with status 12
  void swallow();               // the network is gone, and the device tries again for ever
  void fail_after(size_t n, ibv_wc_status status);  // the n-th work request from now on, from 0
  void refuse_regions(int error);                   // reg_mr gives that errno; 0: works again
  void raise(size_t device, ibv_event_type type, int port);
  // About a queue pair, or its queue of completions.
  void raise_of_pair(size_t device, ibv_event_type type, uint32_t number);
  [[nodiscard]] std::vector<uint32_t> pairs() const;  // the numbers of those there are

  [[nodiscard]] Live live() const;
  [[nodiscard]] int registrations() const;          // calls of reg_mr, ever
  [[nodiscard]] std::vector<int> accesses() const;  // flags of the regions there are
  [[nodiscard]] std::vector<ibv_qp_attr> ready_to_receive() const;  // what modify_qp was given
  [[nodiscard]] std::vector<ibv_qp_attr> ready_to_send() const;
  [[nodiscard]] std::vector<ibv_qp_attr> initialised() const;
  [[nodiscard]] std::vector<Sent> sent() const;
  [[nodiscard]] Calls calls() const;
  void forget_sent();                         // and the calls
  [[nodiscard]] int out_of_receives() const;  // how often a message met no receive

 private:
  void raise_event(size_t device, const ibv_async_event& event);
  std::unique_ptr<State> state_;
};

}  // namespace prunex::transport::fake
