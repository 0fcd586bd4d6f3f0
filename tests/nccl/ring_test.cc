// SPDX-License-Identifier: Apache-2.0
// Communicators as NCCL runs them: proxies with two threads each, slots reused, rings and pairs.
#include <gtest/gtest.h>

#include <thread>

#include "prunex/prunex.h"
#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/logger.h"
#include "tests/nccl/host/ring.h"
#include "tests/nccl/kinds.h"
#include "tests/nccl/pipe.h"

namespace prunex::nccl::host {
namespace {

class NetRing : public testing::TestWithParam<Kind> {
 protected:
  static std::string run(int ranks, const std::function<void(Ring&, Rank&)>& body) {
    return run_world(GetParam().ranks, ranks, [&](Rank& rank) {
      Ring ring(rank, GetParam().version);
      body(ring, rank);
      rank.barrier();
      ring.close();
      PRUNEX_MUST(log_lines(abi::kLogWarn).empty());
      PRUNEX_MUST(log_faults().empty(), "%s", log_faults().c_str());
    });
  }
};

// Under a sanitizer the host's own loops take the time, not what they drive.
#ifdef PRUNEX_SANITIZED
constexpr size_t kLong = 60'001;
#else
constexpr size_t kLong = 300'001;
#endif

TEST_P(NetRing, all_reduce_simple) {
  PRUNEX_EXPECT_WELL(run(2, [](Ring& ring, Rank&) {
    for (const size_t slice : {size_t{2}, size_t{1}}) {
      uint64_t seed = 1;
      for (const size_t count :
           {size_t{0}, size_t{1}, size_t{1000}, size_t{262144}, size_t{700001}, size_t{2500000}}) {
        ring.check_all_reduce(seed++, count, abi::kSimple, slice);
      }
    }
  }));
}

TEST_P(NetRing, all_reduce_with_flags_in_the_lines) {
  PRUNEX_EXPECT_WELL(run(2, [](Ring& ring, Rank&) {
    for (const abi::Proto proto : {abi::kLl, abi::kLl128}) {
      uint64_t seed = 1;
      for (const size_t count : {size_t{1}, size_t{3000}, size_t{100001}, size_t{1000000}}) {
        ring.check_all_reduce(seed++, count, proto);
      }
    }
  }));
}

TEST_P(NetRing, protocols_take_turns) {
  PRUNEX_EXPECT_WELL(run(3, [](Ring& ring, Rank&) {
    for (uint64_t round = 0; round < 12; ++round) {
      const auto proto = static_cast<abi::Proto>(round % 3);
      ring.check_all_reduce(round, 40000 + round * 7777, proto);
    }
  }));
}

TEST_P(NetRing, messages_of_any_size_between_pairs) {
  PRUNEX_EXPECT_WELL(run(2, [](Ring& ring, Rank& rank) {
    const auto messages = [](int of) {
      std::vector<std::vector<std::byte>> out;
      for (uint32_t i = 0; i < 60; ++i) {
        const size_t bytes = i % 5 == 0 ? 0 : i % 7 == 0 ? 131072 : (i * 7919) % 20000 + 1;
        out.push_back(pattern(bytes, i * 2 + static_cast<uint32_t>(of), i % 3 == 0));
      }
      return out;
    };
    PRUNEX_MUST(ring.shift(messages(rank.rank())) == messages(1 - rank.rank()));
  }));
}

INSTANTIATE_TEST_SUITE_P(V, NetRing, testing::ValuesIn(kinds({6, 8, 10, 12})), name_of);

TEST(NetWorld, ranks_of_different_versions_make_one_ring) {
  PRUNEX_EXPECT_WELL(run_world(Ranks::processes, 4, [](Rank& rank) {
    constexpr int kVersions[] = {6, 12, 8, 10};
    Ring ring(rank, kVersions[rank.rank()]);
    ring.check_all_reduce(5, kLong, abi::kSimple);
    ring.check_all_reduce(6, 30001, abi::kLl128);
    rank.barrier();
    ring.close();
  }));
}

// Four communicators per process, each with threads of its own, all at once, none in step.
void four_communicators(int version) {
  PRUNEX_EXPECT_WELL(run_world(Ranks::processes, 2, [=](Rank& rank) {
    std::vector<std::unique_ptr<Ring>> rings;
    for (int i = 0; i < 4; ++i) {
      rings.push_back(std::make_unique<Ring>(rank, version, static_cast<uint64_t>(10 + i), i));
      rings.back()->proxy().delay_at_random(static_cast<uint32_t>(i * 100 + rank.rank() + 1));
    }
    std::vector<std::thread> kernels;
    std::vector<std::string> said(rings.size());
    for (size_t i = 0; i < rings.size(); ++i) {
      kernels.emplace_back([&, i] {
        try {
          for (uint64_t round = 0; round < 4; ++round) {
            rings[i]->check_all_reduce(round * 10 + i, 200000, abi::kSimple, 2);
            rings[i]->check_all_reduce(round * 10 + i, 5000, abi::kLl);
          }
        } catch (const std::exception& e) {
          said[i] = e.what();
        }
      });
    }
    for (std::thread& kernel : kernels) {
      kernel.join();
    }
    for (const std::string& one : said) {
      PRUNEX_MUST(one.empty(), "%s", one.c_str());
    }
    rank.barrier();
    for (const auto& ring : rings) {
      ring->close();
    }
  }));
}
TEST(NetWorld, four_communicators_at_once_v8) { four_communicators(8); }
TEST(NetWorld, four_communicators_at_once_v12) { four_communicators(12); }

// Not somebody else's network: the library that the plugin needs counted every byte.
void must_have_carried(Ranks kind, int ranks) {
  PRUNEX_EXPECT_WELL(run_world(kind, ranks, [=](Rank& rank) {
    Ring ring(rank, 12);
    const auto n = static_cast<uint64_t>(ranks);
    const uint64_t count = n * (size_t{1} << 18);  // every rank has a full slot of each chunk
    ring.check_all_reduce(1, count, abi::kSimple, 2);
    rank.barrier();
    using Stats = prunex_result_t (*)(prunex_net_stats_t*);
    const auto net_stats = reinterpret_cast<Stats>(
        symbol(load_plugin(plugin_path()), "prunex_net_stats"));  // found in what it needs
    prunex_net_stats_t stats = {};
    stats.struct_size = sizeof stats;
    PRUNEX_MUST(net_stats(&stats) == PRUNEX_SUCCESS);
    // Each rank sends 2 (n - 1) / n of the buffer; as threads they share one library.
    const uint64_t due = 2 * (n - 1) * count * 4 / (kind == Ranks::threads ? 1 : n);
    uint64_t sent = 0, wire = 0;
    for (const prunex_net_kind_t& kind_of :
         {stats.sent_raw, stats.sent_zero_block, stats.sent_masked}) {
      sent += kind_of.bytes_logical;
      wire += kind_of.bytes_wire;
    }
    PRUNEX_MUST(sent == due, "%llu bytes of %llu", static_cast<unsigned long long>(sent),
                static_cast<unsigned long long>(due));
    PRUNEX_MUST(wire < sent * 7 / 10, "three blocks in five are zero");
    rank.barrier();
    ring.close();
  }));
}
TEST(NetWorld, the_plugin_carried_it) { must_have_carried(Ranks::processes, 3); }
TEST(NetWorld, the_plugin_carried_it_for_several_ranks_of_a_process) {
  must_have_carried(Ranks::threads, 4);
}

TEST(NetWorld, a_dead_peer_is_an_error_and_no_hang) {
  PRUNEX_EXPECT_WELL(run_world(Ranks::processes, 2, [](Rank& rank) {
    Ring ring(rank, 12);
    ring.check_all_reduce(1, 1000, abi::kSimple);
    rank.barrier();
    if (rank.rank() == 1) {
      ::_exit(0);  // with connections open
    }
    ring.proxy().join_progress();
    HostNet& net = ring.net();
    std::byte room[64];
    void* place = room;
    size_t size = sizeof room;
    int tag = 0;
    void* mr = nullptr;
    void* request = nullptr;
    Status status = kSuccess;
    wait_for("an error", [&] {
      if (request == nullptr) {
        status = net.irecv(ring.recv_lane().comm, 1, &place, &size, &tag, &mr, false, &request);
      } else {
        int done = 0;
        status = net.test(request, &done, nullptr);
        PRUNEX_MUST(status != kSuccess || done == 0, "nothing was sent");
      }
      return status != kSuccess;
    });
    PRUNEX_MUST(status == kRemoteError, "answered %d", status);
    PRUNEX_MUST(!log_lines(abi::kLogWarn).empty(), "one line says which peer");
    PRUNEX_MUST(net.close_recv(ring.recv_lane().comm) == kSuccess);
    PRUNEX_MUST(net.close_send(ring.send_lane().comm) == kSuccess);
  }));
}

}  // namespace
}  // namespace prunex::nccl::host
