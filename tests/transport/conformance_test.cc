// SPDX-License-Identifier: Apache-2.0
// What transport.h promises, asked of every transport: connecting, sizes, order, tickets, limits.
#include "tests/transport/conformance.h"

namespace prunex::transport {

INSTANTIATE_TEST_SUITE_P(Transports, Conformance,
                         testing::Values(Kind{"socket_1", [] { return open_socket(1); }, 300'000},
                                         Kind{"socket_4", [] { return open_socket(4); }, 300'000},
                                         Kind{"shm", [] { return open_shm(size_t{1} << 20); },
                                              300'000},
                                         Kind{"shm_4096", [] { return open_shm(4096); }, 300}),
                         [](const auto& i) { return std::string(i.param.name); });

namespace {

TEST_P(Conformance, hello_reaches_the_accepting_side) {
  const std::string hello(256, 'x');
  Pair p = connect(hello);
  ASSERT_TRUE(p.a && p.b);
  EXPECT_EQ(p.b->hello(), hello);
  EXPECT_NE(p.a->describe().find("->"), std::string::npos) << p.a->describe();
  Pair q = connect("");
  ASSERT_TRUE(q.b);
  EXPECT_EQ(q.b->hello(), "");
  EXPECT_FALSE(transport_->connect(p.listener->handle(), std::string(257, 'x'), 1));
}

TEST_P(Conformance, handle_is_small_and_survives_padding) {
  auto listener = transport_->listen();
  ASSERT_TRUE(listener);
  std::string handle = (*listener)->handle();
  EXPECT_LE(handle.size(), 128U);
  handle.resize(128, '\0');
  auto connecting = transport_->connect(handle, "padded", 30);
  ASSERT_TRUE(connecting) << connecting.error().text;
  std::unique_ptr<Connection> a, b;
  const Deadline deadline = Deadline::after(kPatience);
  while ((!a || !b) && !deadline.passed()) {
    if (!a) {
      auto r = (*connecting)->step();
      ASSERT_TRUE(r) << r.error().text;
      a = std::move(*r);
    }
    if (!b) {
      auto r = (*listener)->accept();
      ASSERT_TRUE(r) << r.error().text;
      b = std::move(*r);
    }
  }
  ASSERT_TRUE(a && b);
  exchange(*a, *b, pattern(100, 1));
}

TEST_P(Conformance, damaged_handles_are_errors) {
  auto listener = transport_->listen();
  ASSERT_TRUE(listener);
  const std::string handle = (*listener)->handle();
  EXPECT_FALSE(transport_->connect("", "", 1));
  EXPECT_FALSE(transport_->connect(std::string(128, '\0'), "", 1));
  EXPECT_FALSE(transport_->connect(std::string(1000, 'A'), "", 1));
  for (size_t n = 0; n < handle.size(); ++n) {
    EXPECT_FALSE(transport_->connect(handle.substr(0, n), "", 1)) << n;
  }
}

TEST_P(Conformance, sizes) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  for (const size_t n :
       {size_t{0}, size_t{1}, size_t{5}, size_t{0}, size_t{0}, size_t{31}, size_t{32}, size_t{4063},
        size_t{4064}, size_t{4065}, size_t{4096}, size_t{32767}, size_t{65535}, size_t{65536},
        size_t{65537}, size_t{131'073}, size_t{1'000'003}, (size_t{64} << 20) + 1}) {
    exchange(*p.a, *p.b, pattern(n, n));
    exchange(*p.b, *p.a, pattern(n, n + 1));
  }
}

// Posted all at once, so that they travel together.
TEST_P(Conformance, many_in_flight_arrive_in_order) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  for (const bool receives_first : {true, false}) {
    std::vector<std::vector<std::byte>> out, in;
    std::vector<Ticket> s(kMaxInFlight), r(kMaxInFlight);
    for (size_t i = 0; i < kMaxInFlight; ++i) {
      out.push_back(pattern(i % 5 == 0 ? 0 : (i * 7919) % 150'000, i));
      in.emplace_back(200'000);
    }
    const auto post_receives = [&] {
      for (size_t i = 0; i < kMaxInFlight; ++i) {
        ASSERT_EQ(p.b->irecv(in[i].data(), in[i].size(), nullptr, &r[i]), Io::done);
      }
    };
    if (receives_first) {
      post_receives();
    }
    for (size_t i = 0; i < kMaxInFlight; ++i) {
      ASSERT_EQ(p.a->isend(out[i].data(), out[i].size(), nullptr, &s[i]), Io::done);
    }
    for (int i = 0; i < 1000; ++i) {
      p.a->progress();
      p.b->progress();
    }
    if (!receives_first) {
      post_receives();
    }
    // The last receive is not done before the first, whatever the streams do.
    size_t bytes = 0;
    for (size_t i = kMaxInFlight; i-- > 0;) {
      ASSERT_EQ(finish(*p.b, p.a.get(), r[i], &bytes), Io::done) << p.b->error().text;
      EXPECT_EQ(bytes, out[i].size());
      ASSERT_TRUE(std::equal(out[i].begin(), out[i].end(), in[i].begin())) << i;
      ASSERT_EQ(finish(*p.a, p.b.get(), s[i], &bytes), Io::done);
    }
  }
}

TEST_P(Conformance, more_than_64_in_flight_is_again) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  std::vector<std::byte> data(1 << 20), into(1 << 20);
  std::vector<Ticket> s(kMaxInFlight), r(kMaxInFlight);
  Ticket extra = 0;
  for (auto& t : s) {
    ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &t), Io::done);
  }
  EXPECT_EQ(p.a->isend(data.data(), 1, nullptr, &extra), Io::again);
  for (auto& t : r) {
    ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &t), Io::done);
  }
  EXPECT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &extra), Io::again);
  size_t bytes = 0;
  // The newest answered is enough to make room, though older ones were not asked for yet.
  ASSERT_EQ(finish(*p.a, p.b.get(), s.back(), &bytes), Io::done);
  EXPECT_EQ(p.a->isend(data.data(), 1, nullptr, &extra), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r.back(), &bytes), Io::done);
  Ticket last = 0;
  EXPECT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &last), Io::done);
  for (size_t i = 0; i + 1 < kMaxInFlight; ++i) {
    ASSERT_EQ(finish(*p.a, p.b.get(), s[i], &bytes), Io::done);
    ASSERT_EQ(finish(*p.b, p.a.get(), r[i], &bytes), Io::done);
  }
  ASSERT_EQ(finish(*p.b, p.a.get(), last, &bytes), Io::done);
  EXPECT_EQ(bytes, 1U);
}

