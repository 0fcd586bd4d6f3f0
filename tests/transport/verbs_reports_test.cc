// SPDX-License-Identifier: Apache-2.0
// Public reports about RDMA, on the fake; named by their id.
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/transport/child.h"
#include "tests/transport/conformance.h"
#include "tests/transport/verbs_pair.h"

namespace prunex::transport {
namespace {

using fake::FakeDevice;
using fake::World;

void expect_connects(const FakeDevice& device) {
  World world({device});
  auto t = open_fake_verbs(world);
  ASSERT_TRUE(t);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  for (const size_t n : {size_t{0}, size_t{50}, size_t{101}, size_t{5000}}) {
    exchange(*p.a, *p.b, pattern(n, n));
  }
}

FakeDevice infiniband(std::vector<uint16_t> pkeys, uint8_t flags) {
  FakeDevice d = fake::plain_device("mlx5_0");
  d.ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
  d.ports[0].lid = 17;
  d.ports[0].pkeys = std::move(pkeys);
  d.ports[0].flags = flags;
  return d;
}

TEST(Reports, B3_events_of_another_port) {
  FakeDevice d = fake::plain_device();
  d.ports.push_back(d.ports[0]);
  World world({d});
  VerbsOptions options;
  options.hca = "rxe0:1";
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  for (int i = 0; i < 1000; ++i) {
    world.raise(0, IBV_EVENT_PORT_ERR, 2);
  }
  for (int i = 0; i < 500; ++i) {
    EXPECT_NE(p.a->progress(), Io::failed);
  }
  exchange(*p.a, *p.b, pattern(1000, 1));

  std::byte byte{};
  Ticket r = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.b->irecv(&byte, 1, nullptr, &r), Io::done);
  world.raise(0, IBV_EVENT_PORT_ERR, 1);
  EXPECT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::failed);
  EXPECT_SAYS(p.b->error().text, "rxe0:1 has gone down");
}

TEST(Reports, B5_the_valid_partition_key_is_used) {
  const FakeDevice d = infiniband({0x0000, 0x8005}, 0);
  expect_connects(d);
  World world({d});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_EQ(world.initialised().size(), 2U);
  EXPECT_EQ(world.initialised()[0].pkey_index, 1);
  VerbsOptions options;
  options.api = &world.api();
  options.pkey = 0x8006;
  const auto r = open_verbs_transport(options);
  ASSERT_FALSE(r);
  EXPECT_SAYS(r.error().text, "mlx5_0:1");
}

TEST(Reports, B5_a_partition_that_is_asked_for_is_used_on_roce_too) {
  FakeDevice d = fake::plain_device();
  d.ports[0].pkeys = {0xFFFF, 0x0000, 0x8005};
  for (const auto& [asked, index] : {std::pair(-1, 0), {0x8005, 2}, {2, 2}, {0, 0}}) {
    World world({d});
    VerbsOptions options;
    options.pkey = asked;
    auto t = open_fake_verbs(world, options);
    Pair p = make_pair(*t, *t);
    ASSERT_EQ(world.initialised().size(), 2U);
    EXPECT_EQ(world.initialised()[0].pkey_index, index) << asked;
    EXPECT_EQ(world.initialised()[1].pkey_index, index) << asked;
  }
}

TEST(Reports, B6_global_route_on_infiniband) {
  for (const bool required : {false, true}) {
    const FakeDevice d = infiniband({0xFFFF}, required ? IBV_QPF_GRH_REQUIRED : 0);
    World world({d});
    auto t = open_fake_verbs(world);
    Pair p = make_pair(*t, *t);
    ASSERT_TRUE(p.a && p.b);
    for (const ibv_qp_attr& attr : world.ready_to_receive()) {
      EXPECT_EQ(attr.ah_attr.is_global, required ? 1 : 0);
      EXPECT_EQ(attr.ah_attr.dlid, 17);
      if (required) {
        EXPECT_EQ(memcmp(attr.ah_attr.grh.dgid.raw, d.ports[0].gids[0].bytes.data(), 16), 0);
      }
    }
    exchange(*p.a, *p.b, pattern(5000, 1));
  }
}

