// SPDX-License-Identifier: Apache-2.0
// Which network leaders talk over: as pure functions, and in communicators on a libibverbs that is
// made of tests (LD_LIBRARY_PATH leads to it).
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>

#include "plugin/collective/networks.h"
#include "tests/collective/cluster.h"
#include "tests/collective/float_call.h"

namespace prunex::test {
namespace {

using collective::CallSpec;
using collective::Comm;
using collective::Contract;
using collective::MaskedLayout;
using testing::HasSubstr;

topo::RankFacts facts_of(int rank, const std::string& node, bool rdma) {
  topo::RankFacts f;
  f.rank = rank;
  f.node_id = f.host = node;
  f.transports = topo::kTransportSocket | (rdma ? topo::kTransportVerbs : 0U);
  for (const char* name : {"mlx5_0", "mlx5_1"}) {
    topo::NicFacts nic;
    nic.name = name;
    nic.address = "10.0.0.1";
    nic.rdma = rdma;
    f.nics.push_back(nic);
  }
  return f;
}

TEST(Networks, rdma_when_all_leaders_have_it) {
  const std::vector<topo::RankFacts> facts{facts_of(0, "a", true), facts_of(1, "b", true)};
  const auto world = topo::make_world(facts);
  ASSERT_TRUE(world);
  EXPECT_TRUE(collective::choose_network(*world, facts).rdma);
}

TEST(Networks, one_without_is_tcp_and_named) {
  std::vector<topo::RankFacts> facts{facts_of(0, "a", true), facts_of(1, "b", false)};
  collective::settle_nics(facts);
  EXPECT_EQ(facts[0].nics.size(), 1u) << "one address is one NIC for TCP";
  const auto world = topo::make_world(facts);
  ASSERT_TRUE(world);
  const auto choice = collective::choose_network(*world, facts);
  EXPECT_FALSE(choice.rdma);
  EXPECT_THAT(choice.why, HasSubstr("rank 1 (b)"));
}

TEST(Networks, ports_are_nics_of_their_own_with_the_address_to_meet_at) {
  transport::Rdma rdma;
  for (const char* name : {"mlx5_0", "mlx5_1"}) {
    transport::RdmaPort port;
    port.info.device = name;
    rdma.ports.push_back(port);
  }
  transport::verbs::Gid gid;
  gid.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 2, 0, 1};
  rdma.ports[1].info.gids = {gid};
  const std::vector<Interface> chosen{{"eth0", *parse_host("10.1.0.1", 0), true, false},
                                      {"eth1", *parse_host("10.2.0.1", 0), true, false}};
  const auto nics = collective::nics_of(rdma, chosen);
  ASSERT_EQ(nics.size(), 2u);
  EXPECT_EQ(nics[0].name + " " + nics[0].address, "mlx5_0 10.1.0.1");
  EXPECT_EQ(nics[1].name + " " + nics[1].address, "mlx5_1 10.2.0.1");
  EXPECT_TRUE(nics[0].rdma);
  EXPECT_EQ(collective::nics_of({}, chosen)[1].name, "eth1");
}

// Sums of a dense call, small and large, in a world of two nodes.
void sums(Comm& comm, int rank, const char* transport) {
  EXPECT_EQ(comm.transport(), transport);
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{3} << 20}) {
    std::vector<float> data(count, static_cast<float>(rank + 1));
    CallSpec call;
    call.send = data.data();
    call.recv = data.data();
    call.count = count;
    const auto done = comm.all_reduce(call);
    ASSERT_TRUE(done) << done.error().text;
    EXPECT_EQ(data.front(), 6.0F);
    EXPECT_EQ(data.back(), 6.0F);
  }
}

// The fake's own count.
long fake_count(const char* name) {
  void* library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* count = library == nullptr ? nullptr : reinterpret_cast<long (*)()>(dlsym(library, name));
  EXPECT_NE(count, nullptr) << name;
  return count == nullptr ? -1 : count();
}

TEST(Networks, communicators_on_rdma) {
  run_ranks(nodes_of({2, 1}), [](Comm& comm, int rank) { sums(comm, rank, "verbs"); });
  // Before the first region, or the pages of a process that forks are not safe.
  EXPECT_GE(fake_count("fake_ibverbs_fork_inits"), 1);
}

