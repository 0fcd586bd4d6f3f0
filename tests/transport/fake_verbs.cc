// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/fake_verbs.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cstdio>

#include "tests/transport/fake_verbs_state.h"

namespace prunex::transport::fake {

State* world = nullptr;
thread_local int depth = 0;

FakeDevice plain_device(const char* name, uint8_t host) {
  FakeDevice d;
  d.name = name;
  FakeGid local, v4;
  local.bytes = {0xFE, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xFF, 0xFE, 0, 0, host};
  v4.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, host};
  d.ports[0].gids = {local, v4};
  return d;
}

FakeDevice device_in(const char* name, uint8_t network, uint8_t host) {
  FakeDevice d = plain_device(name, host);
  d.ports[0].gids[1].bytes[14] = network;
  return d;
}

World::World(std::vector<FakeDevice> devices) : state_(std::make_unique<State>()) {
  EXPECT_EQ(world, nullptr) << "one fake at a time";
  world = state_.get();
  state_->devices = std::move(devices);
  for (const FakeDevice& d : state_->devices) {
    auto handle = std::make_unique<ibv_device>();
    (void)snprintf(handle->name, sizeof handle->name, "%s", d.name.c_str());
    // As the kernel names its file; no machine has so many.
    (void)snprintf(handle->dev_name, sizeof handle->dev_name, "uverbs%zu",
                   size_t{900} + state_->handles.size());
    handle->transport_type = d.kind;
    (void)snprintf(handle->ibdev_path, sizeof handle->ibdev_path, "%s", d.sysfs.c_str());
    state_->handles.push_back(std::move(handle));
  }
  fill_api(state_->api);
}

World::~World() {
  const Live& l = state_->live;
  EXPECT_EQ(l.all(), 0) << "left behind: " << l.contexts << " contexts, " << l.domains
                        << " domains, " << l.regions << " regions, " << l.channels << " channels, "
                        << l.completion_queues << " completion queues, " << l.queue_pairs
                        << " queue pairs";
  for (const std::string& fault : state_->faults) {
    ADD_FAILURE() << fault;
  }
  world = nullptr;
}

const verbs::Api& World::api() const { return state_->api; }
verbs::Api& World::api_to_change() { return state_->api; }
FakeDevice& World::device(size_t i) { return state_->devices.at(i); }

void World::hold() { state_->held = true; }
size_t World::release(size_t n) {
  state_->allowed = n;
  state_->drain();
  return n - std::exchange(state_->allowed, 0U);
}
void World::resume() {
  state_->held = false;
  state_->drain();
}
void World::scatter(uint64_t seed) { state_->random = seed | 1; }
void World::swallow() { state_->swallows = true; }
void World::cut() { state_->is_cut = true; }
void World::fail_after(size_t n, ibv_wc_status status) {
  state_->fail_in = n;
  state_->fail_with = status;
}
void World::refuse_regions(int error) { state_->refuse = error; }
void World::raise(size_t device, ibv_event_type type, int port) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = port;
  raise_event(device, event);
}

std::vector<uint32_t> World::pairs() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<uint32_t> out;
  for (const auto& [number, pair] : state_->pairs) {
    out.push_back(number);
  }
  return out;
}

void World::raise_of_pair(size_t device, ibv_event_type type, uint32_t number) {
  ibv_qp* const pair = state_->pairs.at(number);
  ibv_async_event event{};
  event.event_type = type;
  if (type == IBV_EVENT_CQ_ERR) {
    event.element.cq = pair->send_cq;
  } else {
    event.element.qp = pair;
  }
  raise_event(device, event);
}

void World::raise_event(size_t device, const ibv_async_event& event) {
  const std::lock_guard lock(state_->mutex);
  for (Context* c : state_->contexts) {
    if (c->index == device) {
      c->events.push_back(event);
      (void)eventfd_write(c->async_fd, 1);
    }
  }
}

Live World::live() const { return state_->live; }
int World::registrations() const { return state_->registrations; }
std::vector<int> World::accesses() const {
  std::vector<int> out;
  for (const auto& [key, mr] : state_->regions) {
    out.push_back(static_cast<int>(mr->handle));
  }
  return out;
}
std::vector<ibv_qp_attr> World::initialised() const { return state_->init; }
std::vector<ibv_qp_attr> World::ready_to_receive() const { return state_->rtr; }
std::vector<ibv_qp_attr> World::ready_to_send() const { return state_->rts; }
std::vector<Sent> World::sent() const { return state_->sent; }
Calls World::calls() const { return state_->calls; }
void World::forget_sent() {
  state_->sent.clear();
  state_->calls = {};
}
int World::out_of_receives() const { return state_->out_of_receives; }

}  // namespace prunex::transport::fake
