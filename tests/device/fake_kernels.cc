// SPDX-License-Identifier: Apache-2.0
// The table of the library that was built for the CPU, with what tests ask for around its kernels:
// counts, plans that fail, kernels that are held, and addresses that no device reaches.
#include <atomic>
#include <utility>

#include "tests/cuda/simulated/table.h"
#include "tests/device/fake_state.h"

namespace prunex::test {
namespace {

using cuda::Plan;

struct {
  std::atomic<int> packs{0}, unpacks{0}, block_packs{0}, block_unpacks{0}, keep_plans{0};
} kernel_counts;
thread_local bool plan_fails = false;

const cuda::Table& real() {
  return *prunex_simulated_table(sizeof(cuda::Table), cuda::kTableVersion);
}

int plan_create(const cuda::PlanImage* image, Plan** out) {
  const Uncounted uncounted_here;
  return std::exchange(plan_fails, false) ? cudaErrorMemoryAllocation
                                          : real().plan_create(image, out);
}

int plan_reserve_keeps(const cuda::KeepImage* image, Plan** out) {
  const Uncounted uncounted_here;
  return std::exchange(plan_fails, false) ? cudaErrorMemoryAllocation
                                          : real().plan_reserve_keeps(image, out);
}

// A kernel that would end the device's context is not started.
int check(void* stream, std::atomic<int>& kernels, const void* from, const void* to) {
  if (!reaches(from) || !reaches(to)) {
    return cudaErrorIllegalAddress;
  }
  ++kernels;
  const Uncounted uncounted_here;
  enqueue_on(stream, [to] { wait_while_held(to); });
  return cudaSuccess;
}

const std::byte* element(const void* base, uint64_t i, DType type) {
  return reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(base) + i * size_of(type));
}

int plan_from_keeps(const cuda::KeepCall* call, Plan* plan, uint64_t* kept) {
  const int wrong = check(call->stream, kernel_counts.keep_plans, call->scratch, kept);
  return wrong != cudaSuccess ? wrong : real().plan_from_keeps(call, plan, kept);
}
int pack(const cuda::MoveCall* call) {
  const void* const from = element(call->from, call->range.begin, call->type);
  const int wrong = check(call->stream, kernel_counts.packs, from, call->to);
  return wrong != cudaSuccess ? wrong : real().pack(call);
}
int unpack(const cuda::MoveCall* call) {
  const void* const to = element(call->to, call->range.begin, call->type);
  const int wrong = check(call->stream, kernel_counts.unpacks, call->from, to);
  return wrong != cudaSuccess ? wrong : real().unpack(call);
}
int pack_blocks(const cuda::BlockCall* call) {
  const int wrong = check(call->stream, kernel_counts.block_packs, call->from, call->packed);
  return wrong != cudaSuccess ? wrong : real().pack_blocks(call);
}
int unpack_blocks(const cuda::BlockCall* call) {
  if (call->blocks == 0) {
    return real().unpack_blocks(call);
  }
  const int wrong = check(call->stream, kernel_counts.block_unpacks, call->packed, call->from);
  return wrong != cudaSuccess ? wrong : real().unpack_blocks(call);
}

cuda::Table make_table() {
  cuda::Table t = real();
  t.plan_create = plan_create;
  t.plan_reserve_keeps = plan_reserve_keeps;
  t.plan_from_keeps = plan_from_keeps;
  t.pack = pack;
  t.unpack = unpack;
  t.pack_blocks = pack_blocks;
  t.unpack_blocks = unpack_blocks;
  return t;
}

// What a device keeps for good once its kernels are loaded is nobody's leak.
void prepare_devices(const cuda::Table& table) {
  cuda::Probe probe;
  int current = 0;
  (void)table.probe(&probe);
  (void)table.get_device(&current);
  for (int device = 0; device < probe.devices; ++device) {
    (void)table.set_device(device);
    (void)table.prepare();
  }
  (void)table.set_device(current);
}

}  // namespace

const cuda::Table& fake_cuda() {
  static const cuda::Table table = [] {
    const cuda::Table made = make_table();
    prepare_devices(made);
    return made;
  }();
  return table;
}

FakeKernels fake_kernels() {
  return {kernel_counts.packs, kernel_counts.unpacks, kernel_counts.block_packs,
          kernel_counts.block_unpacks, kernel_counts.keep_plans};
}
void fail_next_plan() { plan_fails = true; }

}  // namespace prunex::test
