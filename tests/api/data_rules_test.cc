// SPDX-License-Identifier: Apache-2.0
// Collectives that move data: what is refused, what ranks may not differ in, what crosses.
#include <atomic>

#include "tests/api/api_world.h"

namespace prunex::test {
namespace {

using Bytes = std::vector<uint8_t>;

// One call with something different on the last rank.
struct Odd {
  const char* name;
  std::function<prunex_result_t(prunex_comm_t, Bytes& a, Bytes& b, bool odd)> call;
  std::vector<std::string> words;  // of the error, on every rank
};

std::ostream& operator<<(std::ostream& out, const Odd& odd) { return out << odd.name; }

const Odd kOdd[] = {
    {"root",
     [](prunex_comm_t c, Bytes& a, Bytes&, bool odd) {
       return prunex_broadcast(c, a.data(), 30'000, odd ? 1 : 0, nullptr);
     },
     {"broadcast from root 0", "broadcast from root 1"}},
    {"broadcast_bytes",
     [](prunex_comm_t c, Bytes& a, Bytes&, bool odd) {
       return prunex_broadcast(c, a.data(), odd ? 299'999 : 300'000, 0, nullptr);
     },
     {"300000", "299999"}},
    {"gather_bytes",
     [](prunex_comm_t c, Bytes& a, Bytes& b, bool odd) {
       return prunex_all_gather(c, a.data(), b.data(), odd ? 0 : 9'000, nullptr);
     },
     {"9000", "0"}},
    {"scatter_op",
     [](prunex_comm_t c, Bytes& a, Bytes& b, bool odd) {
       return prunex_reduce_scatter(c, a.data(), b.data(), 9'000, PRUNEX_FLOAT32,
                                    odd ? PRUNEX_MAX : PRUNEX_SUM, nullptr);
     },
     {"sum", "max"}},
    {"scatter_dtype",
     [](prunex_comm_t c, Bytes& a, Bytes& b, bool odd) {
       return prunex_reduce_scatter(c, a.data(), b.data(), 9'000,
                                    odd ? PRUNEX_INT32 : PRUNEX_FLOAT32, PRUNEX_SUM, nullptr);
     },
     {"f32", "i32"}},
    {"collective",
     [](prunex_comm_t c, Bytes& a, Bytes& b, bool odd) {
       return odd ? prunex_all_reduce(c, a.data(), b.data(), 9'000, PRUNEX_UINT8, PRUNEX_SUM, 0,
                                      nullptr)
                  : prunex_broadcast(c, a.data(), 9'000, 0, nullptr);
     },
     {"broadcast from root 0", "all_reduce"}},
    {"barrier",
     [](prunex_comm_t c, Bytes& a, Bytes& b, bool odd) {
       return odd ? prunex_barrier(c) : prunex_all_gather(c, a.data(), b.data(), 0, nullptr);
     },
     {"all_gather", "barrier"}},
};

class DataMismatch : public ::testing::TestWithParam<Odd> {};

TEST_P(DataMismatch, EveryRankSaysSoAndNothingIsWritten) {
  for (const std::vector<int>& node_of : {std::vector<int>{0, 0, 0}, {0, 1, 2}, {0, 0, 1, 1}}) {
    run_c_ranks(node_of, [&](prunex_comm_t comm, int rank) {
      const bool odd = rank == static_cast<int>(node_of.size()) - 1;
      for (int round = 0; round < 2; ++round) {
        Bytes a(400'000, static_cast<uint8_t>(rank)), b(400'000, 0xEE);
        EXPECT_EQ(GetParam().call(comm, a, b, odd), PRUNEX_ERROR_MISMATCH);
        const std::string text = prunex_last_error();
        for (const std::string& word : GetParam().words) {
          EXPECT_NE(text.find(word), std::string::npos) << text;
        }
        EXPECT_EQ(a, Bytes(400'000, static_cast<uint8_t>(rank)));
        EXPECT_EQ(b, Bytes(400'000, 0xEE));
        Bytes good(5000, rank == 0 ? 9 : 0);
        ASSERT_OK(prunex_broadcast(comm, good.data(), good.size(), 0, nullptr));
        EXPECT_EQ(good, Bytes(5000, 9));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(OneRank, DataMismatch, ::testing::ValuesIn(kOdd),
                         [](const auto& odd) { return std::string(odd.param.name); });

TEST(DataArguments, Refusals) {
  run_c_ranks({0, 0}, [](prunex_comm_t comm, int rank) {
    Bytes a(100), b(200);
    prunex_call_t call = PRUNEX_CALL_INIT;
    for (const prunex_scope_t scope : {PRUNEX_SCOPE_NODE, PRUNEX_SCOPE_LEADERS}) {
      call.scope = scope;
      const char* name = scope == PRUNEX_SCOPE_NODE ? "NODE" : "LEADERS";
      EXPECT_FAILS(prunex_broadcast(comm, a.data(), 5, 0, &call), PRUNEX_ERROR_UNSUPPORTED, name);
      EXPECT_FAILS(prunex_all_gather(comm, a.data(), b.data(), 5, &call), PRUNEX_ERROR_UNSUPPORTED,
                   name);
      EXPECT_FAILS(
          prunex_reduce_scatter(comm, b.data(), a.data(), 5, PRUNEX_INT8, PRUNEX_SUM, &call),
          PRUNEX_ERROR_UNSUPPORTED, name);
    }
    call.scope = PRUNEX_SCOPE_WORLD;
    call.stream = &call;
    EXPECT_FAILS(prunex_broadcast(comm, a.data(), 5, 0, &call), PRUNEX_ERROR_UNSUPPORTED, "stream");
    call.stream = nullptr;
    call.struct_size = 1;
    EXPECT_FAILS(prunex_broadcast(comm, a.data(), 5, 0, &call), PRUNEX_ERROR_INVALID_ARGUMENT,
                 "struct_size is 1");
    EXPECT_FAILS(prunex_broadcast(comm, a.data(), 5, 2, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT,
                 "root 2");
    EXPECT_FAILS(prunex_broadcast(comm, a.data(), 5, -1, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT,
                 "root -1");
    EXPECT_FAILS(prunex_broadcast(comm, nullptr, 5, 0, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT,
                 "buffer");
    EXPECT_FAILS(prunex_broadcast(comm, a.data(), SIZE_MAX, 0, nullptr),
                 PRUNEX_ERROR_INVALID_ARGUMENT, "address space");
    EXPECT_FAILS(prunex_all_gather(comm, nullptr, b.data(), 5, nullptr),
                 PRUNEX_ERROR_INVALID_ARGUMENT, "send");
    EXPECT_FAILS(prunex_all_gather(comm, a.data(), nullptr, 5, nullptr),
                 PRUNEX_ERROR_INVALID_ARGUMENT, "recv");
    EXPECT_FAILS(prunex_all_gather(comm, a.data(), b.data(), SIZE_MAX / 2 + 1, nullptr),
                 PRUNEX_ERROR_INVALID_ARGUMENT, "bytes_per_rank");
    // The other rank's place is not in place, nor is one in between.
    const size_t other = rank == 0 ? 100 : 0;
    EXPECT_FAILS(prunex_all_gather(comm, b.data() + other, b.data(), 100, nullptr),
                 PRUNEX_ERROR_INVALID_ARGUMENT, "overlap");
    EXPECT_FAILS(prunex_reduce_scatter(comm, b.data(), b.data() + 50, 100, PRUNEX_UINT8, PRUNEX_SUM,
                                       nullptr),
                 PRUNEX_ERROR_INVALID_ARGUMENT, "overlap");
    EXPECT_FAILS(prunex_reduce_scatter(comm, b.data(), a.data(), 5, static_cast<prunex_dtype_t>(99),
                                       PRUNEX_SUM, nullptr),
                 PRUNEX_ERROR_INVALID_ARGUMENT, "dtype 99");
    EXPECT_FAILS(prunex_barrier(comm + 1000), PRUNEX_ERROR_INVALID_HANDLE,
                 std::to_string(comm + 1000));
    ASSERT_OK(prunex_barrier(comm));  // none of that took anybody's turn
  });
}

// Bytes between nodes of one call, of all ranks together and of the busiest.
struct Wire {
  std::atomic<uint64_t> total{0}, most{0}, received{0}, dense{0};
};

void count(Wire& wire, const std::vector<int>& node_of,
           const std::function<void(prunex_comm_t, int)>& call) {
  run_c_ranks(node_of, [&](prunex_comm_t comm, int rank) {
    const prunex_stats_t before = stats_of(comm);
    call(comm, rank);
    const prunex_stats_t after = stats_of(comm);
    EXPECT_EQ(after.calls, before.calls + 1);
    const uint64_t sent = after.bytes_wire_sent - before.bytes_wire_sent;
    wire.total += sent;
    wire.received += after.bytes_wire_received - before.bytes_wire_received;
    wire.dense += after.bytes_dense - before.bytes_dense;
    uint64_t most = wire.most;
    while (sent > most && !wire.most.compare_exchange_weak(most, sent)) {
    }
  });
  EXPECT_EQ(wire.total, wire.received);
  EXPECT_LE(wire.dense, wire.total);
}

uint64_t allowed(uint64_t needed) { return needed + needed / 100 + 4096; }

TEST(DataWire, ABroadcastCrossesToEachNodeOnce) {
  for (const size_t n : {size_t{100}, size_t{10'000}, size_t{100'000}, size_t{3'000'000}}) {
    for (const int root : {0, 1, 4}) {
      Wire wire;
      count(wire, {0, 1, 2, 0, 1, 3}, [&](prunex_comm_t comm, int) {
        Bytes data(n);
        ASSERT_OK(prunex_broadcast(comm, data.data(), n, root, nullptr));
      });
      EXPECT_GE(wire.total, 3 * n);
      EXPECT_LE(wire.total, allowed(3 * n));
      EXPECT_EQ(wire.dense, 3 * n);
      if (n >= 100'000) {
        EXPECT_LE(wire.most, allowed(n)) << "no link carries it twice";
      }
    }
  }
}

TEST(DataWire, AnAllGatherSendsEachPartOnceToEachOtherNode) {
  for (const size_t n : {size_t{100}, size_t{10'000}, size_t{700'000}}) {
    Wire wire;
    count(wire, {0, 1, 2, 0, 1, 0}, [&](prunex_comm_t comm, int) {
      Bytes own(n), all(6 * n);
      ASSERT_OK(prunex_all_gather(comm, own.data(), all.data(), n, nullptr));
    });
    EXPECT_GE(wire.total, 2 * 6 * n);
    EXPECT_LE(wire.total, allowed(2 * 6 * n));
    EXPECT_LE(wire.most, allowed(2 * 3 * n));
    EXPECT_EQ(wire.dense, 2 * 6 * n);
  }
}

TEST(DataWire, AReduceScatterSendsHalfOfAnAllReduce) {
  for (const size_t n : {size_t{10}, size_t{3'000}, size_t{200'000}}) {
    Wire wire;
    count(wire, {0, 0, 1, 1, 2, 2}, [&](prunex_comm_t comm, int) {
      std::vector<float> send(6 * n, 1), mine(n);
      ASSERT_OK(prunex_reduce_scatter(comm, send.data(), mine.data(), n, PRUNEX_FLOAT32, PRUNEX_SUM,
                                      nullptr));
    });
    EXPECT_LE(wire.total, allowed(2 * 6 * 4 * n));
    EXPECT_LE(wire.most, allowed(4 * 4 * n));
  }
}

TEST(DataWire, OneNodeSendsNothing) {
  Wire wire;
  count(wire, {0, 0, 0}, [&](prunex_comm_t comm, int) {
    Bytes data(1'000'000);
    ASSERT_OK(prunex_broadcast(comm, data.data(), data.size(), 1, nullptr));
  });
  EXPECT_EQ(wire.total, 0u);
}

}  // namespace
}  // namespace prunex::test
