// SPDX-License-Identifier: Apache-2.0
// `prunex bench p2p` over RDMA, both ends in one process on a libibverbs made of tests
// (LD_LIBRARY_PATH leads to it).
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <thread>

#include "tools/p2p_measure.h"
#include "tools/p2p_peer.h"

namespace prunex::tools {
namespace {

std::string free_root() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&at), length), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length), 0);
  ::close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
}

// The fake's own count.
long fake_count(const char* name) {
  void* library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* count = library == nullptr ? nullptr : reinterpret_cast<long (*)()>(dlsym(library, name));
  EXPECT_NE(count, nullptr) << name;
  return count == nullptr ? -1 : count();
}

void ignore_log(int, unsigned long, const char*, int, const char*, ...) {}

// One end of a benchmark of one size.
Result<P2pRow> one_end(const P2pSpec& spec, int rank, const std::string& root, uint64_t bytes) {
  auto net = open_net(std::getenv("PRUNEX_NET_UNDER_TEST"), 0);
  const auto loaded = load_config(process_environment());
  if (!net || !loaded) {
    return tl::unexpected(!net ? net.error() : loaded.error());
  }
  auto peer = P2pPeer::meet(rank, root, 30);
  if (!peer) {
    return tl::unexpected(peer.error());
  }
  if (const int r = net->api->init(1, ignore_log); r != 0) {
    return tl::unexpected(net_error(*net->api, "init", r));
  }
  auto row = [&]() -> Result<P2pRow> {
    auto link = P2pLink::open(*net->api, "", loaded->config, *peer);
    if (!link) {
      return tl::unexpected(link.error());
    }
    EXPECT_EQ(link->transport(), "verbs");
    for (const P2pPort& port : {link->own(), link->peer()}) {
      EXPECT_EQ(port.transport, "verbs");
      EXPECT_FALSE(port.device.empty());
      EXPECT_NE(port.gid.find("RoCE v2"), std::string::npos) << port.gid;
      EXPECT_GE(port.mtu, 256);
      EXPECT_GE(port.queue_pairs, 1);
    }
    EXPECT_EQ(sender_clock(spec, link->transport()),
              spec.op == P2pOp::write && !spec.latency && spec.pattern == P2pPattern::dense);
    const PluginLibrary library(net->library);
    auto measured = measure_p2p({spec, rank, *peer, *link, library}, bytes);
    const auto together = peer->barrier();
    return measured && !together ? tl::unexpected(together.error()) : std::move(measured);
  }();
  (void)net->api->finalize();
  return row;
}

P2pRow measure(const P2pSpec& spec, uint64_t bytes) {
  const std::string root = free_root();
  Result<P2pRow> rows[2];
  std::thread other([&] { rows[1] = one_end(spec, 1, root, bytes); });
  rows[0] = one_end(spec, 0, root, bytes);
  other.join();
  for (const auto& row : rows) {
    EXPECT_TRUE(row) << row.error().text;
  }
  return rows[0] ? *std::move(rows[0]) : P2pRow{};
}

P2pSpec spec_of(P2pOp op, uint64_t iters) {
  P2pSpec spec;
  spec.op = op;
  spec.iters = iters;
  spec.warmup = 3;
  return spec;
}