struct SideRoom : Aside {
  explicit SideRoom(size_t bytes) : memory(bytes) {}
  Room room(size_t bytes) override {
    ++asked;
    return {bytes <= memory.size() ? memory.data() : nullptr, nullptr};
  }
  std::vector<std::byte> memory;
  int asked = 0;
};

TEST_P(Conformance, marks_arrive_and_aside_goes_aside) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  // Around the size from which messages are striped, and longer than the receive's own memory.
  for (const size_t n : {size_t{0}, size_t{1}, size_t{4000}, size_t{32} << 10, size_t{300} << 10}) {
    const std::vector<std::byte> out = pattern(n, n);
    for (const Mark mark : {Mark{0}, kAside, Mark{2}, Mark{0x80 | kAside}}) {
      const bool goes_aside = (mark & kAside) != 0;
      SideRoom room(n + 1);
      std::vector<std::byte> into(goes_aside ? n / 2 : n, std::byte{0xEE});
      Ticket s = 0, r = 0;
      ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &r, &room), Io::done);
      ASSERT_EQ(p.a->isend(out.data(), n, nullptr, &s, mark), Io::done);
      size_t bytes = 0;
      Mark got = 0x55;
      Io io = Io::again;
      while ((io = p.b->test(r, &bytes, &got)) == Io::again) {
        p.a->progress();
      }
      ASSERT_EQ(io, Io::done) << p.b->error().text;
      EXPECT_EQ(bytes, n);
      EXPECT_EQ(got, mark);
      EXPECT_EQ(room.asked, goes_aside ? 1 : 0);
      const auto& filled = goes_aside ? room.memory : into;
      EXPECT_TRUE(std::equal(out.begin(), out.end(), filled.begin()));
      if (goes_aside) {
        EXPECT_EQ(static_cast<size_t>(std::count(into.begin(), into.end(), std::byte{0xEE})),
                  into.size());
      }
      ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
    }
  }
}

TEST_P(Conformance, a_message_aside_without_room_breaks_the_connection) {
  for (const bool has_room : {false, true}) {
    Pair p = connect();
    ASSERT_TRUE(p.a && p.b);
    SideRoom room(99);
    std::vector<std::byte> into(1000);
    Ticket s = 0, r = 0;
    ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &r, has_room ? &room : nullptr),
              Io::done);
    ASSERT_EQ(p.a->isend(into.data(), 100, nullptr, &s, kAside), Io::done);
    size_t bytes = 0;
    EXPECT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::failed);
    EXPECT_NE(p.b->error().text.find("100 bytes"), std::string::npos) << p.b->error().text;
  }
}

