// SPDX-License-Identifier: Apache-2.0
// The verbs transport's data path allocates nothing, registers nothing and makes no system call of
// its own. A program of its own, since it replaces operator new.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tests/transport/conformance.h"
#include "tests/transport/verbs_pair.h"

namespace {
thread_local bool counting = false;
thread_local size_t allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  if (counting && prunex::transport::fake::depth == 0) {
    ++allocations;
  }
  if (void* p = std::malloc(bytes > 0 ? bytes : 1); p != nullptr) {
    return p;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace prunex::transport {
namespace {

struct Side : Aside {
  explicit Side(size_t bytes) : memory(bytes) {}
  Room room(size_t) override { return {memory.data(), region.get()}; }
  std::vector<std::byte> memory;
  std::unique_ptr<Region> region;
};

// Every way that a message can take, both ends looking aside now and then.
void talk(Pair& p, std::vector<std::byte>& out, std::vector<std::byte>& into, const Region* from,
          const Region* to, Side& side) {
  for (const size_t n : {size_t{0}, size_t{20}, size_t{4000}, size_t{70'000}, out.size()}) {
    for (const Mark mark : {Mark{0}, kAside}) {
      for (const bool early : {false, true}) {
        Ticket s = 0, r = 0;
        const auto receive = [&] {
          ASSERT_EQ(p.b->irecv(into.data(), into.size(), to, &r, &side), Io::done);
        };
        if (!early) {
          receive();
        }
        ASSERT_EQ(p.a->isend(out.data(), n, from, &s, mark), Io::done);
        for (int i = 0; i < 200; ++i) {
          (void)p.b->progress();
          (void)p.a->progress();
        }
        if (early) {
          receive();
        }
        size_t bytes = 0;
        ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done);
        ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
        ASSERT_EQ(bytes, n);
      }
    }
  }
}

TEST(VerbsQuiet, nothing_is_allocated_or_registered_on_the_way) {
  for (const size_t queue_pairs : {1, 4}) {
    fake::World world({fake::plain_device()});
    VerbsOptions options;
    options.queue_pairs = queue_pairs;
    options.stall_s = 10;
    auto t = open_fake_verbs(world, options);
    Pair p = make_pair(*t, *t);
    ASSERT_TRUE(p.a && p.b);
    std::vector<std::byte> out(5 << 20), into(5 << 20);
    Side plain(5 << 20), registered(5 << 20);
    auto from = t->register_memory(out.data(), out.size()),
         to = t->register_memory(into.data(), into.size()),
         aside = t->register_memory(registered.memory.data(), registered.memory.size());
    ASSERT_TRUE(from && to && aside);
    registered.region = *std::move(aside);
    talk(p, out, into, nullptr, nullptr, plain);  // what is made at first use is made
    const int before = world.registrations();
    counting = true;
    talk(p, out, into, nullptr, nullptr, plain);
    talk(p, out, into, from->get(), nullptr, plain);
    talk(p, out, into, nullptr, to->get(), registered);
    talk(p, out, into, from->get(), to->get(), registered);
    counting = false;
    EXPECT_EQ(allocations, 0U);
    EXPECT_EQ(world.registrations(), before);
  }
  // The count counts.
  counting = true;
  ::operator delete(::operator new(1));
  counting = false;
  EXPECT_GT(allocations, 0U);
}

constexpr int kTrapped = 3, kNoFilter = 4;

// From here on in this process, a system call ends it with kTrapped. Allowed: what ends a process
// and says why, what the fake's own allocations take, and the clock, where it is one.
bool forbid_system_calls() {
  struct sigaction action {};
  action.sa_sigaction = [](int, siginfo_t* info, void*) {
    char text[64];
    const int n = std::snprintf(text, sizeof text, "system call %d\n", info->si_syscall);
    (void)!::write(STDERR_FILENO, text, static_cast<size_t>(n));
    ::_exit(kTrapped);
  };
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSYS, &action, nullptr);
  constexpr std::array<unsigned, 9> kAllowed = {SYS_write,  SYS_exit_group, SYS_rt_sigreturn,
                                                SYS_brk,    SYS_mmap,       SYS_munmap,
                                                SYS_mremap, SYS_madvise,    SYS_clock_gettime};
  std::vector<sock_filter> filter;
  filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (size_t i = 0; i < kAllowed.size(); ++i) {
    const auto to_allow = static_cast<uint8_t>(kAllowed.size() - i);
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kAllowed[i], to_allow, 0));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

// The exit status of a child that runs it without system calls.
template <class F>
int status_of(F run) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!forbid_system_calls()) {
      ::_exit(kNoFilter);
    }
    ::_exit(run() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool send_one(Pair& p, std::vector<std::byte>& out, std::vector<std::byte>& into, size_t n,
              const Region* from, const Region* to) {
  Ticket s = 0, r = 0;
  size_t bytes = 0;
  return p.b->irecv(into.data(), into.size(), to, &r) == Io::done &&
         p.a->isend(out.data(), n, from, &s) == Io::done &&
         finish(*p.b, p.a.get(), r, &bytes) == Io::done && bytes == n &&
         finish(*p.a, p.b.get(), s, &bytes) == Io::done;
}

// Whoever waits in vain looks at the other end's life and at its ports, by system calls, once per
// millisecond at the most; who has something to do does not.
TEST(VerbsQuiet, messages_make_no_system_call) {
#ifdef PRUNEX_SANITIZED
  GTEST_SKIP() << "the sanitizer makes its own";
#endif
  fake::World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  std::vector<std::byte> out(1 << 20), into(1 << 20);
  auto from = t->register_memory(out.data(), out.size()),
       to = t->register_memory(into.data(), into.size());
  ASSERT_TRUE(from && to);
  const int status = status_of([&] {
    for (int i = 0; i < 200; ++i) {
      for (const size_t n : {size_t{0}, size_t{8}, size_t{4000}, size_t{70'000}, out.size()}) {
        if (!send_one(p, out, into, n, from->get(), to->get()) ||
            !send_one(p, out, into, n, nullptr, nullptr)) {
          return false;
        }
      }
    }
    return true;
  });
  if (status == kNoFilter) {
    GTEST_SKIP() << "this kernel has no seccomp filters";
  }
  EXPECT_EQ(status, 0);
  EXPECT_EQ(status_of([] { return ::getppid() > 0; }), kTrapped);  // the filter filters
}

}  // namespace
}  // namespace prunex::transport
