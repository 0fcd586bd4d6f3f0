// SPDX-License-Identifier: Apache-2.0
// The fake of one process as a file named libibverbs.so.1, for what opens that by its name. Which
// devices there are, the environment says: FAKE_IBVERBS is a list by comma of
// name[:IPv4's last byte][:fault], fault one of down, closed (cannot be opened), nomem (memory
// cannot be registered); unset: rxe0:1. An empty list is a machine without devices.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "tests/transport/fake_verbs.h"

namespace prunex::transport::fake {
namespace {

bool g_refuses = false;
long g_fork_inits = 0;  // while nothing was registered yet
World* g_world = nullptr;

FakeDevice device_of(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string rest = colon < text.size() ? text.substr(colon + 1) : std::string();
  FakeDevice d = plain_device(text.substr(0, colon).c_str(),
                              static_cast<uint8_t>(std::max(1, std::atoi(rest.c_str()))));
  d.opens = rest.find("closed") == std::string::npos;
  d.ports[0].state = rest.find("down") == std::string::npos ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  g_refuses = g_refuses || rest.find("nomem") != std::string::npos;
  return d;
}

std::vector<FakeDevice> devices() {
  const char* set = std::getenv("FAKE_IBVERBS");
  const std::string list = set == nullptr ? "rxe0:1" : set;
  std::vector<FakeDevice> out;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    out.push_back(device_of(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  return out;
}

// Lives until the process ends: what a test leaves behind there, the test itself has to look for.
const verbs::Api& api() {
  static World* const world = [] {
    auto* made = new World(devices());
    g_world = made;
    if (g_refuses) {
      made->refuse_regions(ENOMEM);
    }
    return made;
  }();
  return world->api();
}

}  // namespace
}  // namespace prunex::transport::fake

// Each exported function is the fake's own, found when it is looked up.
using Any = void (*)();
#define PRUNEX_FAKE_EXPORT(member, symbol)                               \
  extern "C" __attribute__((used)) Any prunex_fake_find_##member() {     \
    return reinterpret_cast<Any>(prunex::transport::fake::api().member); \
  }                                                                      \
  extern "C" __attribute__((                                             \
      visibility("default"),                                             \
      ifunc("prunex_fake_find_" #member))) void prunex_fake_##member() __asm__(#symbol);
#define PRUNEX_FAKE_NEEDED(name) PRUNEX_FAKE_EXPORT(name, ibv_##name)
PRUNEX_VERBS_NEEDED(PRUNEX_FAKE_NEEDED)
PRUNEX_FAKE_EXPORT(query_port, ibv_query_port)
PRUNEX_FAKE_EXPORT(query_gid_ex, _ibv_query_gid_ex)
PRUNEX_FAKE_EXPORT(reg_mr_iova2, ibv_reg_mr_iova2)
PRUNEX_FAKE_EXPORT(reg_dmabuf_mr, ibv_reg_dmabuf_mr)

extern "C" __attribute__((visibility("default"))) int ibv_fork_init() {
  using prunex::transport::fake::g_world;
  const bool early = g_world == nullptr || g_world->registrations() == 0;
  prunex::transport::fake::g_fork_inits += early ? 1 : 0;
  return early ? 0 : EINVAL;
}
extern "C" __attribute__((visibility("default"))) long fake_ibverbs_fork_inits() {
  return prunex::transport::fake::g_fork_inits;
}

// For tests that load the library by its name. Calls of reg_mr, ever; regions that there are; all
// writes; the longest write; writes of the length in which the transport sends what it has to copy.
extern "C" __attribute__((visibility("default"))) long fake_ibverbs_registrations() {
  (void)prunex::transport::fake::api();
  return prunex::transport::fake::g_world->registrations();
}
extern "C" __attribute__((visibility("default"))) long fake_ibverbs_regions() {
  return prunex::transport::fake::g_world->live().regions;
}
extern "C" __attribute__((visibility("default"))) long fake_ibverbs_writes() {
  return static_cast<long>(prunex::transport::fake::g_world->sent().size());
}
extern "C" __attribute__((visibility("default"))) long fake_ibverbs_longest() {
  uint64_t longest = 0;
  for (const auto& sent : prunex::transport::fake::g_world->sent()) {
    longest = std::max(longest, sent.bytes);
  }
  return static_cast<long>(longest);
}
extern "C" __attribute__((visibility("default"))) long fake_ibverbs_pieces() {
  long n = 0;
  for (const auto& sent : prunex::transport::fake::g_world->sent()) {
    n += sent.bytes == (32 << 10) ? 1 : 0;
  }
  return n;
}
