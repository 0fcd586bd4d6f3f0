// SPDX-License-Identifier: Apache-2.0
// The verbs transport on the fake: what only it promises.
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "plugin/transport/verbs/wire.h"
#include "tests/transport/conformance.h"
#include "tests/transport/verbs_pair.h"

namespace prunex::transport {
namespace {

using fake::World;

TEST(Verbs, registered_memory_costs_two_writes_and_no_registration) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  auto out = pattern(1 << 20, 1);
  std::vector<std::byte> into(out.size());
  auto from = t->register_memory(out.data(), out.size());
  auto to = t->register_memory(into.data(), into.size());
  ASSERT_TRUE(from && to);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  const int before = world.registrations();
  for (size_t i = 1; i <= 100; ++i) {
    world.forget_sent();
    const size_t n = out.size() - 64 * i;
    Ticket s = 0, r = 0;
    size_t bytes = 0;
    ASSERT_EQ(p.b->irecv(into.data() + 64, into.size() - 64, to->get(), &r), Io::done);
    ASSERT_EQ(p.a->isend(out.data() + i, n, from->get(), &s), Io::done);
    ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done);
    ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
    ASSERT_EQ(memcmp(into.data() + 64, out.data() + i, n), 0);
    const auto sent = world.sent();  // a credit, and the message with its announcement
    ASSERT_EQ(sent.size(), 2U);
    EXPECT_EQ(sent[1].bytes, n);
    EXPECT_EQ(sent[1].opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
  }
  EXPECT_EQ(world.registrations(), before);
}

TEST(Verbs, mtu_is_the_smaller_of_both_and_probed) {
  auto big = fake::plain_device("rxe0", 1), small = fake::plain_device("rxe1", 2);
  small.ports[0].mtu = IBV_MTU_1024;
  World world({big, small});
  VerbsOptions first, second;
  first.hca = "rxe0";
  second.hca = "rxe1";
  auto a = open_fake_verbs(world, first), b = open_fake_verbs(world, second);
  Pair p = make_pair(*a, *b);
  ASSERT_TRUE(p.a && p.b);
  for (const ibv_qp_attr& attr : world.ready_to_receive()) {
    EXPECT_EQ(attr.path_mtu, IBV_MTU_1024);
  }
  ASSERT_FALSE(world.sent().empty());
  EXPECT_EQ(world.sent()[0].bytes, 1024U);
  exchange(*p.a, *p.b, pattern(100'000, 1));
}

// Connects; what the connecting side says about its failure.
std::string failure(Transport& from, Transport& to, double timeout_s,
                    std::string* other = nullptr) {
  auto listener = to.listen();
  auto connecting = from.connect((*listener)->handle(), "", timeout_s);
  std::string text;
  const Deadline deadline = Deadline::after(kPatience);
  while (text.empty() && !deadline.passed()) {
    auto r = (*connecting)->step();
    text = r ? text : r.error().text;
    EXPECT_FALSE(r && *r);
    auto accepted = (*listener)->accept();
    if (!accepted && other != nullptr) {
      *other = accepted.error().text;
    }
  }
  return text;
}

TEST(Verbs, a_path_that_drops_the_probe_is_an_error_of_connect) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  world.hold();
  std::string text = failure(*t, *t, 0.2);
  EXPECT_NE(text.find("MTU"), std::string::npos) << text;
  EXPECT_NE(text.find("rxe0:1"), std::string::npos) << text;
  EXPECT_NE(text.find("0.2 s"), std::string::npos) << text;
  world.resume();
  world.cut();
  text = failure(*t, *t, 30);
  EXPECT_NE(text.find("status 12"), std::string::npos) << text;
}

TEST(Verbs, other_roce_version_or_link_is_refused_on_both_sides) {
  auto v2 = fake::plain_device("rxe0", 1), v1 = fake::plain_device("rxe1", 2),
       ib = fake::plain_device("rxe2", 3);
  for (auto& gid : v1.ports[0].gids) {
    gid.type = IBV_GID_TYPE_ROCE_V1;
  }
  ib.ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
  World world({v2, v1, ib});
  for (const auto& [name, word] : {std::pair("rxe1", "RoCE v1"), std::pair("rxe2", "InfiniBand")}) {
    VerbsOptions first, second;
    first.hca = "rxe0";
    second.hca = name;
    auto a = open_fake_verbs(world, first), b = open_fake_verbs(world, second);
    std::string other;
    const std::string text = failure(*a, *b, 30, &other);
    EXPECT_NE(text.find(word), std::string::npos) << text;
    EXPECT_NE(other.find(word), std::string::npos) << other;
  }
}

TEST(Verbs, a_full_house_never_runs_out_of_receives) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  std::vector<std::byte> out(size_t{64} << 10), into(out.size());
  std::vector<Ticket> tickets(4 * kMaxInFlight);
  for (size_t i = 0; i < kMaxInFlight; ++i) {  // neither end looks at what comes
    const size_t n = i % 2 == 0 ? 100 : out.size();
    ASSERT_EQ(p.a->isend(out.data(), n, nullptr, &tickets[4 * i]), Io::done);
    ASSERT_EQ(p.b->isend(out.data(), n, nullptr, &tickets[4 * i + 1]), Io::done);
    ASSERT_EQ(p.a->irecv(into.data(), into.size(), nullptr, &tickets[4 * i + 2]), Io::done);
    ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &tickets[4 * i + 3]), Io::done);
  }
  size_t bytes = 0;
  for (size_t i = 0; i < tickets.size(); ++i) {
    Connection& c = i % 2 == 0 ? *p.a : *p.b;
    ASSERT_EQ(finish(c, i % 2 == 0 ? p.b.get() : p.a.get(), tickets[i], &bytes), Io::done);
  }
  EXPECT_EQ(world.out_of_receives(), 0);
}

