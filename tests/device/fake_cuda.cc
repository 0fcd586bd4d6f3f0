// SPDX-License-Identifier: Apache-2.0
#include "tests/device/fake_cuda.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "tests/cuda/emulate.h"

namespace prunex::test {
namespace {

using cuda::Plan;

struct FakePlan {
  cuda::Lowered lowered;
};
struct FakeEvent {
  std::atomic<uint64_t> asked{0}, reached{0};
};

std::mutex memory_mutex;
std::map<uintptr_t, std::pair<size_t, int>> memory;  // base: bytes, device
std::atomic<int> alive{0}, made{0}, waits{0};
std::atomic<bool> held{false};
std::atomic<int> event_fault{0};
thread_local int current_device = 0;
thread_local bool plan_fails = false;

constexpr int kOutOfMemory = 2, kNotPermittedInCapture = 900;

void count(int by) {
  alive += by;
  made += by > 0 ? by : 0;
}

const FakePlan& of(const Plan* plan) { return *reinterpret_cast<const FakePlan*>(plan); }

int probe(cuda::Probe* out) {
  *out = {4, 13000, 13000, 0};
  return 0;
}
int device_facts(int, cuda::DeviceFacts* out) {
  *out = {};
  out->arch = 90;
  out->sms = 4;
  return 0;
}
int pointer_facts(const void* p, cuda::PointerFacts* out) {
  const std::lock_guard lock(memory_mutex);
  *out = {cuda::PointerKind::host, -1};
  const auto at = reinterpret_cast<uintptr_t>(p);
  auto after = memory.upper_bound(at);
  if (after != memory.begin()) {
    const auto& [base, rest] = *std::prev(after);
    if (at < base + rest.first) {
      *out = {cuda::PointerKind::device, rest.second};
    }
  }
  return 0;
}
const char* error_text(int error) { return error == kOutOfMemory ? "out of memory" : "an error"; }
int set_device(int device) {
  current_device = device;
  return 0;
}
int get_device(int* device) {
  *device = current_device;
  return 0;
}
int allocate(void** out, size_t bytes) {
  *out = device_memory(bytes);
  count(1);
  return 0;
}
int allocate_pinned(void** out, size_t bytes) {
  *out = std::calloc(1, bytes);
  count(1);
  return 0;
}
int deallocate(void* p) {
  free_device_memory(p);
  count(-1);
  return 0;
}
int deallocate_pinned(void* p) {
  std::free(p);
  count(-1);
  return 0;
}
int stream_create(void** out) {
  *out = static_cast<StreamLike*>(new FakeStream);
  count(1);
  return 0;
}
int stream_destroy(void* stream) {
  delete static_cast<StreamLike*>(stream);
  count(-1);
  return 0;
}
int stream_synchronize(void* stream) {
  ++waits;
  if (stream != nullptr) {
    static_cast<FakeStream*>(static_cast<StreamLike*>(stream))->synchronize();
  }
  return 0;
}
int stream_capturing(void* stream, int* capturing) {
  const auto* s = static_cast<FakeStream*>(static_cast<StreamLike*>(stream));
  *capturing = s != nullptr && s->capturing() ? 1 : 0;
  return 0;
}
int event_create(void** out) {
  *out = new FakeEvent;
  count(1);
  return 0;
}
int event_destroy(void* event) {
  delete static_cast<FakeEvent*>(event);
  count(-1);
  return 0;
}
int event_record(void* event, void* stream) {
  int capturing = 0;
  (void)stream_capturing(stream, &capturing);
  if (capturing != 0) {
    return kNotPermittedInCapture;
  }
  auto* e = static_cast<FakeEvent*>(event);
  const uint64_t turn = ++e->asked;
  enqueue_on(stream, [e, turn] { e->reached = turn; });
  return 0;
}
int event_done(void* event, int* done) {
  if (const int fault = event_fault) {
    return fault;
  }
  const auto* e = static_cast<FakeEvent*>(event);
  *done = e->reached == e->asked ? 1 : 0;
  return 0;
}
int stream_wait(void* stream, void* event) {
  auto* e = static_cast<FakeEvent*>(event);
  const uint64_t turn = e->asked;
  enqueue_on(stream, [e, turn] {
    while (e->reached < turn) {
      std::this_thread::yield();
    }
  });
  return 0;
}
int copy(void* to, const void* from, size_t bytes, void* stream) {
  enqueue_on(stream, [=] {
    while (held) {
      std::this_thread::yield();
    }
    std::memcpy(to, from, bytes);
  });
  return 0;
}
int fill(void* to, int byte, size_t bytes, void* stream) {
  enqueue_on(stream, [=] { std::memset(to, byte, bytes); });
  return 0;
}

int plan_create(const cuda::PlanImage* image, Plan** out) {
  if (plan_fails) {
    plan_fails = false;
    return kOutOfMemory;
  }
  auto* plan = new FakePlan;
  plan->lowered.tiles.assign(image->tiles, image->tiles + image->num_tiles);
  plan->lowered.words.assign(image->words, image->words + image->num_words);
  *out = reinterpret_cast<Plan*>(plan);
  count(1);
  return 0;
}
int plan_destroy(Plan* plan) {
  delete reinterpret_cast<FakePlan*>(plan);
  count(-1);
  return 0;
}
size_t scratch_bytes() { return 64; }

int pack(const cuda::MoveCall* call) {
  enqueue_on(call->stream, [c = *call] {
    emulate_pack({}, of(c.plan).lowered, c.range, c.type, static_cast<const std::byte*>(c.from),
                 static_cast<std::byte*>(c.to), c.record);
  });
  return 0;
}
int unpack(const cuda::MoveCall* call) {
  enqueue_on(call->stream, [c = *call] {
    emulate_unpack({}, of(c.plan).lowered, c.range, c.type, static_cast<const std::byte*>(c.from),
                   static_cast<std::byte*>(c.to));
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

cuda::Table make_table() {
  cuda::Table t{};
  t.bytes = sizeof t;
  t.version = cuda::kTableVersion;
  t.release = "stand-in";
  t.archs = "90";
  t.probe = probe;
  t.device_facts = device_facts;
  t.pointer_facts = pointer_facts;
  t.error_text = error_text;
  t.set_device = set_device;
  t.get_device = get_device;
  t.allocate = allocate;
  t.allocate_pinned = allocate_pinned;
  t.deallocate = deallocate;
  t.deallocate_pinned = deallocate_pinned;
  t.stream_create = stream_create;
  t.stream_destroy = stream_destroy;
  t.stream_synchronize = stream_synchronize;
  t.stream_capturing = stream_capturing;
  t.event_create = event_create;
  t.event_destroy = event_destroy;
  t.event_record = event_record;
  t.event_done = event_done;
  t.stream_wait = stream_wait;
  t.copy = copy;
  t.fill = fill;
  t.plan_create = plan_create;
  t.plan_destroy = plan_destroy;
  t.scratch_bytes = scratch_bytes;
  t.pack = pack;
  t.unpack = unpack;
  t.reduce = reduce;
  return t;
}

}  // namespace

FakeStream::FakeStream() : thread_([this] { serve(); }) {}

FakeStream::~FakeStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeStream::enqueue(std::function<void()> work) {
  if (capturing_) {
    graph_.push_back(std::move(work));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void FakeStream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

FakeStream::Graph FakeStream::end_capture() {
  capturing_ = false;
  return std::exchange(graph_, {});
}

void FakeStream::launch(const Graph& graph) {
  for (const auto& work : graph) {
    enqueue(work);
  }
}

void FakeStream::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    const auto work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

const cuda::Table& fake_cuda() {
  static const cuda::Table table = make_table();
  return table;
}

std::byte* device_memory(size_t bytes) {
  void* p = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
  const std::lock_guard lock(memory_mutex);
  memory[reinterpret_cast<uintptr_t>(p)] = {bytes + 1, current_device};
  return static_cast<std::byte*>(p);
}

void free_device_memory(void* p) {
  {
    const std::lock_guard lock(memory_mutex);
    memory.erase(reinterpret_cast<uintptr_t>(p));
  }
  std::free(p);
}

FakeCounts fake_counts() { return {alive, made, waits}; }
void hold_copies(bool hold) { held = hold; }
void fail_events(int error) { event_fault = error; }
void fail_next_plan() { plan_fails = true; }

}  // namespace prunex::test
