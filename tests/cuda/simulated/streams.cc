// SPDX-License-Identifier: Apache-2.0
// Streams are threads that run their work in order; events, graphs, and the start of kernels.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "tests/device/fake_state.h"

using prunex::test::FakeStream;
using Clock = std::chrono::steady_clock;

struct SimulatedEvent {
  std::atomic<uint64_t> asked{0}, reached{0};
  std::atomic<Clock::rep> when{0};
};
struct SimulatedGraph {
  FakeStream::Graph work;
};

namespace prunex::test {
namespace {

std::atomic<uintptr_t> held_begin{0}, held_end{0};
std::atomic<uint64_t> streams{0}, held_streams{0};  // made so far; when the holding began
thread_local uint64_t current_stream = 0;
std::atomic<int> captures{0};  // in global mode
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
std::mutex all_mutex;
std::vector<FakeStream*> all_streams;

FakeStream* of(cudaStream_t stream) { return static_cast<FakeStream*>(stream); }

void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) {
    count_default_use();
  }
  enqueue_on(stream, std::move(work));
}

int current_device() {
  int device = 0;
  (void)cudaGetDevice(&device);
  return device;
}

}  // namespace

void wait_while_held(const void* to) {
  const auto at = reinterpret_cast<uintptr_t>(to);
  while (at >= held_begin && at < held_end && current_stream <= held_streams) {
    std::this_thread::yield();
  }
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

bool ends_capture() { return captures > 0 && capture_mode != cudaStreamCaptureModeRelaxed; }

FakeStream::FakeStream()
    : device_(current_device()), number_(++streams), thread_([this] { serve(); }) {
  const std::lock_guard lock(all_mutex);
  all_streams.push_back(this);
}

FakeStream::~FakeStream() {
  {
    const std::lock_guard lock(all_mutex);
    all_streams.erase(std::find(all_streams.begin(), all_streams.end(), this));
  }
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

void FakeStream::begin_capture() {
  capturing_ = true;
  ++captures;
}

FakeStream::Graph FakeStream::end_capture() {
  capturing_ = false;
  --captures;
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

}  // namespace prunex::test

namespace prunex::simulated {

using test::failed;
using test::FakeCall;
using test::fault_of;

cudaError_t enqueue_kernel(cudaStream_t stream, std::function<void()> work) {
  if (stream != nullptr && test::of(stream)->device() != test::current_device()) {
    return failed(cudaErrorInvalidResourceHandle);
  }
  if (const cudaError_t fault = fault_of(FakeCall::launch); fault != cudaSuccess) {
    return failed(fault);
  }
  test::enqueue(stream, std::move(work));
  return cudaSuccess;
}

cudaError_t enqueue_grid(uint32_t blocks, uint32_t threads, cudaStream_t stream,
                         std::function<void()> body) {
  constexpr uint32_t kMostThreads = 1024, kMostBlocks = 0x7fffffff;
  if (blocks == 0 || blocks > kMostBlocks || threads == 0 || threads > kMostThreads) {
    return failed(cudaErrorInvalidConfiguration);
  }
  return enqueue_kernel(
      stream, [blocks, threads, kernel = std::move(body)] { run_grid(blocks, threads, kernel); });
}

}  // namespace prunex::simulated

// CUDA's own names.
using namespace prunex::test;  // NOLINT: this file defines what others call by CUDA's names

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  const Uncounted uncounted_here;
  *out = new FakeStream;
  count_allocation(1);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithFlags(out, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
  return cudaStreamCreateWithFlags(out, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  count_allocation(-1);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  count_wait();
  if (stream == nullptr) {
    count_default_use();
  } else {
    of(stream)->synchronize();
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard lock(all_mutex);
  for (FakeStream* stream : all_streams) {
    stream->synchronize();
  }
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* out) {
  *out = stream != nullptr && of(stream)->capturing() ? cudaStreamCaptureStatusActive
                                                      : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (const cudaError_t fault = fault_of(FakeCall::copy); fault != cudaSuccess) {
    return failed(fault);
  }
  const Uncounted uncounted_here;
  enqueue(stream, [=] {
    wait_while_held(to);
    std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  const Uncounted uncounted_here;
  enqueue(stream, [=] { std::memset(to, byte, bytes); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  const Uncounted uncounted_here;
  *out = new SimulatedEvent;
  count_allocation(1);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  count_allocation(-1);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream != nullptr && of(stream)->capturing()) {
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t fault = fault_of(FakeCall::event_record); fault != cudaSuccess) {
    return failed(fault);
  }
  const Uncounted uncounted_here;
  const uint64_t turn = ++event->asked;
  enqueue(stream, [event, turn] {
    event->when = Clock::now().time_since_epoch().count();
    event->reached = turn;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (ends_capture()) {
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t fault = fault_of(FakeCall::event_done); fault != cudaSuccess) {
    return failed(fault);
  }
  return failed(event->reached == event->asked ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  while (event->reached != event->asked) {
    std::this_thread::yield();
  }
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const Clock::duration between(to->when - from->when);
  *milliseconds = std::chrono::duration<float, std::milli>(between).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Uncounted uncounted_here;
  const uint64_t turn = event->asked;
  enqueue(stream, [event, turn] {
    while (event->reached < turn) {
      std::this_thread::yield();
    }
  });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  of(stream)->begin_capture();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  *out = new SimulatedGraph{of(stream)->end_capture()};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  *out = new SimulatedGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  of(stream)->launch(graph->work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