TEST(Reports, B7_ethernet_with_a_lid_goes_by_gid) {
  FakeDevice d = fake::plain_device();
  d.ports[0].lid = 1;
  World world({d});
  VerbsOptions options;
  options.traffic_class = 106;
  options.service_level = 3;
  options.timeout = 14;
  options.retry_count = 5;
  auto t = open_fake_verbs(world, options);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  ASSERT_EQ(world.ready_to_receive().size(), 2U);
  for (const ibv_qp_attr& attr : world.ready_to_receive()) {
    EXPECT_EQ(attr.ah_attr.is_global, 1);
    EXPECT_EQ(attr.ah_attr.grh.sgid_index, 1);  // IPv4, not link-local
    EXPECT_EQ(memcmp(attr.ah_attr.grh.dgid.raw, d.ports[0].gids[1].bytes.data(), 16), 0);
    EXPECT_EQ(attr.ah_attr.grh.traffic_class, 106);
    EXPECT_EQ(attr.ah_attr.sl, 3);
  }
  for (const ibv_qp_attr& attr : world.ready_to_send()) {
    EXPECT_EQ(attr.timeout, 14);
    EXPECT_EQ(attr.retry_cnt, 5);
  }
}

TEST(Reports, B8_locked_memory_limit) {
  PRUNEX_EXPECT_CHILD(in_child([]() -> std::string {
    const rlimit limit{65536, 65536};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
      return "skip: the limit cannot be set";
    }
    World world({fake::plain_device()});
    auto t = open_fake_verbs(world);
    world.refuse_regions(ENOMEM);
    std::byte data[100];
    const auto r = t->register_memory(data, sizeof data);
    if (r || r.error().code != Code::memory) {
      return "no memory error";
    }
    for (const char* part : {"65536", "100 bytes", "ulimit -l", "IPC_LOCK", "rxe0:1"}) {
      if (r.error().text.find(part) == std::string::npos) {
        return "no \"" + std::string(part) + "\" in: " + r.error().text;
      }
    }
    return "";
  }));
}

TEST(Reports, B9_queue_pair_limit_is_named) {
  FakeDevice d = fake::plain_device();
  d.max_qp = 2;
  World world({d});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  auto connecting = t->connect(p.listener->handle(), "", 30);
  ASSERT_TRUE(connecting);
  std::string text;
  const Deadline deadline = Deadline::after(kPatience);
  while (text.empty() && !deadline.passed()) {
    auto r = (*connecting)->step();
    (void)p.listener->accept();
    text = r ? "" : r.error().text;
  }
  EXPECT_SAYS(text, "has 2 there");
  EXPECT_SAYS(text, "allows 2");
  EXPECT_SAYS(text, "max_qp");
  exchange(*p.a, *p.b, pattern(1000, 1));
}

// A connection that the device has no room for says which limit that is.
TEST(Reports, B9_completion_queue_limit_is_named) {
  FakeDevice d = fake::plain_device();
  d.max_cqe = 500;
  World world({d});
  auto t = open_fake_verbs(world);
  auto listener = t->listen();
  ASSERT_TRUE(listener);
  auto connecting = t->connect((*listener)->handle(), "", 30);
  ASSERT_TRUE(connecting);
  std::string text;
  const Deadline deadline = Deadline::after(kPatience);
  while (text.empty() && !deadline.passed()) {
    auto r = (*connecting)->step();
    ASSERT_TRUE(!r || *r == nullptr) << "it fits: the test needs a smaller limit";
    (void)(*listener)->accept();
    text = r ? "" : r.error().text;
  }
  for (const char* part : {"rxe0:1", "500", "max_cqe", "fewer queue pairs"}) {
    EXPECT_SAYS(text, part);
  }
}

TEST(Reports, B10_inline_limit_of_the_device) {
  for (const uint32_t limit : {100U, 1U, 0U}) {
    FakeDevice d = fake::plain_device();
    d.max_inline = limit;
    expect_connects(d);
  }
  FakeDevice d = fake::plain_device();
  d.max_inline = 100;
  World world({d});
  auto t = open_fake_verbs(world);  // asks for 128, gets 64
  Pair p = make_pair(*t, *t);
  for (const size_t n : {size_t{64}, size_t{65}}) {
    world.forget_sent();
    exchange(*p.a, *p.b, pattern(n, n));
    const auto sent = world.sent();
    const auto message =
        std::find_if(sent.begin(), sent.end(), [n](const auto& s) { return s.bytes == n; });
    ASSERT_NE(message, sent.end());
    EXPECT_EQ(message->is_inline, n == 64);
  }
}

