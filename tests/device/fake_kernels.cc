// SPDX-License-Identifier: Apache-2.0
// The stand-in's plans and kernels: the device's own functions, thread by thread on the CPU.
#include <atomic>
#include <thread>

#include "kernels/cuda/lower_keeps.h"
#include "tests/cuda/emulate.h"
#include "tests/cuda/emulate_keeps.h"
#include "tests/device/fake_state.h"

namespace prunex::test {
namespace {

using cuda::Plan;

struct FakePlan {
  cuda::Lowered lowered;
  cuda::LoweredKeeps keeps;  // reserved for keep vectors
  bool whole = true;         // the tiles are made
};
const FakePlan& of(const Plan* plan) { return *reinterpret_cast<const FakePlan*>(plan); }

struct {
  std::atomic<int> packs{0}, unpacks{0}, block_packs{0}, block_unpacks{0}, keep_plans{0};
} kernel_counts;
thread_local bool plan_fails = false;

int plan_create(const cuda::PlanImage* image, Plan** out) {
  if (plan_fails) {
    plan_fails = false;
    return kOutOfMemory;
  }
  auto* plan = new FakePlan;
  plan->lowered.tiles.assign(image->tiles, image->tiles + image->num_tiles);
  plan->lowered.words.assign(image->words, image->words + image->num_words);
  *out = reinterpret_cast<Plan*>(plan);
  count_allocation(1);
  return 0;
}
template <class T>
std::vector<T> array_of(const T* from, size_t n) {
  return {from, from + n};
}
int plan_reserve_keeps(const cuda::KeepImage* image, Plan** out) {
  const cuda::PlanImage empty{};
  if (const int error = plan_create(&empty, out)) {
    return error;
  }
  auto* plan = reinterpret_cast<FakePlan*>(*out);
  const cuda::KeepArrays& from = image->arrays;
  plan->keeps.tensors = array_of(from.tensors, image->num_tensors);
  plan->keeps.places = array_of(from.places, image->num_tiles);
  plan->keeps.tensor_of_row = array_of(from.tensor_of_row, image->num_rows);
  plan->keeps.tensor_of_word = array_of(from.tensor_of_word, image->num_words);
  plan->whole = false;
  return 0;
}
size_t keep_scratch_bytes(const Plan* plan) { return 8 * of(plan).keeps.tensor_of_row.size() + 8; }
int plan_destroy(Plan* plan) {
  delete reinterpret_cast<FakePlan*>(plan);
  count_allocation(-1);
  return 0;
}
size_t scratch_bytes() { return 64; }

int launch(void* stream, std::atomic<int>& kernels, const void* from, const void* to) {
  const auto* s = static_cast<FakeStream*>(static_cast<StreamLike*>(stream));
  int current = 0;
  (void)fake_cuda().get_device(&current);
  if (s != nullptr && s->device() != current) {
    return kInvalidHandle;
  }
  if (!reaches(from) || !reaches(to)) {
    return kIllegalAddress;
  }
  ++kernels;
  return fault_of(FakeCall::launch);
}

const std::byte* element(const void* base, uint64_t i, DType type) {
  return reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(base) + i * size_of(type));
}

int plan_from_keeps(const cuda::KeepCall* call, Plan* plan, uint64_t* kept) {
  if (call->scratch_bytes < keep_scratch_bytes(plan)) {
    return kInvalidValue;
  }
  if (const int fault = launch(call->stream, kernel_counts.keep_plans, call->scratch, kept)) {
    return fault;
  }
  enqueue_on(call->stream, [c = *call, p = reinterpret_cast<FakePlan*>(plan), kept] {
    p->lowered = emulate_keeps(p->keeps, c.keeps);
    *kept = p->lowered.kept;
    p->whole = true;
  });
  return 0;
}

int pack(const cuda::MoveCall* call) {
  const void* const from = element(call->from, call->range.begin, call->type);
  if (const int fault = launch(call->stream, kernel_counts.packs, from, call->to)) {
    return fault;
  }
  enqueue_on(call->stream, [c = *call] {
    wait_while_held(c.to);
    emulate_pack({}, of(c.plan).lowered, c.range, c.type, static_cast<const std::byte*>(c.from),
                 static_cast<std::byte*>(c.to), c.record, c.exact);
  });
  return 0;
}
int unpack(const cuda::MoveCall* call) {
  const void* const to = element(call->to, call->range.begin, call->type);
  if (const int fault = launch(call->stream, kernel_counts.unpacks, call->from, to)) {
    return fault;
  }
  enqueue_on(call->stream, [c = *call] {
    wait_while_held(element(c.to, c.range.begin, c.type));
    emulate_unpack({}, of(c.plan).lowered, c.range, c.type, static_cast<const std::byte*>(c.from),
                   static_cast<std::byte*>(c.to));
  });
  return 0;
}

size_t block_scratch_bytes(size_t blocks) { return blocks; }
bool valid(const cuda::BlockCall& c, uint32_t multiple) {
  return cuda::address_mod(c.packed, multiple) == 0 && cuda::address_mod(c.bits, 8) == 0 &&
         c.scratch_bytes >= block_scratch_bytes(c.blocks) && reaches(c.bits) && reaches(c.scratch);
}
int pack_blocks(const cuda::BlockCall* call) {
  if (!valid(*call, 8)) {
    return kInvalidValue;
  }
  if (const int fault = launch(call->stream, kernel_counts.block_packs, call->from, call->packed)) {
    return fault;
  }
  enqueue_on(call->stream, [c = *call] {
    wait_while_held(c.packed);
    emulate_pack_blocks(c);
  });
  return 0;
}
int unpack_blocks(const cuda::BlockCall* call) {
  if (!valid(*call, 16)) {
    return kInvalidValue;
  }
  if (call->blocks == 0) {
    return 0;
  }
  if (const int fault =
          launch(call->stream, kernel_counts.block_unpacks, call->packed, call->from)) {
    return fault;
  }
  enqueue_on(call->stream, [c = *call] {
    wait_while_held(c.from);
    emulate_unpack_blocks(c);
  });
  return 0;
}
int reduce(const cuda::ReduceCall* call) {
  if (call->reduction.own >= 0) {
    return 1;  // not used by this library's host part
  }
  enqueue_on(call->move.stream, [c = *call] {
    cuda::with_accumulator(c.reduction.in, [&](auto a) {
      cuda::reduce_flat<decltype(a)>(c.reduction, c.count, 0, 1);
    });
  });
  return 0;
}

}  // namespace

void add_fake_kernels(cuda::Table& t) {
  t.plan_create = plan_create;
  t.plan_destroy = plan_destroy;
  t.plan_reserve_keeps = plan_reserve_keeps;
  t.keep_scratch_bytes = keep_scratch_bytes;
  t.plan_from_keeps = uncounted<plan_from_keeps>;
  t.scratch_bytes = scratch_bytes;
  t.pack = uncounted<pack>;
  t.unpack = uncounted<unpack>;
  t.reduce = uncounted<reduce>;
  t.block_scratch_bytes = block_scratch_bytes;
  t.pack_blocks = uncounted<pack_blocks>;
  t.unpack_blocks = uncounted<unpack_blocks>;
}

FakeKernels fake_kernels() {
  return {kernel_counts.packs, kernel_counts.unpacks, kernel_counts.block_packs,
          kernel_counts.block_unpacks, kernel_counts.keep_plans};
}
void fail_next_plan() { plan_fails = true; }

}  // namespace prunex::test