TEST_P(Conformance, stale_tickets_are_recognised) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  std::byte out{1}, in{0};
  Ticket s = 0, r = 0;
  ASSERT_EQ(p.a->isend(&out, 1, nullptr, &s), Io::done);
  ASSERT_EQ(p.b->irecv(&in, 1, nullptr, &r), Io::done);
  EXPECT_NE(s, 0U);
  size_t bytes = 0;
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done);
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
  EXPECT_EQ(p.b->test(r, &bytes), Io::failed);
  EXPECT_EQ(p.b->error().code, Code::invalid_handle);
  EXPECT_EQ(p.a->test(s, &bytes), Io::failed);
  EXPECT_EQ(p.a->test(0, &bytes), Io::failed);
  EXPECT_EQ(p.a->test(~Ticket{0}, &bytes), Io::failed);
  exchange(*p.a, *p.b, pattern(10, 3));  // and the connection lives
  ASSERT_EQ(p.b->irecv(&in, 1, nullptr, &r), Io::done);
  EXPECT_EQ(p.a->test(r, &bytes), Io::failed);  // another connection's, or an old one
}

TEST_P(Conformance, message_longer_than_the_receive_names_both_sizes) {
  for (const size_t n : {size_t{1001}, size_t{300'000}}) {
    Pair p = connect();
    ASSERT_TRUE(p.a && p.b);
    std::vector<std::byte> data(n), into(1000, std::byte{0x55});
    Ticket s = 0, r = 0;
    ASSERT_EQ(p.b->irecv(into.data(), 1000, nullptr, &r), Io::done);
    ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &s), Io::done);
    size_t bytes = 0;
    ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::failed);
    EXPECT_NE(p.b->error().text.find(std::to_string(n)), std::string::npos) << p.b->error().text;
    EXPECT_NE(p.b->error().text.find("1000"), std::string::npos) << p.b->error().text;
    EXPECT_EQ(into[999], std::byte{0x55});
    EXPECT_EQ(p.b->irecv(into.data(), 1000, nullptr, &r), Io::failed);
    EXPECT_EQ(p.b->isend(data.data(), 1, nullptr, &s), Io::failed);
    EXPECT_EQ(p.b->progress(), Io::failed);
  }
}

TEST_P(Conformance, both_directions_at_once) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  const auto out_a = pattern(8'000'001, 1), out_b = pattern(7'000'003, 2);
  std::vector<std::byte> in_a(out_b.size()), in_b(out_a.size());
  Ticket sa = 0, sb = 0, ra = 0, rb = 0;
  ASSERT_EQ(p.a->isend(out_a.data(), out_a.size(), nullptr, &sa), Io::done);
  ASSERT_EQ(p.b->isend(out_b.data(), out_b.size(), nullptr, &sb), Io::done);
  ASSERT_EQ(p.a->irecv(in_a.data(), in_a.size(), nullptr, &ra), Io::done);
  ASSERT_EQ(p.b->irecv(in_b.data(), in_b.size(), nullptr, &rb), Io::done);
  size_t n = 0;
  EXPECT_EQ(finish(*p.a, p.b.get(), ra, &n), Io::done);
  EXPECT_EQ(finish(*p.b, p.a.get(), rb, &n), Io::done);
  EXPECT_EQ(finish(*p.a, p.b.get(), sa, &n), Io::done);
  EXPECT_EQ(finish(*p.b, p.a.get(), sb, &n), Io::done);
  EXPECT_EQ(in_a, out_b);
  EXPECT_EQ(in_b, out_a);
}

TEST_P(Conformance, several_connections_on_one_listener) {
  constexpr size_t kConnections = 8;
  auto listener = transport_->listen();
  ASSERT_TRUE(listener);
  std::vector<std::unique_ptr<Connecting>> making;
  for (size_t i = 0; i < kConnections; ++i) {
    auto c = transport_->connect((*listener)->handle(), "number " + std::to_string(i), 30);
    ASSERT_TRUE(c);
    making.push_back(std::move(*c));
  }
  std::vector<std::unique_ptr<Connection>> from(kConnections), to(kConnections);
  size_t open = 0;
  const Deadline deadline = Deadline::after(kPatience);
  while (open < 2 * kConnections && !deadline.passed()) {
    for (size_t i = 0; i < kConnections; ++i) {
      if (!from[i]) {
        auto r = making[i]->step();
        ASSERT_TRUE(r) << r.error().text;
        from[i] = std::move(*r);
        open += from[i] ? 1 : 0;
      }
    }
    auto r = (*listener)->accept();
    ASSERT_TRUE(r) << r.error().text;
    if (*r) {
      const size_t i = std::stoul(std::string((*r)->hello().substr(7)));
      ASSERT_LT(i, kConnections);
      ASSERT_FALSE(to[i]);
      to[i] = std::move(*r);
      ++open;
    }
  }
  ASSERT_EQ(open, 2 * kConnections);
  listener->reset();  // established connections do not need it
  for (size_t i = 0; i < kConnections; ++i) {
    exchange(*from[i], *to[i], pattern(100'000 + i, i));
  }
}

}  // namespace
}  // namespace prunex::transport
