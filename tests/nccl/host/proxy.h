// SPDX-License-Identifier: Apache-2.0
// NCCL's proxy of one communicator: a service thread that connects and registers, a progress thread
// that sends and receives from rings of slots, and the counters through which kernels talk to it.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/nccl/host/world.h"

namespace prunex::nccl::host {

inline constexpr size_t kSteps = 8;  // NCCL_STEPS
// Of NCCL's LL, LL128 and Simple buffers, in the order in which it registers them.
inline constexpr std::array<size_t, 3> kBufferBytes{524288, 4915200, 4194304};

struct Lane {  // one direction of one connection
  void* comm = nullptr;
  std::array<std::unique_ptr<std::byte[]>, 3> buffers;
  std::array<void*, 3> mrs{};
  std::array<uint64_t, 3> used{};  // messages so far: operations go on in the next slot
  bool sends = false;
};

// What a kernel and its proxy share during one collective.
class Transfer {
 public:
  // `slice`: steps per message; NCCL's ring uses two with Simple, else one.
  Transfer(Lane& lane, abi::Func func, abi::Proto proto, uint64_t messages, size_t slice = 1);

  ~Transfer();  // where a kernel fails, its proxy must not go on with what is gone
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // For kernels. Each waits for the proxy.
  std::byte* room();               // of the next message to send
  void sent(size_t bytes);         // it is filled
  std::byte* next(size_t* bytes);  // the next message received
  void consumed();

  [[nodiscard]] size_t slot_bytes() const { return slot_bytes_; }
  void wait_done();

 private:
  friend class Proxy;
  void wait(const char* what, const std::function<bool()>& ready);
  std::byte* slot(uint64_t message) {
    return lane_.buffers[proto_].get() + (base_ + message) % slots_ * slot_bytes_;
  }

  Lane& lane_;
  const abi::Func func_;
  const abi::Proto proto_;
  const uint64_t messages_;
  const size_t slot_bytes_, slots_;
  const uint64_t base_;
  std::array<size_t, kSteps> sizes_{};
  std::atomic<uint64_t> filled_{0}, freed_{0};
  uint64_t kernel_ = 0;                 // messages the kernel is through with
  uint64_t posted_ = 0, finished_ = 0;  // the proxy's
  std::array<void*, kSteps> requests_{};
  std::atomic<bool> done_{false};
  class Proxy* proxy_ = nullptr;
};

class Proxy {
 public:
  Proxy(HostNet& net, Rank& rank);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // On the service thread; waits, and throws what the task throws.
  void serve(const std::function<void()>& task);
  void start(Transfer& transfer);
  void delay_at_random(uint32_t seed);  // before anything is started: now and then it looks late
  void join_progress();                 // before anything is closed, as NCCL does
  [[nodiscard]] bool failed() const { return failed_.load(); }
  [[nodiscard]] std::string error();
  [[nodiscard]] const Rank& rank() const { return rank_; }
  [[nodiscard]] HostNet& net() { return net_; }

  // On the service thread: listens, connects to one rank and accepts from another.
  void connect(int to, int from, int channel, Lane& send, Lane& recv);
  void release(Lane& lane);

 private:
  void service_loop();
  void progress_loop();
  void progress(Transfer& transfer);
  [[nodiscard]] bool late();
  void progress_send(Transfer& transfer);
  void progress_recv(Transfer& transfer);
  void tell_attributes(const Transfer& transfer);
  void allocate(Lane& lane, bool sends);

  HostNet& net_;
  Rank& rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* task_ = nullptr;
  std::exception_ptr task_failure_;
  bool task_done_ = false, stop_service_ = false;
  std::atomic<bool> stop_progress_{false};
  std::list<Transfer*> started_;  // handed over under the mutex
  std::string error_;
  std::atomic<bool> failed_{false};
  int told_func_ = -1, told_proto_ = -1;
  std::atomic<uint32_t> delays_{0};  // a random number's state, 0: none
  std::thread service_, progress_;
};

}  // namespace prunex::nccl::host