// Small messages go ahead of their receives into 64 places, and no further.
TEST(Verbs, eager_messages_wait_for_places) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  constexpr size_t kMessages = 3 * kMaxInFlight;
  size_t sent = 0, bytes = 0;
  Ticket s = 0;
  std::vector<std::byte> data;
  const auto send_one = [&] {
    data = pattern(100 + sent, sent);
    ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &s), Io::done);
  };
  for (send_one(); p.a->test(s, &bytes) == Io::done; send_one()) {
    ASSERT_LT(++sent, kMessages);
  }
  EXPECT_EQ(sent, size_t{kMaxInFlight});
  for (size_t i = 0; i < kMessages; ++i) {
    std::vector<std::byte> into(1000);
    Ticket r = 0;
    ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &r), Io::done);
    ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done);
    ASSERT_EQ(bytes, 100 + i);
    const auto wanted = pattern(bytes, i);
    ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), into.begin())) << i;
    while (sent + 1 < kMessages && p.a->test(s, &bytes) == Io::done) {
      ++sent;
      send_one();
    }
  }
}

TEST(Verbs, done_waits_for_the_device) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  world.hold();
  std::vector<std::byte> data = pattern(1000, 1), into(1000);
  Ticket s = 0, r = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &s), Io::done);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(p.a->test(s, &bytes), Io::again);
  }
  EXPECT_EQ(world.release(1), 1U);
  EXPECT_EQ(p.a->test(s, &bytes), Io::done);
  world.resume();
  ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &r), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done);
  EXPECT_EQ(into, data);
}

