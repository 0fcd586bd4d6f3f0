// SPDX-License-Identifier: Apache-2.0
// What the verbs transport asks of a device per message; counted on the fake.
#include <algorithm>
#include <array>
#include <cstring>

#include "tests/transport/conformance.h"
#include "tests/transport/verbs_pair.h"

namespace prunex::transport {
namespace {

using fake::World;

// What a device is asked for: the cost of a message where a call is dear. Several in flight over
// slots that are used again, as NCCL has them.
TEST(Verbs, a_message_costs_two_posts_at_most_whatever_its_size) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  constexpr size_t kSlots = 8, kMessages = 200, kBytes = size_t{1} << 20;
  std::vector<std::byte> out(kBytes), into(kBytes);
  auto from = t->register_memory(out.data(), out.size()),
       to = t->register_memory(into.data(), into.size());
  ASSERT_TRUE(from && to);
  for (const size_t n : {size_t{5000}, size_t{64} << 10, kBytes}) {
    std::array<Ticket, kSlots> sends{}, receives{};
    world.forget_sent();
    for (size_t i = 0; i < kMessages + kSlots; ++i) {
      const size_t slot = i % kSlots;
      size_t bytes = 0;
      if (i >= kSlots) {
        ASSERT_EQ(finish(*p.b, p.a.get(), receives[slot], &bytes), Io::done);
        ASSERT_EQ(bytes, n);
        ASSERT_EQ(finish(*p.a, p.b.get(), sends[slot], &bytes), Io::done);
      }
      if (i < kMessages) {
        ASSERT_EQ(p.b->irecv(into.data(), n, to->get(), &receives[slot]), Io::done);
        ASSERT_EQ(p.a->isend(out.data(), n, from->get(), &sends[slot]), Io::done);
      }
    }
    const fake::Calls calls = world.calls();
    EXPECT_LE(world.sent().size(), 2 * kMessages) << n;  // a credit, and the message
    EXPECT_LE(calls.post_send, 2 * kMessages) << n;
    EXPECT_LE(calls.post_recv, 2 * kMessages) << n;
    EXPECT_EQ(calls.req_notify_cq, 0U) << n;
  }
}

// With some credits out, those of further receives go four in a write.
TEST(Verbs, receives_that_are_posted_ahead_are_told_together) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  constexpr size_t kBytes = 10'000;
  std::vector<std::byte> out = pattern(kBytes, 3), into(kBytes * kMaxInFlight);
  auto from = t->register_memory(out.data(), out.size()),
       to = t->register_memory(into.data(), into.size());
  ASSERT_TRUE(from && to);
  std::array<Ticket, kMaxInFlight> sends{}, receives{};
  for (int round = 0; round < 5; ++round) {  // over the places' end as well
    world.forget_sent();
    for (size_t i = 0; i < kMaxInFlight - 3; ++i) {
      ASSERT_EQ(p.b->irecv(into.data() + i * kBytes, kBytes, to->get(), &receives[i]), Io::done);
    }
    EXPECT_LE(world.sent().size(), 5U + kMaxInFlight / 4 + 1);
    std::fill(into.begin(), into.end(), std::byte{});
    for (size_t i = 0; i < kMaxInFlight - 3; ++i) {
      ASSERT_EQ(p.a->isend(out.data(), kBytes, from->get(), &sends[i]), Io::done);
    }
    for (size_t i = 0; i < kMaxInFlight - 3; ++i) {
      size_t bytes = 0;
      ASSERT_EQ(finish(*p.b, p.a.get(), receives[i], &bytes), Io::done);
      ASSERT_EQ(finish(*p.a, p.b.get(), sends[i], &bytes), Io::done);
      EXPECT_EQ(std::memcmp(into.data() + i * kBytes, out.data(), kBytes), 0);
    }
    EXPECT_LE(world.sent().size(), kMaxInFlight + 5U + kMaxInFlight / 4 + 2);
  }
}

// Copying a page takes longer than telling where it is to be.
TEST(Verbs, a_message_of_a_page_goes_to_its_place_when_the_receive_was_there_first) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  for (const size_t n : {size_t{600}, size_t{4000}, size_t{4096}, size_t{100'000}}) {
    const std::vector<std::byte> out = pattern(n, 5);
    std::vector<std::byte> into(n);
    auto from = t->register_memory(const_cast<std::byte*>(out.data()), n),
         to = t->register_memory(into.data(), n);
    ASSERT_TRUE(from && to);
    Ticket s = 0, r = 0;
    size_t bytes = 0;
    ASSERT_EQ(p.b->irecv(into.data(), n, to->get(), &r), Io::done);
    ASSERT_NE(p.a->progress(), Io::failed);
    ASSERT_EQ(p.a->isend(out.data(), n, from->get(), &s), Io::done);
    EXPECT_EQ(into, out) << n;  // nothing of the receiver's has run
    ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done);
    EXPECT_EQ(bytes, n);
    ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
  }
}

// A receive of few bytes needs no credit of its own: one write per message, and
// now and then word of places that are free.
TEST(Verbs, a_short_message_costs_one_write) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  constexpr size_t kRounds = 320;
  world.forget_sent();
  std::array<std::byte, 64> out{}, into{};
  for (size_t i = 0; i < kRounds; ++i) {  // to and fro, every receive posted before its message
    for (const bool there : {true, false}) {
      Connection& sender = there ? *p.a : *p.b;
      Connection& receiver = there ? *p.b : *p.a;
      Ticket s = 0, r = 0;
      size_t bytes = 0;
      ASSERT_EQ(receiver.irecv(into.data(), into.size(), nullptr, &r), Io::done);
      ASSERT_EQ(sender.isend(out.data(), 8, nullptr, &s), Io::done);
      ASSERT_EQ(finish(receiver, &sender, r, &bytes), Io::done);
      ASSERT_EQ(bytes, 8U);
      ASSERT_EQ(finish(sender, &receiver, s, &bytes), Io::done);
    }
  }
  const size_t messages = 2 * kRounds;
  EXPECT_LE(world.sent().size(), messages + messages / 16);
  EXPECT_LE(world.calls().post_send, messages + messages / 16);
}

// Which the sender of a message that is too long for such a receive has to know all the same.
TEST(Verbs, a_message_that_is_too_long_for_a_short_receive_is_an_error_on_both_ends) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  std::vector<std::byte> out(100'000), into(100);
  Ticket s = 0, r = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &r), Io::done);
  ASSERT_EQ(p.a->isend(out.data(), out.size(), nullptr, &s), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::failed);
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::failed);
  for (const Connection* c : {p.a.get(), p.b.get()}) {
    EXPECT_SAYS(c->error().text, "100000 bytes");
    EXPECT_SAYS(c->error().text, "100 bytes");
  }
}

}  // namespace
}  // namespace prunex::transport
