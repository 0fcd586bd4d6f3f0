// SPDX-License-Identifier: Apache-2.0
#include "tests/device/fake_cuda.h"

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "plugin/device/release.h"
#include "tests/device/fake_state.h"

namespace prunex::test {
namespace {

struct FakeEvent {
  std::atomic<uint64_t> asked{0}, reached{0};
};

struct Allocation {
  size_t bytes;
  cuda::PointerFacts facts;
};
std::mutex memory_mutex;
std::map<uintptr_t, Allocation> memory;  // by base
std::atomic<int> alive{0}, made{0}, waits{0}, flushes{0};
std::atomic<cuda::RemoteWrites> remote_writes{cuda::RemoteWrites::never};
std::atomic<uintptr_t> held_begin{0}, held_end{0};
std::atomic<uint64_t> streams{0}, held_streams{0};  // made so far; when the holding began
thread_local uint64_t current_stream = 0;
std::atomic<bool> exports{false};
std::array<std::atomic<int>, kFakeCalls> faults{};
thread_local int current_device = 0;

void remember(void* p, size_t bytes, cuda::PointerKind kind) {
  const std::lock_guard lock(memory_mutex);
  memory[reinterpret_cast<uintptr_t>(p)] = {bytes + 1, {kind, current_device}};
}
void forget(void* p) {
  const std::lock_guard lock(memory_mutex);
  memory.erase(reinterpret_cast<uintptr_t>(p));
}

int probe(cuda::Probe* out) {
  *out = {4, 13000, 13000, 0};
  return 0;
}
int device_facts(int, cuda::DeviceFacts* out) {
  *out = {};
  out->arch = 90;
  out->sms = 4;
  out->remote_writes = remote_writes;
  return 0;
}
int flush_remote_writes() {
  ++flushes;
  return fault_of(FakeCall::flush);
}
int pointer_facts(const void* p, cuda::PointerFacts* out) {
  const std::lock_guard lock(memory_mutex);
  *out = {cuda::PointerKind::host, -1};
  const auto at = reinterpret_cast<uintptr_t>(p);
  auto after = memory.upper_bound(at);
  if (after != memory.begin()) {
    const auto& [base, rest] = *std::prev(after);
    if (at < base + rest.bytes) {
      *out = rest.facts;
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
  if (const int fault = fault_of(FakeCall::allocate)) {
    return fault;
  }
  *out = device_memory(bytes);
  count_allocation(1);
  return 0;
}
int allocate_pinned(void** out, size_t bytes) {
  if (const int fault = fault_of(FakeCall::allocate_pinned)) {
    return fault;
  }
  *out = std::calloc(1, bytes);
  remember(*out, bytes, cuda::PointerKind::pinned);
  count_allocation(1);
  return 0;
}
int export_dmabuf(const void* p, size_t, int* fd, uint64_t* offset) {
  if (!exports || !reaches(p)) {
    return kNotSupported;
  }
  *fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  *offset = reinterpret_cast<uintptr_t>(p) % 4096;
  return 0;
}
int deallocate(void* p) {
  free_device_memory(p);
  count_allocation(-1);
  return 0;
}
int deallocate_pinned(void* p) {
  forget(p);
  std::free(p);
  count_allocation(-1);
  return 0;
}
int stream_create(void** out) {
  *out = static_cast<StreamLike*>(new FakeStream);
  count_allocation(1);
  return 0;
}
int stream_destroy(void* stream) {
  delete static_cast<StreamLike*>(stream);
  count_allocation(-1);
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
  count_allocation(1);
  return 0;
}
int event_destroy(void* event) {
  delete static_cast<FakeEvent*>(event);
  count_allocation(-1);
  return 0;
}
int event_record(void* event, void* stream) {
  int capturing = 0;
  (void)stream_capturing(stream, &capturing);
  if (capturing != 0) {
    return kNotPermittedInCapture;
  }
  if (const int fault = fault_of(FakeCall::event_record)) {
    return fault;
  }
  auto* e = static_cast<FakeEvent*>(event);
  const uint64_t turn = ++e->asked;
  enqueue_on(stream, [e, turn] { e->reached = turn; });
  return 0;
}
int event_done(void* event, int* done) {
  if (const int fault = fault_of(FakeCall::event_done)) {
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
  if (const int fault = fault_of(FakeCall::copy)) {
    return fault;
  }
  enqueue_on(stream, [=] {
    wait_while_held(to);
    std::memcpy(to, from, bytes);
  });
  return 0;
}
int fill(void* to, int byte, size_t bytes, void* stream) {
  enqueue_on(stream, [=] { std::memset(to, byte, bytes); });
  return 0;
}

cuda::Table make_table() {
  cuda::Table t{};
  t.bytes = sizeof t;
  t.version = cuda::kTableVersion;
  t.release = device::release();
  t.archs = "90";
  t.probe = probe;
  t.device_facts = device_facts;
  t.pointer_facts = pointer_facts;
  t.error_text = error_text;
  t.set_device = set_device;
  t.get_device = get_device;
  t.allocate = allocate;
  t.allocate_pinned = allocate_pinned;
  t.export_dmabuf = export_dmabuf;
  t.flush_remote_writes = flush_remote_writes;
  t.deallocate = deallocate;
  t.deallocate_pinned = deallocate_pinned;
  t.stream_create = stream_create;
  t.stream_destroy = stream_destroy;
  t.stream_synchronize = stream_synchronize;
  t.stream_capturing = stream_capturing;
  t.event_create = event_create;
  t.event_destroy = event_destroy;
  t.event_record = uncounted<event_record>;
  t.event_done = event_done;
  t.stream_wait = uncounted<stream_wait>;
  t.copy = uncounted<copy>;
  t.fill = uncounted<fill>;
  add_fake_kernels(t);
  return t;
}

}  // namespace

int fault_of(FakeCall call) { return faults[static_cast<size_t>(call)]; }

void wait_while_held(const void* to) {
  const auto at = reinterpret_cast<uintptr_t>(to);
  while (at >= held_begin && at < held_end && current_stream <= held_streams) {
    std::this_thread::yield();
  }
}

void count_allocation(int by) {
  alive += by;
  made += by > 0 ? by : 0;
}

bool reaches(const void* p) {
  cuda::PointerFacts facts{};
  (void)pointer_facts(p, &facts);
  return facts.kind != cuda::PointerKind::host;
}

FakeStream::FakeStream()
    : device_(current_device), number_(++streams), thread_([this] { serve(); }) {}

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
  current_stream = number_;
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
  remember(p, bytes, cuda::PointerKind::device);
  return static_cast<std::byte*>(p);
}

void free_device_memory(void* p) {
  forget(p);
  std::free(p);
}

FakeCounts fake_counts() { return {alive, made, waits, flushes}; }
uint64_t pinned_bytes() {
  const std::lock_guard lock(memory_mutex);
  uint64_t sum = 0;
  for (const auto& [base, one] : memory) {
    sum += one.facts.kind == cuda::PointerKind::pinned ? one.bytes - 1 : 0;
  }
  return sum;
}
void hold_copies(bool hold) {
  held_end = 0;
  held_streams = streams.load();
  held_begin = 0;
  held_end = hold ? ~uintptr_t{0} : 0;
}
void hold_copies_to(const void* begin, size_t bytes) {
  held_end = 0;
  held_streams = streams.load();
  held_begin = reinterpret_cast<uintptr_t>(begin);
  held_end = held_begin + bytes;
}
void allow_dmabuf(bool allow) { exports = allow; }
void see_remote_writes(cuda::RemoteWrites how) { remote_writes = how; }
void fail_calls(FakeCall call, int error) { faults[static_cast<size_t>(call)] = error; }

}  // namespace prunex::test