TEST(P2pVerbs, any_number_of_messages_either_way) {
  for (const P2pOp op : {P2pOp::send, P2pOp::write}) {
    for (const uint64_t iters : {1, 16, 17, 100}) {
      for (const uint64_t bytes : {100, 100'000}) {  // without credits, and with
        for (const bool both : {false, true}) {
          P2pSpec spec = spec_of(op, iters);
          spec.bidirectional = both;
          spec.inflight = both ? 32 : 8;
          spec.check = op == P2pOp::send;
          const P2pRow row = measure(spec, bytes);
          for (const P2pPart& part : {row.local, row.remote.value_or(row.local)}) {
            EXPECT_EQ(part.iterations, iters);
            EXPECT_EQ(part.errors.value_or(0), 0U);
            EXPECT_GT(part.seconds, 0);
            EXPECT_GE(part.peak_MBps, part.average_MBps * 0.999999);
          }
          EXPECT_EQ(row.sum.iterations, iters * (both ? 2 : 1));
        }
      }
    }
  }
}

// What cannot meet is told before anything waits, with the values of both ends.
TEST(P2pVerbs, ends_that_do_not_fit_together_are_refused) {
  const P2pPort rdma = {"verbs", "10.0.0.1", "mlx5_0", "3 ::ffff:10.0.0.1 RoCE v2", 4096, 4};
  P2pPort tcp = {"socket", "10.0.0.2", "eth0", "", 0, 0}, other = rdma, foreign = {};
  EXPECT_TRUE(fit_together(rdma, rdma));
  EXPECT_TRUE(fit_together(tcp, tcp));
  EXPECT_TRUE(fit_together(rdma, foreign));
  other.mtu = 1024;  // the smaller one counts
  EXPECT_TRUE(fit_together(rdma, other));
  const auto says = [](const Result<>& r, std::initializer_list<const char*> parts) {
    ASSERT_FALSE(r);
    for (const char* part : parts) {
      EXPECT_NE(r.error().text.find(part), std::string::npos) << part << ": " << r.error().text;
    }
    EXPECT_EQ(r.error().text.find("NCCL_SOCKET_FAMILY"), std::string::npos) << r.error().text;
  };
  for (const auto& fits : {fit_together(rdma, tcp), fit_together(tcp, rdma)}) {
    says(fits, {"verbs", "mlx5_0", "socket", "eth0", "PRUNEX_TRANSPORT", "--transport"});
  }
  other.queue_pairs = 2;
  says(fit_together(rdma, other), {"--qps", "PRUNEX_IB_QPS", "4", "2"});
}

TEST(P2pVerbs, the_heading_names_both_ports) {
  P2pReport report;
  report.transport = "verbs";
  report.port = {"verbs", "10.0.0.1", "mlx5_0", "3 ::ffff:10.0.0.1 RoCE v2", 4096, 1};
  report.peer_port = {"verbs", "10.0.0.2", "mlx5_1", "5 ::ffff:10.0.0.2 RoCE v2", 1024, 1};
  const P2pSpec spec;
  for (const std::string& text : {p2p_table(spec, report), p2p_json(spec, report)}) {
    for (const char* part :
         {"mlx5_0", "mlx5_1", "3 ::ffff:10.0.0.1 RoCE v2", "5 ::ffff:10.0.0.2 RoCE v2", "1024"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
    }
  }
  EXPECT_NE(p2p_table(spec, report).find("packets of at most 1024 bytes"), std::string::npos);
}

TEST(P2pVerbs, to_and_fro) {
  for (const P2pOp op : {P2pOp::send, P2pOp::write}) {
    for (const uint64_t iters : {1, 16, 70}) {
      for (const uint64_t bytes : {8, 100'000}) {
        P2pSpec spec = spec_of(op, iters);
        spec.latency = true;
        spec.check = op == P2pOp::send;
        const P2pRow row = measure(spec, bytes);
        EXPECT_EQ(row.sum.iterations, iters);
        EXPECT_EQ(row.sum.time.count(), iters);
        EXPECT_EQ(row.sum.errors.value_or(0), 0U);
      }
    }
  }
}

TEST(P2pVerbs, what_is_packed_is_measured_by_arrivals) {
  for (const P2pOp op : {P2pOp::send, P2pOp::write}) {
    P2pSpec spec = spec_of(op, 40);
    spec.pattern = P2pPattern::blocks;
    spec.density = 0.25;
    const P2pRow row = measure(spec, 1 << 20);
    ASSERT_TRUE(row.sum.kinds);
    EXPECT_EQ(row.sum.kinds->messages[1], 40U);
    EXPECT_LT(row.sum.kinds->wire[1], row.sum.bytes / 3);
  }
}

// What the difference between the two is: receives that are posted together are told together.
TEST(P2pVerbs, write_tells_of_its_receives_in_fewer_writes) {
  constexpr long kMessages = 640;
  long posts[2] = {};
  for (const P2pOp op : {P2pOp::send, P2pOp::write}) {
    P2pSpec spec = spec_of(op, kMessages);
    spec.warmup = 0;
    spec.inflight = 4;
    const long before = fake_count("fake_ibverbs_writes");
    (void)measure(spec, 10'000);
    posts[op == P2pOp::write ? 1 : 0] = fake_count("fake_ibverbs_writes") - before;
  }
  EXPECT_LT(posts[1], kMessages + kMessages / 4 + 100);  // four receives in a write
  EXPECT_LE(posts[1], posts[0]);
}

}  // namespace
}  // namespace prunex::tools
