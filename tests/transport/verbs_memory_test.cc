// SPDX-License-Identifier: Apache-2.0
// What is registered when, and for how long; on the fake.
#include <sys/mman.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/transport/verbs/wire.h"
#include "tests/transport/conformance.h"
#include "tests/transport/verbs_pair.h"

namespace prunex::transport {
namespace {

using fake::World;
constexpr int kRelaxed = IBV_ACCESS_RELAXED_ORDERING;

struct Pages {  // of its own, so that neighbours are the test's too
  explicit Pages(size_t n)
      : bytes(n * 4096),
        data(static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { ::munmap(data, bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  size_t bytes;
  std::byte* data;
};

TEST(VerbsMemory, registered_again_costs_no_call) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pages pages(16);
  std::vector<std::unique_ptr<Region>> held;
  const auto add = [&](size_t at, size_t bytes) {
    auto r = t->register_memory(pages.data + at, bytes);
    ASSERT_TRUE(r) << r.error().text;
    held.push_back(*std::move(r));
  };
  add(4096 + 100, 8 * 4096);
  EXPECT_EQ(world.registrations(), 1);
  const verbs::Api all = std::exchange(world.api_to_change(), verbs::Api{});  // a call would crash
  for (int i = 0; i < 100; ++i) {
    add(4096 + 100, 8 * 4096);  // the same
    add(2 * 4096 + 7, 50);      // within
    add(4096, 20);              // the same page
    held.pop_back();
  }
  world.api_to_change() = all;
  EXPECT_EQ(world.registrations(), 1);
  add(0, 10);  // another page
  EXPECT_EQ(world.registrations(), 2);
  add(8 * 4096, 4 * 4096);  // beyond its end
  EXPECT_EQ(world.registrations(), 3);
  EXPECT_EQ(world.live().regions, 3);
  std::swap(held[0], held.back());  // in no order
  while (held.size() > 2) {
    held.pop_back();
  }
  EXPECT_EQ(world.live().regions, 2);
  held.clear();
  EXPECT_EQ(world.live().regions, 0);
  add(4096 + 100, 8 * 4096);
  EXPECT_EQ(world.registrations(), 4);
}

TEST(VerbsMemory, two_transports_do_not_share) {
  World world({fake::plain_device()});
  auto a = open_fake_verbs(world), b = open_fake_verbs(world);
  Pages pages(4);
  auto first = a->register_memory(pages.data, pages.bytes),
       second = b->register_memory(pages.data, pages.bytes);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(world.registrations(), 2);
  Pair p = make_pair(*a, *b);
  ASSERT_TRUE(p.a && p.b);
  Ticket s = 0, r = 0;
  size_t bytes = 0;  // the wrong one of the two is as good as none
  ASSERT_EQ(p.b->irecv(pages.data, 8192, first->get(), &r), Io::done);
  ASSERT_EQ(p.a->isend(pages.data + 8192, 8192, second->get(), &s), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
}

// The address may be another's by then: the device would write to the old pages.
TEST(VerbsMemory, what_was_given_back_is_not_found_again_though_in_flight) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  Pages pages(4);
  auto region = t->register_memory(pages.data, pages.bytes);
  ASSERT_TRUE(region);
  Ticket r = 0;
  ASSERT_EQ(p.b->irecv(pages.data, pages.bytes, region->get(), &r), Io::done);
  const int before = world.registrations(), live = world.live().regions;
  region->reset();
  EXPECT_EQ(world.live().regions, live);
  auto again = t->register_memory(pages.data, pages.bytes);
  ASSERT_TRUE(again);
  EXPECT_EQ(world.registrations(), before + 1);
  EXPECT_EQ(world.live().regions, live + 1);
  const auto out = pattern(pages.bytes, 1);
  Ticket s = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.a->isend(out.data(), out.size(), nullptr, &s), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
  EXPECT_EQ(memcmp(pages.data, out.data(), bytes), 0);
  EXPECT_EQ(world.live().regions, live);
}

TEST(VerbsMemory, unregistered_memory_is_copied_and_never_registered) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  const auto out = pattern(3'000'001, 1);
  std::vector<std::byte> into(out.size());
  auto region = t->register_memory(into.data(), into.size());
  auto source = t->register_memory(const_cast<std::byte*>(out.data()), out.size());
  const int before = world.registrations();
  for (const bool from : {false, true}) {
    for (const bool to : {false, true}) {
      std::fill(into.begin(), into.end(), std::byte{});
      Ticket s = 0, r = 0;
      size_t bytes = 0;
      ASSERT_EQ(p.a->isend(out.data(), out.size(), from ? source->get() : nullptr, &s), Io::done);
      ASSERT_EQ(p.b->irecv(into.data(), into.size(), to ? region->get() : nullptr, &r), Io::done);
      ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
      ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done) << p.a->error().text;
      EXPECT_EQ(into, out);
    }
  }
  EXPECT_EQ(world.registrations(), before);
}

TEST(VerbsMemory, room_aside_may_be_registered) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  struct Side : Aside {
    Room room(size_t) override { return {memory.data(), region.get()}; }
    std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
    std::unique_ptr<Region> region;
  } side;
  side.region = *t->register_memory(side.memory.data(), side.memory.size());
  auto out = pattern(1 << 20, 3);
  auto source = t->register_memory(out.data(), out.size());
  const int before = world.registrations();
  world.forget_sent();
  Ticket s = 0, r = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.b->irecv(nullptr, 0, nullptr, &r, &side), Io::done);
  ASSERT_EQ(p.a->isend(out.data(), out.size(), source->get(), &s, kAside), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
  EXPECT_EQ(side.memory, out);
  EXPECT_EQ(world.registrations(), before);
  const auto sent = world.sent();
  EXPECT_EQ(std::count_if(sent.begin(), sent.end(),
                          [&](const auto& one) { return one.bytes == out.size(); }),
            1);
}

TEST(VerbsMemory, relaxed_order_only_where_it_was_asked_for) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  Pages pages(8);
  auto strict = t->register_memory(pages.data, 4096);
  for (const int access : world.accesses()) {  // the connections' own among them
    EXPECT_EQ(access & kRelaxed, 0);
  }
  const int before = world.registrations();
  auto relaxed = t->register_relaxed(pages.data + 4096, 4096);
  ASSERT_TRUE(strict && relaxed);
  const auto all = world.accesses();
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](int a) { return (a & kRelaxed) != 0; }), 1);
  EXPECT_EQ(world.registrations(), before + 1);
  auto again = t->register_relaxed(pages.data, 4096);  // the strict one will do
  EXPECT_EQ(world.registrations(), before + 1);
  auto other = t->register_memory(pages.data + 4096, 4096);  // but not the other way round
  EXPECT_EQ(world.registrations(), before + 2);
}

