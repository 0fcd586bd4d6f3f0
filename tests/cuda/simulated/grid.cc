// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/simulated/grid.h"

#undef _FORTIFY_SOURCE  // its longjmp does not know other stacks
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/cuda/simulated/sanitized_switch.h"

prunex::simulated::Dimension threadIdx{0}, blockIdx{0}, blockDim{1}, gridDim{1};

namespace prunex::simulated {
namespace {

// Frames with a sanitizer are several times as large.
#ifdef PRUNEX_SANITIZED
constexpr size_t kStackBytes = 512 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif

// Where a fiber, or the thread that runs them, goes on. A context's switch costs two calls of the
// system, a jump none; ThreadSanitizer understands the former only.
#ifdef PRUNEX_SANITIZED_THREAD
struct Stop {
  ucontext_t context{};
};
void go(Stop& from, Stop& to) { ::swapcontext(&from.context, &to.context); }
#else
struct Stop {
  ucontext_t context{};
  jmp_buf here{};
  bool left = false;
};
[[gnu::noinline]] void go(Stop& from, Stop& to) {
  from.left = true;
  if (_setjmp(from.here) != 0) {
    return;
  }
  if (to.left) {
    _longjmp(to.here, 1);
  }
  ::setcontext(&to.context);
}
#endif

struct Fiber {
  Fiber() : stack(::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, kMap, -1, 0)) {
    if (stack == MAP_FAILED) {
      std::abort();
    }
  }
  ~Fiber() { ::munmap(stack, kStackBytes); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  static constexpr int kMap = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* stack;
  Stop stop;
  SanitizedFiber sanitized;
  uint32_t thread = 0;  // of the block, that it runs or has begun
};

// Threads that wait until all of a number are there.
struct Meeting {
  std::vector<Fiber*> waiting;
  void* brought[kLanes] = {};
};

// One block at a time. A fiber runs one thread behind the other until one has to wait; then
// another fiber takes over.
class Block {
 public:
  void run(uint32_t threads, uint32_t turn, const std::function<void()>& body);
  void meet_all();
  void meet_lanes(void* mine, void (*together)(void* const*, uint32_t));

 private:
  static void enter();
  void serve();
  void wait();
  void resume(Fiber& fiber);
  Fiber* next_fiber();
  [[noreturn]] void hang() const;
  void release(Meeting& meeting);

  const std::function<void()>* body_ = nullptr;
  uint32_t threads_ = 0, turn_ = 0, begun_ = 0, ended_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::deque<Fiber*> ready_;
  Meeting all_;
  std::vector<Meeting> warps_;
  Stop scheduler_;
  SanitizedFiber own_;
  Fiber* running_ = nullptr;
};

// A different one for each turn: ascending, descending, or jumping.
uint32_t place(uint32_t i, uint32_t n, uint32_t turn) {
  constexpr uint32_t kJump = 97;
  switch (turn % 3) {
    case 0:
      return i;
    case 1:
      return n - 1 - i;
    default:
      return n % kJump == 0 ? i : static_cast<uint32_t>((uint64_t{i} * kJump + turn) % n);
  }
}

// One for all threads, since one grid runs at a time: streams come and go by the thousand, and a
// sanitizer keeps what it knows of each stack.
Block& the_block() {
  static Block* const block = new Block;
  return *block;
}

void Block::enter() { the_block().serve(); }

void Block::serve() {
  running_->sanitized.arrived();
  while (true) {
    while (begun_ < threads_) {
      running_->thread = place(begun_++, threads_, turn_);
      threadIdx.x = running_->thread;
      (*body_)();
      ++ended_;
    }
    idle_.push_back(running_);
    wait();
  }
}

void Block::wait() {
  Fiber& self = *running_;
  self.sanitized.leave(own_);
  go(self.stop, scheduler_);
  self.sanitized.arrived();
}

void Block::resume(Fiber& fiber) {
  running_ = &fiber;
  threadIdx.x = fiber.thread;
  own_.leave(fiber.sanitized);
  go(scheduler_, fiber.stop);
  own_.arrived();
}

Fiber* Block::next_fiber() {
  if (!ready_.empty()) {
    Fiber* const next = ready_.front();
    ready_.pop_front();
    return next;
  }
  if (begun_ == threads_) {
    hang();
  }
  if (idle_.empty()) {
    auto fiber = std::make_unique<Fiber>();
    ucontext_t& context = fiber->stop.context;
    ::getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack;
    context.uc_stack.ss_size = kStackBytes;
    ::makecontext(&context, &Block::enter, 0);
    fiber->sanitized.made(fiber->stack, kStackBytes);
    idle_.push_back(fiber.get());
    fibers_.push_back(std::move(fiber));
  }
  Fiber* const next = idle_.back();
  idle_.pop_back();
  return next;
}

void Block::run(uint32_t threads, uint32_t turn, const std::function<void()>& body) {
  body_ = &body;
  threads_ = threads;
  turn_ = turn;
  begun_ = ended_ = 0;
  warps_.resize((threads + kLanes - 1) / kLanes);
  own_ = {};  // the thread may be another
  own_.made_here();
  while (ended_ < threads_) {
    resume(*next_fiber());
  }
}

void Block::hang() const {
  size_t in_warps = 0;
  for (const Meeting& warp : warps_) {
    in_warps += warp.waiting.size();
  }
  std::fprintf(
      stderr,
      "simulated CUDA: block %u of %u hangs: of its %u threads %u have ended, %zu wait for "
      "the block and %zu for their warps\n",
      blockIdx.x, gridDim.x, threads_, ended_, all_.waiting.size(), in_warps);
  std::abort();
}

// The one that came last goes on; the order of the others changes with the turn.
void Block::release(Meeting& meeting) {
  const auto n = static_cast<uint32_t>(meeting.waiting.size());
  for (uint32_t i = 0; i < n; ++i) {
    ready_.push_back(meeting.waiting[place(i, n, turn_ + 1)]);
  }
  meeting.waiting.clear();
}

void Block::meet_all() {
  if (all_.waiting.size() + 1 == threads_) {
    release(all_);
    return;
  }
  all_.waiting.push_back(running_);
  wait();
}

void Block::meet_lanes(void* mine, void (*together)(void* const*, uint32_t)) {
  const uint32_t thread = running_->thread, warp = thread / kLanes;
  const uint32_t lanes = std::min(threads_ - warp * kLanes, kLanes);
  Meeting& meeting = warps_[warp];
  meeting.brought[thread % kLanes] = mine;
  if (meeting.waiting.size() + 1 == lanes) {
    together(meeting.brought, lanes);
    release(meeting);
    return;
  }
  meeting.waiting.push_back(running_);
  wait();
}

std::mutex grid_mutex;  // of CUDA's names, and of shared memory, which is static here
uint32_t turns = 0;

}  // namespace

void run_grid(uint32_t blocks, uint32_t threads, const std::function<void()>& body) {
  const std::lock_guard lock(grid_mutex);
  const uint32_t turn = turns++;
  gridDim.x = blocks;
  blockDim.x = threads;
  for (uint32_t b = 0; b < blocks; ++b) {
    blockIdx.x = place(b, blocks, turn);
    the_block().run(threads, turn, body);
  }
}

void meet_block() { the_block().meet_all(); }
void meet_warp(void* mine, void (*together)(void* const*, uint32_t)) {
  the_block().meet_lanes(mine, together);
}

}  // namespace prunex::simulated