TEST(Reports, B11_status_12_says_what_to_look_at) {
  World world({fake::plain_device(), fake::plain_device("mlx5_3", 77)});
  VerbsOptions options, theirs;
  options.timeout = 14;
  options.retry_count = 6;
  theirs.rail = 1;
  auto t = open_fake_verbs(world, options), other = open_fake_verbs(world, theirs);
  Pair p = make_pair(*t, *other);
  ASSERT_TRUE(p.a && p.b);
  world.cut();
  Ticket s = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.a->isend(&bytes, sizeof bytes, nullptr, &s), Io::done);
  ASSERT_EQ(finish(*p.a, nullptr, s, &bytes), Io::failed);
  EXPECT_EQ(p.a->error().code, Code::peer_lost);
  const std::string& text = p.a->error().text;
  for (const char* part : {"transport retry counter exceeded", "status 12",
                           "from rxe0:1 (GID 1 ::ffff:10.0.0.1, RoCE v2",
                           "to mlx5_3:1 (GID 1 ::ffff:10.0.0.77, RoCE v2", "127.0.0.1",
                           "timeout 14", "6 retries", "4096 bytes", "GID index, VLAN and rail"}) {
    EXPECT_SAYS(text, part);
  }
  EXPECT_EQ(text.find("DEADBEEF"), std::string::npos) << text;
  EXPECT_EQ(text.find("3735928559"), std::string::npos) << text;
}

TEST(Reports, B16_devices_that_cannot_be_used) {
  FakeDevice closed = fake::plain_device("rxe1", 2), down = fake::plain_device("rxe2", 3);
  closed.opens = false;
  down.ports[0].state = IBV_PORT_DOWN;
  World world({fake::plain_device(), closed, down});
  VerbsOptions options;
  options.api = &world.api();
  const auto ports = list_verbs_ports(options);
  ASSERT_TRUE(ports);
  ASSERT_EQ(ports->size(), 3U);
  EXPECT_EQ((*ports)[0].trouble, "");
  EXPECT_EQ((*ports)[0].pci, "");  // none, and it works
  EXPECT_SAYS((*ports)[1].trouble, "cannot be opened: /dev/infiniband/uverbs");
  EXPECT_SAYS((*ports)[2].trouble, "DOWN");
  std::vector<std::string> notes;
  ASSERT_TRUE(open_verbs_transport(options, &notes));
  EXPECT_EQ(notes.size(), 2U);
  options.hca = "rxe2";
  const auto r = open_verbs_transport(options);
  ASSERT_FALSE(r);
  EXPECT_SAYS(r.error().text, "DOWN");
}

TEST(Reports, B19_counters_wrap) {
  for (const uint32_t first : {(1U << 31) - 3, 0xFFFFFFFF - 2}) {
    World world({fake::plain_device()});
    VerbsOptions options;
    options.first_sequence = first;
    auto t = open_fake_verbs(world, options), other = open_fake_verbs(world);
    Pair p = make_pair(*t, *other);  // the connecting end says it
    ASSERT_TRUE(p.a && p.b);
    for (size_t i = 0; i < 200; ++i) {  // eager places wrap too
      exchange(*p.a, *p.b, pattern(i * 61, i));
      exchange(*p.b, *p.a, pattern(i * 97, i));
    }
  }
}

TEST(Reports, B20_messages_are_cut_at_the_ports_limit) {
  FakeDevice d = fake::plain_device();
  d.ports[0].max_msg = 1U << 20;
  World world({d});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  world.forget_sent();
  exchange_registered(*t, p, pattern((size_t{5} << 20) + 4097, 1));
  uint64_t data = 0, writes = 0;
  for (const auto& one : world.sent()) {
    EXPECT_LE(one.bytes, 1U << 20);
    data += one.bytes > 64 ? one.bytes : 0;
    writes += one.bytes > 64 ? 1 : 0;
  }
  EXPECT_EQ(data, (size_t{5} << 20) + 4097);
  EXPECT_EQ(writes, 6U);
}

TEST(Reports, B21_regions_balance_and_outlive_their_use) {
  World world({fake::plain_device()});
  auto t = open_fake_verbs(world);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  receive_into_fresh_regions(*t, p, 100'000, [&] { return world.live().regions; });
}

TEST(Reports, B23_optional_functions_may_be_absent) {
  World world({fake::plain_device()});
  world.api_to_change().query_gid_ex = nullptr;
  world.api_to_change().reg_mr_iova2 = nullptr;
  world.api_to_change().reg_dmabuf_mr = nullptr;
  auto t = open_fake_verbs(world);
  ASSERT_TRUE(t);
  Pair p = make_pair(*t, *t);
  ASSERT_TRUE(p.a && p.b);
  EXPECT_EQ(world.ready_to_receive()[0].ah_attr.grh.sgid_index, 1);
  exchange(*p.a, *p.b, pattern(100'000, 1));
  std::byte data[64];
  EXPECT_TRUE(t->register_relaxed(data, sizeof data));
  const auto r = t->register_dmabuf(0, 0, data, sizeof data);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::unsupported);
  EXPECT_SAYS(r.error().text, "ibv_reg_dmabuf_mr");
}

}  // namespace
}  // namespace prunex::transport