TEST(VerbsMemory, a_device_or_library_without_relaxed_order_gives_the_strict_one) {
  for (const bool old_library : {true, false}) {
    auto device = fake::plain_device();
    device.takes_relaxed = false;
    World world({device});
    if (old_library) {
      world.api_to_change().reg_mr_iova2 = nullptr;
    }
    auto t = open_fake_verbs(world);
    Pages pages(2);
    auto region = t->register_relaxed(pages.data, pages.bytes);
    ASSERT_TRUE(region) << region.error().text;
    EXPECT_EQ(world.accesses(), std::vector<int>{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE});
  }
}

TEST(VerbsMemory, device_memory_is_left_to_the_device) {
  World world({fake::plain_device()});
  VerbsOptions options;
  options.device_memory = true;
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  Pages from(32), to(32);
  const auto data = pattern(from.bytes, 1);
  memcpy(from.data, data.data(), data.size());
  auto source = t->register_dmabuf(3, 0, from.data, from.bytes),
       target = t->register_dmabuf(3, 4096, to.data, to.bytes);
  ASSERT_TRUE(source && target) << source.error().text;
  for (const size_t n : {size_t{1}, size_t{60}, size_t{5000}, from.bytes}) {
    world.forget_sent();
    Ticket s = 0, r = 0;
    size_t bytes = 0;
    ASSERT_EQ(p.b->irecv(to.data, to.bytes, target->get(), &r), Io::done);
    ASSERT_EQ(p.a->isend(from.data, n, source->get(), &s), Io::done);
    ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
    ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
    EXPECT_EQ(memcmp(from.data, to.data, n), 0);
    const auto sent = world.sent();
    ASSERT_EQ(sent.size(), 2U);  // the credit, and the data from where they are
    EXPECT_FALSE(sent[1].is_inline);
    EXPECT_EQ(sent[1].bytes, n);
  }
  // Host memory and messages aside work beside it.
  for (const size_t n : {size_t{0}, size_t{100}, size_t{100'000}}) {
    exchange(*p.a, *p.b, pattern(n, n));
    struct Side : Aside {
      Room room(size_t) override { return {memory.data(), nullptr}; }
      std::vector<std::byte> memory = std::vector<std::byte>(100'000);
    } side;
    const auto out = pattern(n, n);
    Ticket s = 0, r = 0;
    size_t bytes = 0;
    ASSERT_EQ(p.b->irecv(to.data, to.bytes, target->get(), &r, &side), Io::done);
    ASSERT_EQ(p.a->isend(out.data(), n, nullptr, &s, kAside), Io::done);
    ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
    ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), side.memory.begin()));
  }
}

TEST(Reports, B13_dmabuf_is_probed_by_registering) {
  auto device = fake::plain_device("mlx5_3");
  device.dmabuf_error = EOPNOTSUPP;
  World world({device});
  auto t = open_fake_verbs(world);
  Pages pages(2);
  const auto r = t->register_dmabuf(3, 0, pages.data, pages.bytes);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::unsupported);
  utsname kernel{};
  ASSERT_EQ(uname(&kernel), 0);
  for (const char* part : {"mlx5_3:1", "8192 bytes", "dmabuf", "host memory",
                           static_cast<const char*>(kernel.release)}) {
    EXPECT_SAYS(r.error().text, part);
  }
  EXPECT_EQ(r.error().text.find('\n'), std::string::npos);
  EXPECT_TRUE(t->register_memory(pages.data, pages.bytes));  // host memory works
  EXPECT_FALSE(open_socket(1)->register_dmabuf(3, 0, pages.data, pages.bytes));
}

}  // namespace
}  // namespace prunex::transport
