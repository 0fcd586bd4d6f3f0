// SPDX-License-Identifier: Apache-2.0
// Collectives that move data, through the C API, against plain references.
#include <algorithm>
#include <atomic>
#include <random>

#include "plugin/base/result.h"
#include "tests/api/api_world.h"

namespace prunex::test {
namespace {

using Bytes = std::vector<uint8_t>;

// What rank r gives as its contribution `salt`.
Bytes bytes_of(int rank, size_t n, unsigned salt) {
  std::mt19937 random(salt * 1000 + static_cast<unsigned>(rank));
  Bytes out(n);
  for (uint8_t& b : out) {
    b = static_cast<uint8_t>(random());
  }
  return out;
}

size_t size_of_world(const std::vector<int>& node_of) { return node_of.size(); }

class Data : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(Data, BroadcastFromEveryRoot) {
  const size_t ranks = size_of_world(GetParam());
  run_c_ranks(GetParam(), [&](prunex_comm_t comm, int rank) {
    unsigned salt = 0;
    for (const size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{40'000}, size_t{3'000'001}}) {
      for (int root = 0; root < static_cast<int>(ranks); ++root) {
        const Bytes want = bytes_of(root, n, ++salt);
        Bytes data = rank == root ? want : Bytes(n, 0xEE);
        ASSERT_OK(prunex_broadcast(comm, data.data(), n, root, nullptr));
        ASSERT_TRUE(data == want) << n << " bytes from " << root;
      }
    }
  });
}

TEST_P(Data, AllGatherInRankOrder) {
  const size_t ranks = size_of_world(GetParam());
  run_c_ranks(GetParam(), [&](prunex_comm_t comm, int rank) {
    unsigned salt = 0;
    for (const size_t n : {size_t{0}, size_t{1}, size_t{777}, size_t{20'000}, size_t{900'001}}) {
      Bytes want;
      ++salt;
      for (size_t r = 0; r < ranks; ++r) {
        const Bytes part = bytes_of(static_cast<int>(r), n, salt);
        want.insert(want.end(), part.begin(), part.end());
      }
      const Bytes own = bytes_of(rank, n, salt);
      Bytes out(n * ranks, 0xEE);
      ASSERT_OK(prunex_all_gather(comm, own.data(), out.data(), n, nullptr));
      ASSERT_TRUE(out == want) << n;
      Bytes in_place(n * ranks, 0xEE);
      uint8_t* at = in_place.data() + static_cast<size_t>(rank) * n;
      std::copy(own.begin(), own.end(), at);
      ASSERT_OK(prunex_all_gather(comm, at, in_place.data(), n, nullptr));
      ASSERT_TRUE(in_place == want) << n << " in place";
    }
  });
}

size_t bytes_of_type(prunex_dtype_t type) {
  constexpr size_t kBytes[] = {4, 8, 2, 2, 1, 1, 4, 8, 4, 8};
  return kBytes[static_cast<size_t>(type)];
}

// Any bits are good data: what counts is that they equal the slice of the all-reduce.
TEST_P(Data, ReduceScatterIsASliceOfTheAllReduce) {
  const size_t ranks = size_of_world(GetParam());
  run_c_ranks(GetParam(), [&](prunex_comm_t comm, int rank) {
    unsigned salt = 0;
    for (const size_t count : {size_t{0}, size_t{1}, size_t{100}, size_t{6000}, size_t{200'003}}) {
      for (int type = PRUNEX_FLOAT32; type <= PRUNEX_UINT64; ++type) {
        const auto dtype = static_cast<prunex_dtype_t>(type);
        // Every type with every op in small, some of each in large.
        for (int op = PRUNEX_SUM; op <= PRUNEX_PROD; ++op) {
          if (count > 10'000 && (op + type) % 5 != 0) {
            continue;
          }
          const size_t part = count * bytes_of_type(dtype);
          Bytes send = bytes_of(rank, part * ranks, ++salt);
          const Bytes before = send;
          Bytes all(part * ranks), mine(part, 0xEE);
          const auto o = static_cast<prunex_op_t>(op);
          ASSERT_OK(prunex_all_reduce(comm, send.data(), all.data(), count * ranks, dtype, o, 0,
                                      nullptr));
          ASSERT_OK(
              prunex_reduce_scatter(comm, send.data(), mine.data(), count, dtype, o, nullptr));
          ASSERT_TRUE(send == before);
          const size_t at = static_cast<size_t>(rank) * part;
          ASSERT_TRUE(std::equal(mine.begin(), mine.end(), all.begin() + static_cast<long>(at)))
              << count << " of type " << type << " op " << op;
          ASSERT_OK(
              prunex_reduce_scatter(comm, send.data(), send.data() + at, count, dtype, o, nullptr));
          Bytes want = before;
          std::copy(mine.begin(), mine.end(), want.begin() + static_cast<long>(at));
          ASSERT_TRUE(send == want) << "in place";
        }
      }
    }
  });
}

TEST_P(Data, NobodyLeavesABarrierBeforeAllHaveCome) {
  const size_t ranks = size_of_world(GetParam());
  std::atomic<size_t> came{0};
  run_c_ranks(GetParam(), [&](prunex_comm_t comm, int rank) {
    for (size_t round = 1; round <= 20; ++round) {
      if (static_cast<size_t>(rank) == round % ranks) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      ++came;
      ASSERT_OK(prunex_barrier(comm));
      ASSERT_GE(came.load(), round * ranks);
    }
  });
}

// Requests of all kinds in flight at once, with blocking calls among them, waited for backwards.
TEST_P(Data, CallsOfAllKindsKeepTheirOrder) {
  const size_t ranks = size_of_world(GetParam());
  run_c_ranks(GetParam(), [&](prunex_comm_t comm, int rank) {
    constexpr size_t kCount = 50'000;
    for (int round = 0; round < 3; ++round) {
      const int root = round % static_cast<int>(ranks);
      prunex_request_t requests[4] = {};
      prunex_call_t calls[4] = {PRUNEX_CALL_INIT, PRUNEX_CALL_INIT, PRUNEX_CALL_INIT,
                                PRUNEX_CALL_INIT};
      for (size_t i = 0; i < 4; ++i) {
        calls[i].request = &requests[i];
      }
      std::vector<float> a(kCount * ranks, 1), b(kCount, rank == root ? 7.0f : 0),
          c(kCount * ranks), d(kCount), mine(kCount, static_cast<float>(rank)),
          sums(kCount * ranks, 2), small(10, 3);
      ASSERT_OK(prunex_all_reduce(comm, a.data(), a.data(), a.size(), PRUNEX_FLOAT32, PRUNEX_SUM, 0,
                                  &calls[0]));
      ASSERT_OK(prunex_broadcast(comm, b.data(), 4 * kCount, root, &calls[1]));
      ASSERT_OK(prunex_all_gather(comm, mine.data(), c.data(), 4 * kCount, &calls[2]));
      ASSERT_OK(sum(comm, small, small));
      ASSERT_OK(prunex_reduce_scatter(comm, sums.data(), d.data(), kCount, PRUNEX_FLOAT32,
                                      PRUNEX_SUM, &calls[3]));
      ASSERT_OK(prunex_barrier(comm));
      for (int i = 3; i >= 0; --i) {
        ASSERT_OK(prunex_request_wait(requests[i]));
      }
      const auto n = static_cast<float>(ranks);
      EXPECT_EQ(a, std::vector<float>(kCount * ranks, n));
      EXPECT_EQ(b, std::vector<float>(kCount, 7));
      EXPECT_EQ(d, std::vector<float>(kCount, 2 * n));
      EXPECT_EQ(small, std::vector<float>(10, 3 * n));
      for (size_t i = 0; i < c.size(); ++i) {
        ASSERT_EQ(c[i], static_cast<float>(i / kCount)) << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Data,
                         ::testing::Values(std::vector<int>{0}, std::vector<int>{0, 0, 0},
                                           std::vector<int>{0, 1}, std::vector<int>{0, 0, 0, 1},
                                           std::vector<int>{1, 0, 2, 0, 1},
                                           std::vector<int>{0, 1, 2, 3}),
                         [](const auto& world) {
                           std::string name = "nodes";
                           for (const int n : world.param) {
                             name += strf("_%d", n);
                           }
                           return name;
                         });

// Drawn worlds, calls and sizes; every rank draws the same.
TEST(DataRandom, CallsOnRandomWorlds) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 draw(seed);
    std::vector<int> node_of(2 + draw() % 6);
    for (int& n : node_of) {
      n = static_cast<int>(draw() % 4);
    }
    run_c_ranks(node_of, [&](prunex_comm_t comm, int rank) {
      std::mt19937 same(seed * 77);
      const size_t ranks = node_of.size();
      for (unsigned call = 0; call < 25; ++call) {
        const size_t n = same() % (size_t{1} << (same() % 20));
        const int root = static_cast<int>(same() % ranks);
        const Bytes own = bytes_of(rank, n, seed * 100 + call);
        if (same() % 2 == 0) {
          Bytes data = own;
          ASSERT_OK(prunex_broadcast(comm, data.data(), n, root, nullptr));
          ASSERT_TRUE(data == bytes_of(root, n, seed * 100 + call)) << n;
        } else {
          Bytes out(n * ranks);
          ASSERT_OK(prunex_all_gather(comm, own.data(), out.data(), n, nullptr));
          for (size_t r = 0; r < ranks; ++r) {
            const Bytes part = bytes_of(static_cast<int>(r), n, seed * 100 + call);
            ASSERT_TRUE(std::equal(part.begin(), part.end(),
                                   out.begin() + static_cast<std::ptrdiff_t>(r * n)))
                << n << " of rank " << r;
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace prunex::test
