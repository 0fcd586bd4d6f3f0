// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/host/proxy.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/nccl/host/failure.h"

namespace prunex::nccl::host {

Transfer::Transfer(Lane& lane, abi::Func func, abi::Proto proto, uint64_t messages, size_t slice)
    : lane_(lane),
      func_(func),
      proto_(proto),
      messages_(messages),
      slot_bytes_(kBufferBytes[proto] / kSteps * slice),
      slots_(kSteps / slice),
      // With another slice the slots lie elsewhere: begin at the front, all are free by now.
      base_(slice == 1 ? lane.used[proto] : 0) {
  lane.used[proto] = slice == 1 ? lane.used[proto] + messages : 0;
}

Transfer::~Transfer() {
  if (proxy_ != nullptr && !done_.load()) {
    proxy_->join_progress();
  }
}

void Transfer::wait(const char* what, const std::function<bool()>& ready) {
  wait_for(
      what,
      [&] {
        PRUNEX_MUST(!proxy_->failed(), "%s", proxy_->error().c_str());
        return ready();
      },
      &proxy_->rank().board());
}

std::byte* Transfer::room() {
  wait("a free slot", [&] { return kernel_ < freed_.load(std::memory_order_acquire) + slots_; });
  return slot(kernel_);
}

void Transfer::sent(size_t bytes) {
  sizes_[kernel_++ % slots_] = bytes;
  filled_.store(kernel_, std::memory_order_release);
}

std::byte* Transfer::next(size_t* bytes) {
  wait("a message", [&] { return kernel_ < filled_.load(std::memory_order_acquire); });
  *bytes = sizes_[kernel_ % slots_];
  return slot(kernel_);
}

void Transfer::consumed() { freed_.store(++kernel_, std::memory_order_release); }

void Transfer::wait_done() {
  wait("the proxy to finish", [&] { return done_.load(std::memory_order_acquire); });
}

Proxy::Proxy(HostNet& net, Rank& rank) : net_(net), rank_(rank) {
  service_ = std::thread([this] { service_loop(); });
  progress_ = std::thread([this] { progress_loop(); });
}

Proxy::~Proxy() {
  join_progress();
  {
    const std::lock_guard lock(mutex_);
    stop_service_ = true;
  }
  changed_.notify_all();
  service_.join();
}

void Proxy::join_progress() {
  stop_progress_.store(true);
  if (progress_.joinable()) {
    progress_.join();
  }
}

std::string Proxy::error() {
  const std::lock_guard lock(mutex_);
  return error_;
}

void Proxy::serve(const std::function<void()>& task) {
  std::unique_lock lock(mutex_);
  task_ = &task;
  task_done_ = false;
  changed_.notify_all();
  changed_.wait(lock, [this] { return task_done_; });
  if (task_failure_ != nullptr) {
    std::rethrow_exception(std::exchange(task_failure_, nullptr));
  }
}

void Proxy::service_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return task_ != nullptr || stop_service_; });
    if (task_ == nullptr) {
      return;
    }
    const std::function<void()>* const task = std::exchange(task_, nullptr);
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*task)();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    task_failure_ = failure;
    task_done_ = true;
    changed_.notify_all();
  }
}

void Proxy::start(Transfer& transfer) {
  transfer.proxy_ = this;
  const std::lock_guard lock(mutex_);
  started_.push_back(&transfer);
}

void Proxy::progress_loop() {
  std::list<Transfer*> active;
  try {
    while (!stop_progress_.load()) {
      {
        const std::lock_guard lock(mutex_);
        active.splice(active.end(), started_);
      }
      for (auto one = active.begin(); one != active.end();) {
        progress(**one);
        if ((*one)->finished_ == (*one)->messages_) {
          Transfer* const transfer = *one;
          one = active.erase(one);
          transfer->done_.store(true, std::memory_order_release);  // it may be gone at once
        } else {
          ++one;
        }
      }
      ::sched_yield();
    }
  } catch (const std::exception& e) {
    const std::lock_guard lock(mutex_);
    error_ = e.what();
    failed_.store(true);
  }
}

void Proxy::tell_attributes(const Transfer& t) {
  if (told_func_ != t.func_ || told_proto_ != t.proto_) {
    told_func_ = t.func_;
    told_proto_ = t.proto_;
    PRUNEX_MUST(net_.set_attr(1u << t.func_, 1u << abi::kRing, 1u << t.proto_) == kSuccess);
  }
}

void Proxy::delay_at_random(uint32_t seed) { delays_.store(seed | 1); }

// One look in four is skipped, one in 64 comes up to a millisecond late.
bool Proxy::late() {
  uint32_t x = delays_.load();
  if (x == 0) {
    return false;
  }
  x = x * 1664525 + 1013904223;
  delays_.store(x | 1);
  if (x >> 26 == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(x >> 16 & 1023));
  }
  return x >> 30 == 0;
}