// One call of each kind on the same buffers.
void reduce_all(Comm& comm, std::vector<float>& in, std::vector<float>& out,
                const std::shared_ptr<const MaskedLayout>& masked) {
  for (const auto& layout : {std::shared_ptr<const MaskedLayout>(), masked}) {
    for (const size_t count : {size_t{1000}, in.size()}) {
      if (layout != nullptr && count != in.size()) {
        continue;
      }
      std::fill(in.begin(), in.end(), 1.0F);
      for (float* to : {out.data(), in.data()}) {  // in place last
        CallSpec call;
        call.send = in.data();
        call.recv = to;
        call.count = count;
        call.masked = layout;
        const auto done = comm.all_reduce(call);
        ASSERT_TRUE(done) << done.error().text;
        ASSERT_EQ(to[count / 4 * 4 - 4], 3.0F);
      }
    }
  }
}

// What is sent and received between nodes lies in memory that was registered before.
TEST(Networks, calls_on_the_same_buffers_register_nothing) {
  constexpr int kRanks = 3;
  std::barrier all(kRanks);
  run_ranks(nodes_of({2, 1}), [&](Comm& comm, int) {
    ASSERT_EQ(comm.transport(), "verbs");
    std::vector<float> in(size_t{1} << 20), out(in.size());
    const auto masked = striped(in.size(), 1, 4, Contract::project);
    reduce_all(comm, in, out, masked);  // what is made at first use is made
    all.arrive_and_wait();
    const long registered = fake_count("fake_ibverbs_registrations");
    const long alive = fake_count("fake_ibverbs_regions"),
               writes = fake_count("fake_ibverbs_writes");
    EXPECT_GT(alive, 0);
    all.arrive_and_wait();
    for (int i = 0; i < 20; ++i) {
      reduce_all(comm, in, out, masked);
    }
    all.arrive_and_wait();
    EXPECT_GT(fake_count("fake_ibverbs_writes"), writes);
    EXPECT_EQ(fake_count("fake_ibverbs_registrations"), registered);
    EXPECT_EQ(fake_count("fake_ibverbs_regions"), alive) << "nothing was given back either";
    all.arrive_and_wait();
    EXPECT_GT(comm.stats().calls_compact, 0U);
  });
  EXPECT_EQ(fake_count("fake_ibverbs_regions"), 0);
  // What has to be copied goes in pieces of 32 KiB at most.
  EXPECT_GT(fake_count("fake_ibverbs_longest"), 32 << 10);
  EXPECT_EQ(fake_count("fake_ibverbs_pieces"), 0);
}

TEST(Networks, one_rank_without_rdma_is_tcp_for_all) {
  ClusterOptions options;
  options.adjust = [](int rank, collective::CommOptions& o) {
    o.config.transport = rank == 2 ? Choice::socket : Choice::automatic;
  };
  run_ranks(
      nodes_of({2, 1}), [](Comm& comm, int rank) { sums(comm, rank, "socket"); }, options);
}

TEST(Networks, one_node_needs_none) {
  run_ranks(nodes_of({3}), [](Comm& comm, int rank) { sums(comm, rank, "shm"); });
}

TEST(Networks, forced_and_impossible_is_one_error_on_all) {
  MemoryStore store;
  std::vector<std::thread> threads;
  std::vector<std::string> said(2);
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      collective::CommOptions o;
      o.config.rank = r;
      o.config.size = 2;
      o.config.node_id = "node" + std::to_string(r);
      o.config.socket_ifname = "lo";
      o.config.timeout_s = 30;
      o.config.transport = r == 0 ? Choice::verbs : Choice::socket;
      o.store = store.callbacks();
      const auto comm = Comm::create(o);
      said[static_cast<size_t>(r)] = comm ? "" : comm.error().text;
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
  EXPECT_THAT(said[0], HasSubstr("PRUNEX_TRANSPORT=verbs"));
  EXPECT_THAT(said[0], HasSubstr("rank 1"));
  EXPECT_THAT(said[1], HasSubstr("rank 0 failed: PRUNEX_TRANSPORT=verbs"));
}

}  // namespace
}  // namespace prunex::test
