// SPDX-License-Identifier: Apache-2.0
// The fake's memory regions.
#include <cerrno>

#include "tests/transport/fake_verbs_state.h"

namespace prunex::transport::fake {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;
constexpr unsigned kOptional = 0x3FF00000;  // flags that only reg_mr_iova2 knows

FakeDevice& device_of(ibv_pd* pd) {
  const Lock lock(world->mutex);
  return world->devices[static_cast<Context*>(pd->context)->index];
}

ibv_mr* add_region(ibv_pd* pd, void* data, size_t bytes, int access) {
  const Lock lock(world->mutex);
  ++world->registrations;
  const bool allowed =
      (access & IBV_ACCESS_REMOTE_WRITE) == 0 || (access & IBV_ACCESS_LOCAL_WRITE) != 0;
  if (world->refuse != 0 || !allowed || bytes == 0) {
    errno = world->refuse != 0 ? world->refuse : EINVAL;
    return nullptr;
  }
  auto* mr = new ibv_mr();
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = data;
  mr->length = bytes;
  mr->handle = static_cast<uint32_t>(access);
  mr->lkey = mr->rkey = world->next_key += 0x11;
  world->regions[mr->lkey] = mr;
  ++world->live.regions;
  return mr;
}

}  // namespace

ibv_mr* reg_mr(ibv_pd* pd, void* data, size_t bytes, int access) {
  if ((static_cast<unsigned>(access) & kOptional) != 0) {
    errno = EINVAL;
    return nullptr;
  }
  return add_region(pd, data, bytes, access);
}

ibv_mr* reg_mr_iova2(ibv_pd* pd, void* data, size_t bytes, uint64_t, unsigned access) {
  if (!device_of(pd).takes_relaxed && (access & kOptional) != 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return add_region(pd, data, bytes, static_cast<int>(access));
}

ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t, size_t bytes, uint64_t iova, int, int access) {
  if (const int error = device_of(pd).dmabuf_error; error != 0) {
    errno = error;
    return nullptr;
  }
  return add_region(pd, reinterpret_cast<void*>(iova), bytes, access);
}

int dereg_mr(ibv_mr* mr) {
  const Lock lock(world->mutex);
  world->regions.erase(mr->lkey);
  --world->live.regions;
  delete mr;
  return 0;
}

}  // namespace prunex::transport::fake
