// SPDX-License-Identifier: Apache-2.0
// What devices say about themselves, and transfers that stand still; on the fake.
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "tests/transport/conformance.h"
#include "tests/transport/verbs_pair.h"

namespace prunex::transport {
namespace {

using fake::World;

// What the end says whose receive can never be answered; "": it is not answered, and lives.
std::string end_of(Connection& c, std::byte* into, Ticket* ticket) {
  if (*ticket == 0 && c.irecv(into, 1, nullptr, ticket) != Io::done) {
    return c.error().text;
  }
  const Deadline enough = Deadline::after(0.02);  // it looks aside by the clock
  for (int i = 0; i < 2000 || !enough.passed(); ++i) {
    if (c.test(*ticket, nullptr) == Io::failed) {
      return c.error().text;
    }
  }
  return "";
}

TEST(Reports, B2_a_gid_that_moves) {
  auto device = fake::plain_device();
  device.ports.push_back(device.ports[0]);
  device.ports[1].gids[1].bytes[15] = 99;
  World world({device});
  VerbsOptions options;
  options.hca = "rxe0:1";
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  std::byte byte{};
  Ticket r = 0;
  VerbsOptions of_second;
  of_second.hca = "rxe0:2";
  auto second = open_fake_verbs(world, of_second);
  Pair other = make_pair(*second, *second);
  ASSERT_TRUE(other.a && other.b);
  // Another port's: nothing here changes, but there.
  world.device(0).ports[1].gids[1] = {};
  world.raise(0, IBV_EVENT_GID_CHANGE, 2);
  EXPECT_EQ(end_of(*p.b, &byte, &r), "");
  std::byte others{};
  Ticket theirs = 0;
  EXPECT_SAYS(end_of(*other.b, &others, &theirs), "GID 1 of rxe0:2 was ::ffff:10.0.0.99");
  // Ours, but the entry in use is what it was.
  world.device(0).ports[0].gids[0] = {};
  world.raise(0, IBV_EVENT_GID_CHANGE, 1);
  EXPECT_EQ(end_of(*p.b, &byte, &r), "");
  // It moves on.
  auto& gids = world.device(0).ports[0].gids;
  gids.push_back(gids[1]);
  gids[1] = {};
  world.raise(0, IBV_EVENT_GID_CHANGE, 1);
  const std::string text = end_of(*p.b, &byte, &r);
  for (const char* part : {"GID 1 of rxe0:1", "::ffff:10.0.0.1", "RoCE v2", "is now empty"}) {
    EXPECT_SAYS(text, part);
  }
  Pair q = make_pair(*t, *t);
  ASSERT_TRUE(q.a && q.b);
  EXPECT_EQ(world.ready_to_receive().back().ah_attr.grh.sgid_index, 2);
  exchange(*q.a, *q.b, pattern(100'000, 1));
}

TEST(VerbsEvents, a_port_that_went_down_and_came_back_serves_again) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  std::byte byte{};
  Ticket r = 0;
  world.raise(0, IBV_EVENT_PORT_ERR, 1);
  world.raise(0, IBV_EVENT_PORT_ACTIVE, 1);
  EXPECT_EQ(end_of(*p.b, &byte, &r), "");
  world.raise(0, IBV_EVENT_PORT_ERR, 1);
  EXPECT_SAYS(end_of(*p.b, &byte, &r), "the port rxe0:1 has gone down");
  world.raise(0, IBV_EVENT_PORT_ACTIVE, 1);
  Pair q = make_pair(*t, *t);
  ASSERT_TRUE(q.a && q.b);
  exchange(*q.a, *q.b, pattern(100'000, 1));
}

TEST(VerbsEvents, any_of_its_ports_ends_a_connection_and_is_named) {
  World world({fake::device_in("rxe0", 1, 1), fake::device_in("rxe1", 2, 1)});
  VerbsOptions both, one;
  both.rails = {0, 1};
  auto t = open_fake_verbs(world, both), other = open_fake_verbs(world, one);
  Pair p = make_pair(*t, *t), q = make_pair(*other, *other);
  ASSERT_TRUE(p.a && p.b && q.a && q.b);
  std::byte byte{};
  Ticket r = 0;
  world.raise(1, IBV_EVENT_PORT_ERR, 1);
  EXPECT_SAYS(end_of(*p.b, &byte, &r), "rxe1:1 has gone down");
  exchange(*q.a, *q.b, pattern(100'000, 1));
}

// What becomes of a connection when its device does: the other end's receive tells.
class VerbsEventsOfADevice : public testing::Test {
 protected:
  void SetUp() override {
    transport_ = open_fake_verbs(world_);
    p_ = make_pair(*transport_, *transport_);
    ASSERT_TRUE(p_.a && p_.b);
  }

  World world_{{fake::plain_device("mlx5_7")}};
  std::unique_ptr<Transport> transport_;
  Pair p_;
  std::byte byte_{};
  Ticket r_ = 0;
};

TEST_F(VerbsEventsOfADevice, failed) {
  world_.raise(0, IBV_EVENT_DEVICE_FATAL, 0);
  EXPECT_SAYS(end_of(*p_.b, &byte_, &r_), "the device mlx5_7 has failed");
}

// Taken out: the kernel answers EIO from then on, maybe without an event.
TEST_F(VerbsEventsOfADevice, taken_out) {
  EXPECT_EQ(end_of(*p_.b, &byte_, &r_), "");
  world_.api_to_change().get_async_event = [](ibv_context*, ibv_async_event*) {
    errno = EIO;
    return -1;
  };
  EXPECT_SAYS(end_of(*p_.b, &byte_, &r_), "the device mlx5_7 has failed");
}

// The device says so, or its far end does: the receive that can never be answered names the port.
TEST(VerbsEvents, the_other_end_is_told_which_port_went_down) {
  World world({fake::device_in("rxe0", 1, 1), fake::device_in("rxe1", 2, 1)});
  VerbsOptions first, second;
  first.hca = "rxe0";
  second.hca = "rxe1";
  auto here = open_fake_verbs(world, first), there = open_fake_verbs(world, second);
  Pair p = make_pair(*here, *there);
  ASSERT_TRUE(p.a && p.b);
  std::byte at_a{}, at_b{};
  Ticket ra = 0, rb = 0;
  EXPECT_EQ(end_of(*p.a, &at_a, &ra), "");
  EXPECT_EQ(end_of(*p.b, &at_b, &rb), "");
  world.raise(1, IBV_EVENT_PORT_ERR, 1);
  Connection& far = p.a->describe().find("rxe1:1 to") != std::string::npos ? *p.a : *p.b;
  Connection& near = &far == p.a.get() ? *p.b : *p.a;
  const bool far_is_a = &far == p.a.get();
  EXPECT_SAYS(end_of(far, far_is_a ? &at_a : &at_b, far_is_a ? &ra : &rb),
              "the port rxe1:1 has gone down");
  (far_is_a ? p.a : p.b).reset();  // as its user does
  const std::string text = end_of(near, far_is_a ? &at_b : &at_a, far_is_a ? &rb : &ra);
  for (const char* part : {"has given the connection up", "the port rxe1:1 has gone down"}) {
    EXPECT_SAYS(text, part);
  }
}

// Events of one connection end that one, and none that is made later.
class VerbsEventsOfAPair : public testing::TestWithParam<std::pair<ibv_event_type, const char*>> {};
INSTANTIATE_TEST_SUITE_P(
    Verbs, VerbsEventsOfAPair,
    testing::Values(std::pair(IBV_EVENT_CQ_ERR, "rxe0:1 lost completions"),
                    std::pair(IBV_EVENT_QP_FATAL, "rxe0:1 reports a fatal error"),
                    std::pair(IBV_EVENT_QP_ACCESS_ERR, "rxe0:1 refused what the peer asked"),
                    std::pair(IBV_EVENT_QP_REQ_ERR, "rxe0:1 refused what the peer asked")));

TEST_P(VerbsEventsOfAPair, end_its_connection_alone) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair other = make_pair(*t, *t);
  const std::vector<uint32_t> before = world.pairs();
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b && other.a && other.b);
  std::vector<uint32_t> made = world.pairs();
  std::erase_if(
      made, [&](uint32_t n) { return std::find(before.begin(), before.end(), n) != before.end(); });
  ASSERT_EQ(made.size(), 2U);
  std::byte at_a{}, at_b{};
  Ticket ra = 0, rb = 0;
  EXPECT_EQ(end_of(*p.a, &at_a, &ra), "");
  EXPECT_EQ(end_of(*p.b, &at_b, &rb), "");
  for (const uint32_t number : made) {
    world.raise_of_pair(0, GetParam().first, number);
  }
  EXPECT_SAYS(end_of(*p.a, &at_a, &ra), GetParam().second);
  EXPECT_SAYS(end_of(*p.b, &at_b, &rb), GetParam().second);
  exchange(*other.a, *other.b, pattern(100'000, 1));
  Pair later = make_pair(*t, *t);
  ASSERT_TRUE(later.a && later.b);
  exchange(*later.a, *later.b, pattern(100'000, 2));
}

// A subnet manager rewrites the table of partitions under a connection that stands for an entry.
TEST(VerbsEvents, a_partition_key_that_changes) {
  World world({fake::plain_device()});
  world.device(0).ports[0].pkeys = {0x8001, 0xFFFF};
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  std::byte byte{};
  Ticket r = 0;
  world.device(0).ports[0].pkeys[1] = 0x8002;  // another entry
  world.raise(0, IBV_EVENT_PKEY_CHANGE, 1);
  EXPECT_EQ(end_of(*p.b, &byte, &r), "");
  world.device(0).ports[0].pkeys[0] = 0x8003;
  world.raise(0, IBV_EVENT_PKEY_CHANGE, 1);
  const std::string text = end_of(*p.b, &byte, &r);
  for (const char* part : {"partition key 0 of rxe0:1", "0x8001", "0x8003"}) {
    EXPECT_SAYS(text, part);
  }
  Pair q = make_pair(*t, *t);
  ASSERT_TRUE(q.a && q.b);
  exchange(*q.a, *q.b, pattern(100'000, 1));
}

// A subnet manager that comes back gives other LIDs, an interface may get another MTU: connections
// that are made then go by what is so then.
TEST(VerbsEvents, lid_and_mtu_are_those_of_the_time_of_connecting) {
  auto device = fake::plain_device("mlx5_0");
  device.ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
  device.ports[0].lid = 17;
  World world({device});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  EXPECT_EQ(world.ready_to_receive().back().ah_attr.dlid, 17);
  EXPECT_EQ(world.ready_to_receive().back().path_mtu, IBV_MTU_4096);
  world.device(0).ports[0].lid = 23;
  world.device(0).ports[0].mtu = IBV_MTU_1024;
  Pair q = make_pair(*t, *t);
  ASSERT_TRUE(q.a && q.b);
  EXPECT_EQ(world.ready_to_receive().back().ah_attr.dlid, 23);
  EXPECT_EQ(world.ready_to_receive().back().path_mtu, IBV_MTU_1024);
  exchange(*q.a, *q.b, pattern(100'000, 1));
}

VerbsOptions impatient() {
  VerbsOptions options;
  options.stall_s = 0.05;
  return options;
}

// Soft-RoCE takes 7 retries as for ever.
TEST(VerbsEvents, a_device_that_tries_for_ever_is_given_up) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world, impatient());
  for (const bool sleeps : {false, true}) {
    Pair p = make_pair(*t, *t);
    ASSERT_TRUE(p.a && p.b);
    if (sleeps) {
      break;  // once the network is gone nobody connects: below
    }
    Pair q = make_pair(*t, *t);
    world.swallow();
    for (Connection* c : {p.a.get(), q.a.get()}) {
      Ticket s = 0;
      size_t bytes = 0;
      std::vector<pollfd> fds;
      ASSERT_EQ(c->isend(&bytes, sizeof bytes, nullptr, &s), Io::done);
      Io io = Io::again;
      const Deadline deadline = Deadline::after(kPatience);
      while ((io = c->test(s, &bytes)) == Io::again && !deadline.passed()) {
        if (c == q.a.get()) {  // asleep
          fds.clear();
          c->poll_fds(fds);
          ASSERT_GT(poll(fds.data(), fds.size(), 30'000), 0);
        }
      }
      EXPECT_EQ(io, Io::failed);
      EXPECT_EQ(c->error().code, Code::timeout);
      for (const char* part : {"0.05 s", "rxe0:1 to rxe0:1", "1 sends", "127.0.0.1"}) {
        EXPECT_SAYS(c->error().text, part);
      }
    }
    return;
  }
}

TEST(VerbsEvents, a_message_that_stops_half_way_is_given_up) {
  World world({fake::plain_device()});
  auto patient = open_fake_verbs(world), t = open_fake_verbs(world, impatient());
  Pair p = make_pair(*patient, *t), q = make_pair(*patient, *t);
  ASSERT_TRUE(p.a && p.b && q.a && q.b);
  std::vector<std::byte> data(1 << 20), into(1 << 20);
  Ticket s = 0, r = 0;
  ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &r), Io::done);
  (void)p.a->progress();
  ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &s), Io::done);  // and then sleeps
  size_t bytes = 0;
  EXPECT_EQ(finish(*p.b, nullptr, r, &bytes), Io::failed);
  EXPECT_EQ(p.b->error().code, Code::timeout) << p.b->error().text;
  // One that has not begun may take its time.
  ASSERT_EQ(q.b->irecv(into.data(), into.size(), nullptr, &r), Io::done);
  const Deadline later = Deadline::after(0.2);
  while (!later.passed()) {
    ASSERT_EQ(q.b->test(r, &bytes), Io::again) << q.b->error().text;
  }
  ASSERT_EQ(q.a->isend(data.data(), data.size(), nullptr, &s), Io::done);
  EXPECT_EQ(finish(*q.b, q.a.get(), r, &bytes), Io::done) << q.b->error().text;
}

}  // namespace
}  // namespace prunex::transport
