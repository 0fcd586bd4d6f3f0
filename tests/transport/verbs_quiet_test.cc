// SPDX-License-Identifier: Apache-2.0
// The verbs transport's data path allocates nothing and registers nothing. A program of its own,
// since it replaces operator new.
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

}  // namespace
}  // namespace prunex::transport