TEST(Verbs, one_failed_connection_leaves_the_others) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t), q = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b && q.a && q.b);
  world.fail_after(0, IBV_WC_REM_ACCESS_ERR);
  Ticket s = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.a->isend(&bytes, sizeof bytes, nullptr, &s), Io::done);
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::failed);
  EXPECT_NE(p.a->error().text.find("remote access error"), std::string::npos) << p.a->error().text;
  EXPECT_EQ(p.a->progress(), Io::failed);
  p.a.reset();
  Ticket r = 0;
  if (p.b->irecv(&bytes, sizeof bytes, nullptr, &r) == Io::done) {
    EXPECT_EQ(finish(*p.b, nullptr, r, &bytes), Io::failed);
  }
  EXPECT_EQ(p.b->error().code, Code::peer_lost) << p.b->error().text;
  exchange(*q.a, *q.b, pattern(100'000, 1));
}

// Two threads that sleep between events, as two processes would.
TEST(Verbs, a_sleeper_wakes_for_every_event) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  const auto play = [](Connection& c, bool first, std::string* said) {
    std::vector<std::byte> data(100'000);
    std::vector<pollfd> fds;
    for (size_t i = 0; i < 500 && said->empty(); ++i) {
      const size_t n = i % 50 == 49 ? data.size() : i * 37 % 9000;
      for (const bool sends : {first, !first}) {
        Ticket ticket = 0;
        const Io posted = sends ? c.isend(data.data(), n, nullptr, &ticket)
                                : c.irecv(data.data(), data.size(), nullptr, &ticket);
        size_t bytes = 0;
        Io io = posted;
        while (posted == Io::done && (io = c.test(ticket, &bytes)) == Io::again) {
          fds.clear();
          c.poll_fds(fds);
          if (poll(fds.data(), fds.size(), 30'000) <= 0) {
            *said = "asleep over something";
            return;
          }
        }
        if (io != Io::done || bytes != n) {
          *said = "broken: " + c.error().text;
          return;
        }
      }
    }
  };
  std::string a, b;
  std::thread other([&] { play(*p.a, true, &a); });
  play(*p.b, false, &b);
  other.join();
  EXPECT_EQ(a + b, "");
}

TEST(VerbsWire, endpoints_survive_and_junk_does_not) {
  using namespace verbs;
  Endpoint e;
  for (uint8_t i = 0; i < kMaxRails; ++i) {  // the longest there is
    RailEnd rail;
    rail.device = std::string(80, 'm');
    rail.packet = 5;
    rail.lid = 3;
    rail.link = Link::infiniband;
    rail.gid[15] = 9;
    rail.mtu = 4096;
    rail.max_message = uint64_t{1} << 31;
    rail.board_key = 77;
    rail.partner = i;
    rail.queue_pairs.assign(kMaxQueuePairs, 0xABCDEFU + i);
    e.rails.push_back(rail);
  }
  e.board = 0x123456789A;
  auto bytes = encode(e);
  auto r = decode_endpoint(bytes);
  ASSERT_TRUE(r);
  EXPECT_EQ(encode(*r), bytes);
  ASSERT_EQ(r->rails.size(), kMaxRails);
  EXPECT_EQ(r->rails[3].device, e.rails[3].device);
  EXPECT_EQ(r->rails[3].queue_pairs, e.rails[3].queue_pairs);
  EXPECT_EQ(r->rails[3].partner, 3);
  EXPECT_EQ(r->board, e.board);
  e.failure = std::string(5000, 'x');
  r = decode_endpoint(encode(e));
  ASSERT_TRUE(r);
  EXPECT_EQ(r->failure, std::string(800, 'x'));
  bytes[4] = std::byte{99};  // version
  ASSERT_FALSE(decode_endpoint(bytes));
  EXPECT_NE(decode_endpoint(bytes).error().text.find("version 99"), std::string::npos);
  EXPECT_FALSE(decode_endpoint(std::array<std::byte, kEndpointBytes>{}));
  std::array<std::byte, kEndpointBytes> ones;
  ones.fill(std::byte{0xFF});
  EXPECT_FALSE(decode_endpoint(ones));
}

TEST(VerbsWire, immediates_hold_a_mark_and_four_mebibytes) {
  using namespace verbs;
  for (const uint32_t v : {0U, 1U, kMaxImmediateBytes}) {
    const Immediate i = unpack(pack({Immediate::eager, 0xFF, v}));
    EXPECT_EQ(i.kind, Immediate::eager);
    EXPECT_EQ(i.mark, 0xFF);
    EXPECT_EQ(i.value, v);
  }
}

}  // namespace
}  // namespace prunex::transport