void Proxy::progress(Transfer& t) {
  if (t.finished_ < t.messages_ && !late()) {
    t.lane_.sends ? progress_send(t) : progress_recv(t);
  }
}

void Proxy::progress_send(Transfer& t) {
  if (t.posted_ < t.messages_ && t.posted_ < t.finished_ + t.slots_ &&
      t.posted_ < t.filled_.load(std::memory_order_acquire)) {
    tell_attributes(t);
    void*& request = t.requests_[t.posted_ % t.slots_];
    const Status status =
        net_.isend(t.lane_.comm, t.slot(t.posted_), t.sizes_[t.posted_ % t.slots_], rank_.rank(),
                   t.lane_.mrs[t.proto_], &request);
    PRUNEX_MUST(status == kSuccess, "isend answers %d", status);
    t.posted_ += request != nullptr ? 1 : 0;
  }
  if (t.finished_ < t.posted_) {
    int done = 0, size = -1;
    const Status status = net_.test(t.requests_[t.finished_ % t.slots_], &done, &size);
    PRUNEX_MUST(status == kSuccess, "test of a send answers %d", status);
    if (done != 0) {
      const auto wanted = static_cast<int>(t.sizes_[t.finished_ % t.slots_]);
      PRUNEX_MUST(size == wanted, "%d bytes sent of %d", size, wanted);
      t.freed_.store(++t.finished_, std::memory_order_release);
    }
  }
}

void Proxy::progress_recv(Transfer& t) {
  if (t.posted_ < t.messages_ && t.posted_ < t.freed_.load(std::memory_order_acquire) + t.slots_) {
    tell_attributes(t);
    void*& request = t.requests_[t.posted_ % t.slots_];
    void* place = t.slot(t.posted_);
    size_t room = t.slot_bytes_;
    int tag = rank_.rank();
    const Status status = net_.irecv(t.lane_.comm, 1, &place, &room, &tag, &t.lane_.mrs[t.proto_],
                                     t.proto_ != abi::kSimple, &request);
    PRUNEX_MUST(status == kSuccess, "irecv answers %d", status);
    t.posted_ += request != nullptr ? 1 : 0;
  }
  if (t.finished_ < t.posted_) {
    int done = 0;
    int sizes[64] = {};  // NCCL_PROXY_MAX_SUBS zeroed entries
    sizes[1] = 0x5a5a;
    const Status status = net_.test(t.requests_[t.finished_ % t.slots_], &done, sizes);
    PRUNEX_MUST(status == kSuccess, "test of a receive answers %d", status);
    PRUNEX_MUST(sizes[1] == 0x5a5a, "a size too many was written");
    if (done != 0) {
      t.sizes_[t.finished_ % t.slots_] = static_cast<size_t>(sizes[0]);
      t.filled_.store(++t.finished_, std::memory_order_release);
    }
  }
}

void Proxy::allocate(Lane& lane, bool sends) {
  lane.sends = sends;
  for (size_t proto = 0; proto < kBufferBytes.size(); ++proto) {
    lane.buffers[proto] = std::make_unique<std::byte[]>(kBufferBytes[proto]);
    std::memset(lane.buffers[proto].get(), 0x33, kBufferBytes[proto]);
    const Status status = net_.reg_mr(lane.comm, lane.buffers[proto].get(), kBufferBytes[proto],
                                      kPtrHost, &lane.mrs[proto]);
    PRUNEX_MUST(status == kSuccess, "regMr answers %d", status);
  }
}

void Proxy::connect(int to, int from, int channel, Lane& send, Lane& recv) {
  serve([&] {
    Handle mine{}, theirs{};
    void* listening = nullptr;
    PRUNEX_MUST(net_.listen(0, mine, &listening) == kSuccess && listening != nullptr);
    rank_.post(from, channel, mine);
    rank_.take(to, channel, theirs);
    wait_for(
        "both ends of a connection",
        [&] {
          // The same handle buffer each time: the plugin may keep its state in it.
          if (send.comm == nullptr) {
            const Status status = net_.connect(0, theirs, &send.comm);
            PRUNEX_MUST(status == kSuccess, "connect answers %d", status);
          }
          if (recv.comm == nullptr) {
            const Status status = net_.accept(listening, &recv.comm);
            PRUNEX_MUST(status == kSuccess, "accept answers %d", status);
          }
          return send.comm != nullptr && recv.comm != nullptr;
        },
        &rank_.board());
    PRUNEX_MUST(net_.close_listen(listening) == kSuccess);
    allocate(send, true);
    allocate(recv, false);
  });
}

void Proxy::release(Lane& lane) {
  serve([&] {
    for (void*& mr : lane.mrs) {
      PRUNEX_MUST(net_.dereg_mr(lane.comm, mr) == kSuccess);
      mr = nullptr;
    }
    PRUNEX_MUST((lane.sends ? net_.close_send(lane.comm) : net_.close_recv(lane.comm)) == kSuccess);
    lane.comm = nullptr;
  });
}

}  // namespace prunex::nccl::host
