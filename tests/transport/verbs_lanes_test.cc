// SPDX-License-Identifier: Apache-2.0
// Several queue pairs and several ports for one connection; on the fake.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "plugin/transport/verbs/rails.h"
#include "tests/transport/conformance.h"
#include "tests/transport/verbs_pair.h"

namespace prunex::transport {
namespace {

using fake::World;

// Connects until one end fails; what it says.
std::string refusal(Transport& from, Transport& to) {
  auto listener = to.listen();
  auto connecting = from.connect((*listener)->handle(), "", 30);
  const Deadline deadline = Deadline::after(kPatience);
  while (!deadline.passed()) {
    auto r = (*connecting)->step();
    if (!r) {
      return r.error().text;
    }
    (void)(*listener)->accept();
  }
  return "";
}

TEST(VerbsLanes, stripes_are_whole_grains_and_leave_nothing_out) {
  for (const std::vector<uint32_t>& weights :
       {std::vector<uint32_t>{1}, {1, 1, 1}, {100, 25}, {1, 800, 3, 7}}) {
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{127}, uint64_t{128}, uint64_t{129},
                                 uint64_t{65'536}, uint64_t{1'000'003}, uint64_t{1} << 42}) {
      EXPECT_EQ(verbs::stripe_begin(bytes, weights, 0), 0U);
      EXPECT_EQ(verbs::stripe_begin(bytes, weights, weights.size()), bytes);
      for (size_t i = 0; i < weights.size(); ++i) {
        const uint64_t begin = verbs::stripe_begin(bytes, weights, i),
                       end = verbs::stripe_begin(bytes, weights, i + 1);
        EXPECT_LE(begin, end);
        EXPECT_TRUE(begin % 128 == 0 || begin == bytes);
      }
    }
  }
  EXPECT_EQ(verbs::stripe_begin(uint64_t{1} << 20, std::vector<uint32_t>{3, 1}, 1), 3U << 18);
}

TEST(VerbsLanes, long_messages_go_over_all_queue_pairs) {
  World world({fake::plain_device()});
  VerbsOptions options;
  options.queue_pairs = 4;
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  EXPECT_EQ(world.live().queue_pairs, 8);
  EXPECT_EQ(world.live().completion_queues, 2);
  for (const size_t n : {kSplitFrom - 1, kSplitFrom, (size_t{1} << 20) + 77, size_t{9} << 20}) {
    world.forget_sent();
    exchange_registered(*t, p, pattern(n, n));
    std::set<uint32_t> pairs;
    size_t data = 0, shortest = n;
    for (const auto& one : world.sent()) {
      if (one.bytes > 64) {
        pairs.insert(one.qp_num);
        data += one.bytes;
        shortest = std::min(shortest, one.bytes);
      }
    }
    EXPECT_EQ(data, n);
    EXPECT_EQ(pairs.size(), n < kSplitFrom ? 1U : 4U);
    EXPECT_GE(shortest, n < kSplitFrom ? n : n / 4 - 512);
  }
}

TEST(VerbsLanes, a_message_is_done_with_its_last_stripe_and_in_its_turn) {
  World world({fake::plain_device()});
  VerbsOptions options;
  options.queue_pairs = 4;
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  std::vector<std::byte> out = pattern(1 << 20, 1), into(out.size()), small(10);
  auto from = t->register_memory(out.data(), out.size()),
       to = t->register_memory(into.data(), into.size());
  Ticket r[2], s[2];
  ASSERT_EQ(p.b->irecv(into.data(), into.size(), to->get(), &r[0]), Io::done);
  ASSERT_EQ(p.b->irecv(small.data(), small.size(), nullptr, &r[1]), Io::done);
  (void)p.a->progress();
  world.hold();
  ASSERT_EQ(p.a->isend(out.data(), out.size(), from->get(), &s[0]), Io::done);
  ASSERT_EQ(p.a->isend(out.data(), 10, nullptr, &s[1]), Io::done);
  constexpr int kWrites = 4 + 1 + 1;  // stripes, the news, the small one
  for (int i = 1; i < kWrites; ++i) {
    ASSERT_EQ(world.release(1), 1U);
    const Io first = p.b->test(r[0], nullptr), second = p.b->test(r[1], nullptr);
    ASSERT_EQ(second, Io::again) << i;
    ASSERT_TRUE(first == Io::again || (first == Io::done && i == kWrites - 1)) << i;
    if (first == Io::done) {
      r[0] = 0;
    }
  }
  world.resume();
  size_t bytes = 0;
  if (r[0] != 0) {
    ASSERT_EQ(finish(*p.b, p.a.get(), r[0], &bytes), Io::done);
  }
  EXPECT_EQ(into, out);
  ASSERT_EQ(finish(*p.b, p.a.get(), r[1], &bytes), Io::done);
  ASSERT_EQ(finish(*p.a, p.b.get(), s[0], &bytes), Io::done);
  ASSERT_EQ(finish(*p.a, p.b.get(), s[1], &bytes), Io::done);
}

TEST(VerbsLanes, the_connecting_ends_count_of_queue_pairs_holds) {
  World world({fake::plain_device()});
  VerbsOptions many;
  many.queue_pairs = 16;
  auto a = open_fake_verbs(world, many), b = open_fake_verbs(world);
  Pair p = make_pair(*a, *b);
  ASSERT_TRUE(p.a && p.b);
  EXPECT_EQ(world.live().queue_pairs, 32);
  exchange(*p.a, *p.b, pattern(1'000'003, 1));
  Pair q = make_pair(*b, *a);
  EXPECT_EQ(world.live().queue_pairs, 34);
  for (const size_t wrong : {0, 17}) {
    VerbsOptions options;
    options.api = &world.api();
    options.queue_pairs = wrong;
    auto r = open_verbs_transport(options);
    ASSERT_FALSE(r);
    EXPECT_SAYS(r.error().text, std::to_string(wrong));
    EXPECT_SAYS(r.error().text, "1 to 16");
  }
}

TEST(VerbsLanes, ports_share_a_message_by_their_speed) {
  auto fast = fake::device_in("rxe0", 1, 1), slow = fake::device_in("rxe1", 2, 1);
  slow.ports[0].width = 1;  // a quarter
  World world({fast, slow});
  VerbsOptions options;
  options.rails = {0, 1};
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  world.forget_sent();
  const size_t n = size_t{5} << 20;
  exchange_registered(*t, p, pattern(n, 1));
  std::map<size_t, size_t> by_device;
  for (const auto& one : world.sent()) {
    by_device[one.device] += one.bytes > 64 ? one.bytes : 0;
  }
  EXPECT_EQ(by_device[0], n / 5 * 4);
  EXPECT_EQ(by_device[1], n / 5);
  EXPECT_SAYS(p.a->describe(), "rxe0:1 to rxe0:1, rxe1:1 to rxe1:1");
}

TEST(VerbsLanes, rails_are_checked) {
  World world({fake::plain_device("rxe0", 1), fake::plain_device("rxe1", 2)});
  for (const std::vector<size_t>& rails : {std::vector<size_t>{0, 2}, {1, 1}}) {
    VerbsOptions options;
    options.api = &world.api();
    options.rails = rails;
    EXPECT_FALSE(open_verbs_transport(options));
  }
}

TEST(Reports, B17_ports_are_paired_by_network) {
  World world({fake::device_in("mlx5_0", 0, 1), fake::device_in("mlx5_1", 100, 1),
               fake::device_in("mlx5_2", 100, 2), fake::device_in("mlx5_3", 7, 2)});
  VerbsOptions first, second;
  first.rails = {0, 1};
  second.rails = {2};
  auto a = open_fake_verbs(world, first), b = open_fake_verbs(world, second);
  for (const bool swapped : {false, true}) {
    Pair p = swapped ? make_pair(*b, *a) : make_pair(*a, *b);
    ASSERT_TRUE(p.a && p.b);
    Connection& two_ports = swapped ? *p.b : *p.a;
    EXPECT_SAYS(two_ports.describe(), "mlx5_1:1 to mlx5_2:1");
    EXPECT_SAYS(two_ports.describe(), "without mlx5_0:1");
    world.forget_sent();
    exchange(*p.a, *p.b, pattern(100'000, 1));
    for (const auto& one : world.sent()) {
      EXPECT_NE(one.device, 0U);
    }
  }
  // By network and not by position, and from where both are in reverse.
  second.rails = {2, 0};
  b = open_fake_verbs(world, second);
  Pair p = make_pair(*a, *b);
  ASSERT_TRUE(p.a && p.b);
  EXPECT_SAYS(p.a->describe(), "mlx5_0:1 to mlx5_0:1, mlx5_1:1 to mlx5_2:1");
  exchange(*p.a, *p.b, pattern(100'000, 1));
  p = {};
  // Nothing in common.
  second.rails = {3};
  b = open_fake_verbs(world, second);
  const std::string text = refusal(*a, *b);
  for (const char* part : {"mlx5_0:1 (::ffff:10.0.0.1)", "mlx5_1:1 (::ffff:10.0.100.1)",
                           "mlx5_3:1 (::ffff:10.0.7.2)", "PRUNEX_IB_HCA"}) {
    EXPECT_SAYS(text, part);
  }
  // One port each: a router may join them.
  first.rails = {0};
  a = open_fake_verbs(world, first);
  p = make_pair(*a, *b);
  ASSERT_TRUE(p.a && p.b);
  exchange(*p.a, *p.b, pattern(100'000, 1));
}

TEST(Reports, B18_two_functions_with_one_guid_are_two_ports) {
  World world({fake::device_in("mlx5_0", 1, 1), fake::device_in("mlx5_1", 2, 1)});
  VerbsOptions options;
  options.api = &world.api();
  auto ports = list_verbs_ports(options);
  ASSERT_TRUE(ports);
  ASSERT_EQ(ports->size(), 2U);
  EXPECT_NE((*ports)[0].identity(), (*ports)[1].identity());
  options.rails = {0, 1};
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  exchange_registered(*t, p, pattern(1 << 20, 1));
}

// Announced with a completion and never by the data themselves, so that nothing overtakes them.
TEST(Reports, B14_no_announcement_overtakes_data) {
  World world({fake::plain_device()});
  VerbsOptions options;
  options.queue_pairs = 4;
  options.split_from = 5000;
  options.first_sequence = 0xFFFFFFFF - 50'000;
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  world.scatter(14);
  constexpr size_t kLongest = 12'000;
  const auto out = pattern(kLongest + 256, 1);
  std::vector<std::byte> into(kLongest);
  auto source = t->register_memory(const_cast<std::byte*>(out.data()), out.size()),
       target = t->register_relaxed(into.data(), into.size());
  uint64_t random = 14;
  for (size_t i = 0; i < 100'000; ++i) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    const size_t n = (random >> 33) % (i % 8 == 0 ? kLongest : 300), from = i % 256;
    Ticket s = 0, r = 0;
    size_t bytes = 0;
    ASSERT_EQ(p.b->irecv(into.data(), into.size(), target->get(), &r), Io::done);
    ASSERT_EQ(p.a->isend(out.data() + from, n, source->get(), &s), Io::done);
    ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
    ASSERT_EQ(bytes, n);
    ASSERT_EQ(memcmp(into.data(), out.data() + from, n), 0) << i;
    ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
  }
}

// Several messages in flight over queue pairs that take their time: it ends, and each has its
// share.
TEST(Reports, G14_every_queue_pair_carries_its_share) {
  World world({fake::plain_device()});
  VerbsOptions options;
  options.queue_pairs = 4;
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  world.scatter(14);
  world.forget_sent();
  constexpr size_t kSlots = 8, kMessages = 1000, kBytes = size_t{256} << 10;
  std::vector<std::byte> out(kBytes, std::byte{1}), into(kBytes);
  auto source = t->register_relaxed(out.data(), out.size()),
       target = t->register_relaxed(into.data(), into.size());
  ASSERT_TRUE(source && target);
  std::array<Ticket, kSlots> sends{}, receives{};
  for (size_t i = 0; i < kMessages + kSlots; ++i) {
    size_t bytes = 0;
    if (i >= kSlots) {
      ASSERT_EQ(finish(*p.b, p.a.get(), receives[i % kSlots], &bytes), Io::done);
      ASSERT_EQ(bytes, kBytes);
      ASSERT_EQ(finish(*p.a, p.b.get(), sends[i % kSlots], &bytes), Io::done);
    }
    if (i < kMessages) {
      ASSERT_EQ(p.b->irecv(into.data(), kBytes, target->get(), &receives[i % kSlots]), Io::done);
      ASSERT_EQ(p.a->isend(out.data(), kBytes, source->get(), &sends[i % kSlots]), Io::done);
    }
  }
  std::map<uint32_t, uint64_t> bytes_of;
  for (const auto& one : world.sent()) {
    if (one.bytes > 1000) {  // no record
      bytes_of[one.qp_num] += one.bytes;
    }
  }
  EXPECT_EQ(bytes_of.size(), 4U);
  for (const auto& [pair, bytes] : bytes_of) {
    EXPECT_NEAR(static_cast<double>(bytes), kMessages * kBytes / 4.0, kMessages * 256.0) << pair;
  }
}

TEST(Reports, B22_no_order_between_queues) {
  for (const size_t pairs : {1, 4}) {
    World world({fake::plain_device()});
    VerbsOptions options;
    options.queue_pairs = pairs;
    options.split_from = 5000;
    auto t = open_fake_verbs(world, options);
    Pair p = make_pair(*t, *t);
    ASSERT_TRUE(p.a && p.b);
    EXPECT_EQ(world.ready_to_receive()[0].ah_attr.grh.sgid_index, 1);  // index 0 is link-local
    world.scatter(pairs);
    std::vector<std::byte> out = pattern(20'000, 1), in_a(out.size()), in_b(out.size());
    auto source = t->register_memory(out.data(), out.size()),
         to_a = t->register_memory(in_a.data(), in_a.size()),
         to_b = t->register_memory(in_b.data(), in_b.size());
    for (size_t i = 0; i < 10'000; ++i) {
      const size_t n = i * 7919 % out.size();
      Ticket sa = 0, sb = 0, ra = 0, rb = 0;
      size_t bytes = 0;
      ASSERT_EQ(p.a->irecv(in_a.data(), in_a.size(), to_a->get(), &ra), Io::done);
      ASSERT_EQ(p.a->isend(out.data(), n, source->get(), &sa), Io::done);
      ASSERT_EQ(p.b->irecv(in_b.data(), in_b.size(), to_b->get(), &rb), Io::done);
      ASSERT_EQ(p.b->isend(out.data(), n, source->get(), &sb), Io::done);
      ASSERT_EQ(finish(*p.a, p.b.get(), ra, &bytes), Io::done) << p.a->error().text;
      ASSERT_EQ(finish(*p.b, p.a.get(), rb, &bytes), Io::done) << p.b->error().text;
      ASSERT_EQ(finish(*p.a, p.b.get(), sa, &bytes), Io::done);
      ASSERT_EQ(finish(*p.b, p.a.get(), sb, &bytes), Io::done);
      ASSERT_TRUE(
          std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n), in_a.begin()));
      ASSERT_TRUE(
          std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n), in_b.begin()));
      std::fill(in_a.begin(), in_a.end(), std::byte{});
      std::fill(in_b.begin(), in_b.end(), std::byte{});
    }
  }
}

}  // namespace
}  // namespace prunex::transport
