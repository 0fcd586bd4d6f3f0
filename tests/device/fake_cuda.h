// SPDX-License-Identifier: Apache-2.0
// libprunex-cuda's own sources on a simulated CUDA (tests/cuda/simulated): device memory is host
// memory, streams are threads that run their work in order, kernels run thread by thread on the
// CPU. Here is what tests may ask of it beside CUDA's own calls.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/cuda/table.h"
#include "tests/device/fake_stream.h"

namespace prunex::test {

class FakeStream : public StreamLike {
 public:
  FakeStream();
  ~FakeStream() override;  // runs what is left
  void enqueue(std::function<void()> work) override;
  void synchronize();
  [[nodiscard]] int device() const { return device_; }

  // A graph: what would have been enqueued.
  using Graph = std::vector<std::function<void()>>;
  void begin_capture();  // in global mode
  [[nodiscard]] Graph end_capture();
  [[nodiscard]] bool capturing() const { return capturing_; }
  void launch(const Graph& graph);

 private:
  void serve();
  const int device_;       // the calling thread's, when it was made
  const uint64_t number_;  // in the order of making, from 1
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false, stop_ = false, capturing_ = false;
  Graph graph_;
  std::thread thread_;
};

[[nodiscard]] const cuda::Table& fake_cuda();

// Device memory of the calling thread's device.
[[nodiscard]] std::byte* device_memory(size_t bytes);
void free_device_memory(void* p);

struct FakeCounts {
  int allocations = 0;  // alive: of the device, pinned, plans, events
  int made = 0;         // so far
  int waits = 0;        // for streams, so far
  int flushes = 0;      // of what others wrote, so far
  int defaults = 0;     // calls that took the default stream, so far
};
[[nodiscard]] FakeCounts fake_counts();
[[nodiscard]] uint64_t pinned_bytes();  // alive
struct FakeKernels {                    // launched so far
  int packs = 0, unpacks = 0, block_packs = 0, block_unpacks = 0, keep_plans = 0;
};
[[nodiscard]] FakeKernels fake_kernels();
// No copy is made and no kernel runs while they are held, on the streams that there are by then.
void hold_copies(bool hold);
// Only what writes to that memory.
void hold_copies_to(const void* begin, size_t bytes);
// Whether device memory can be exported to other devices; it cannot at first.
void allow_dmabuf(bool allow);
// What the devices say of themselves; never, at first.
void see_remote_writes(cuda::RemoteWrites how);
void see_arch(int capability);  // 10 * major + minor; 90 at first
// What calls of a kind answer; 0: as it is.
enum class FakeCall { event_done, event_record, copy, launch, allocate, allocate_pinned, flush };
inline constexpr size_t kFakeCalls = 7;
void fail_calls(FakeCall call, int error);
// The next plan_create of this thread fails.
void fail_next_plan();

}  // namespace prunex::test
