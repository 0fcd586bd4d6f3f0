// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks: any pair, by tag and in order, beside the collectives.
#include <algorithm>
#include <atomic>
#include <random>

#include "tests/api/api_world.h"

namespace prunex::test {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes content(int from, int to, size_t n, unsigned salt) {
  std::mt19937 random(salt * 10'000 + static_cast<unsigned>(from * 100 + to));
  Bytes out(n);
  for (uint8_t& b : out) {
    b = static_cast<uint8_t>(random());
  }
  return out;
}

prunex_call_t with(prunex_request_t* request) {
  prunex_call_t call = PRUNEX_CALL_INIT;
  call.request = request;
  return call;
}

class Messages : public ::testing::TestWithParam<std::vector<int>> {};

// Every rank with every other at once, all sizes.
TEST_P(Messages, EverybodyToEverybody) {
  const int ranks = static_cast<int>(GetParam().size());
  run_c_ranks(GetParam(), [&](prunex_comm_t comm, int rank) {
    unsigned salt = 0;
    for (const size_t n : {size_t{0}, size_t{1}, size_t{16 * 1024}, size_t{16 * 1024 + 1},
                           size_t{300'000}, size_t{2'000'003}}) {
      ++salt;
      std::vector<Bytes> in(static_cast<size_t>(ranks)), out(in.size());
      std::vector<prunex_request_t> requests;
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) {
          continue;
        }
        const auto p = static_cast<size_t>(peer);
        in[p] = Bytes(n, 0xEE);
        out[p] = content(rank, peer, n, salt);
        for (const bool sends : {true, false}) {
          prunex_request_t request = 0;
          const prunex_call_t call = with(&request);
          ASSERT_OK(sends ? prunex_send(comm, out[p].data(), n, peer, 5, &call)
                          : prunex_recv(comm, in[p].data(), n, peer, 5, &call));
          requests.push_back(request);
        }
      }
      for (const prunex_request_t request : requests) {
        ASSERT_OK(prunex_request_wait(request));
      }
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer != rank) {
          ASSERT_TRUE(in[static_cast<size_t>(peer)] == content(peer, rank, n, salt))
              << n << " from " << peer;
        }
      }
    }
  });
}

// Not through a third rank, and not only when that one does something.
TEST_P(Messages, TheOthersMayDoNothing) {
  const int last = static_cast<int>(GetParam().size()) - 1;
  std::atomic<bool> over{false};
  run_c_ranks(GetParam(), [&](prunex_comm_t comm, int rank) {
    for (const size_t n : {size_t{10}, size_t{1'000'000}}) {
      Bytes data = content(last, 0, n, 1);
      if (rank == last) {
        ASSERT_OK(prunex_send(comm, data.data(), n, 0, -3, nullptr));
      } else if (rank == 0) {
        Bytes in(n);
        ASSERT_OK(prunex_recv(comm, in.data(), n, last, -3, nullptr));
        ASSERT_TRUE(in == data);
        over = n > 10;
      }
    }
    while (!over) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

// Receives that wait do not hold up collectives, blocking or not, and the other way round.
TEST_P(Messages, BesideCollectives) {
  const int ranks = static_cast<int>(GetParam().size());
  run_c_ranks(GetParam(), [&](prunex_comm_t comm, int rank) {
    for (const size_t n : {size_t{100}, size_t{600'000}}) {
      const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
      Bytes in(n), out = content(rank, to, n, 3);
      prunex_request_t got = 0, summed = 0, sent = 0;
      const prunex_call_t recv = with(&got), add = with(&summed), send = with(&sent);
      ASSERT_OK(prunex_recv(comm, in.data(), n, from, 1, &recv));
      std::vector<float> a(400'000, 1), b(1000, 2);
      ASSERT_OK(sum(comm, b, b));  // while the receive waits
      // Rank 0 comes to the collective only after its message has gone through, which the others'
      // threads must move from inside the collective.
      if (rank == 0) {
        ASSERT_OK(prunex_send(comm, out.data(), n, to, 1, nullptr));
      }
      ASSERT_OK(sum(comm, a, a, 0, &add));
      if (rank != 0) {
        ASSERT_OK(prunex_send(comm, out.data(), n, to, 1, &send));
        ASSERT_OK(prunex_request_wait(sent));
      }
      ASSERT_OK(prunex_request_wait(got));
      ASSERT_OK(prunex_request_wait(summed));
      EXPECT_TRUE(in == content(from, rank, n, 3));
      EXPECT_EQ(a, std::vector<float>(400'000, static_cast<float>(ranks)));
    }
  });
}

TEST_P(Messages, RandomTagsAndSizes) {
  const int ranks = static_cast<int>(GetParam().size());
  constexpr int kMessages = 60;
  run_c_ranks(GetParam(), [&](prunex_comm_t comm, int rank) {
    // Both ends draw the same list; the receiver posts its receives shuffled, each tag in order.
    struct One {
      int tag;
      size_t n;
    };
    const auto list = [&](int from, int to) {
      std::mt19937 draw(static_cast<unsigned>(from * 31 + to));
      std::vector<One> out;
      for (int i = 0; i < kMessages; ++i) {
        const int tag = static_cast<int>(draw() % 4);
        out.push_back({tag, draw() % (size_t{1} << (draw() % 18))});
      }
      return out;
    };
    std::vector<Bytes> keep;
    keep.reserve(static_cast<size_t>(2 * kMessages * ranks));
    std::vector<prunex_request_t> requests;
    std::vector<std::pair<size_t, Bytes>> wanted;
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) {
        continue;
      }
      const auto out = list(rank, peer);
      for (size_t i = 0; i < out.size(); ++i) {
        keep.push_back(content(rank, peer, out[i].n, static_cast<unsigned>(i)));
        requests.push_back(0);
        const prunex_call_t call = with(&requests.back());
        ASSERT_OK(prunex_send(comm, keep.back().data(), out[i].n, peer, out[i].tag, &call));
      }
      const auto in = list(peer, rank);
      for (int tag = 3; tag >= 0; --tag) {
        for (size_t i = 0; i < in.size(); ++i) {
          if (in[i].tag == tag) {
            keep.emplace_back(in[i].n, uint8_t{0xEE});
            wanted.emplace_back(keep.size() - 1,
                                content(peer, rank, in[i].n, static_cast<unsigned>(i)));
            requests.push_back(0);
            const prunex_call_t call = with(&requests.back());
            ASSERT_OK(prunex_recv(comm, keep.back().data(), in[i].n, peer, tag, &call));
          }
        }
      }
    }
    for (const prunex_request_t request : requests) {
      ASSERT_OK(prunex_request_wait(request));
    }
    for (const auto& [at, want] : wanted) {
      ASSERT_TRUE(keep[at] == want);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Messages,
                         ::testing::Values(std::vector<int>{0, 0}, std::vector<int>{0, 1},
                                           std::vector<int>{0, 0, 1, 1},
                                           std::vector<int>{0, 1, 2, 0, 0}),
                         [](const auto& world) { return "world" + std::to_string(world.index); });

TEST(MessageOrder, SmallSendsDoNotWaitForTheReceive) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    Bytes out(16 * 1024, static_cast<uint8_t>(rank)), in(16 * 1024);
    for (int i = 0; i < 10; ++i) {  // both send first
      ASSERT_OK(prunex_send(comm, out.data(), out.size(), 1 - rank, i, nullptr));
    }
    for (int i = 9; i >= 0; --i) {
      ASSERT_OK(prunex_recv(comm, in.data(), in.size(), 1 - rank, i, nullptr));
      ASSERT_EQ(in, Bytes(16 * 1024, static_cast<uint8_t>(1 - rank)));
    }
  });
}

TEST(MessageOrder, WhatLiesUntakenIsBounded) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    constexpr int kMany = 5000;
    if (rank == 0) {
      int value = 0;
      std::vector<int> values(kMany);
      std::vector<prunex_request_t> requests(kMany);
      for (int& v : values) {
        v = value;
        const prunex_call_t call = with(&requests[static_cast<size_t>(value++)]);
        ASSERT_OK(prunex_send(comm, &v, sizeof v, 1, 0, &call));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      int done = 1;
      EXPECT_OK(prunex_request_test(requests.back(), &done));
      EXPECT_EQ(done, 0) << "the receiver holds all of them";
      ASSERT_OK(prunex_send(comm, &value, sizeof value, 1, 1, nullptr));
      for (const prunex_request_t r : requests) {
        ASSERT_OK(prunex_request_wait(r));
      }
    } else {
      int got = -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      prunex_request_t later = 0;
      int go = 0;
      const prunex_call_t call = with(&later);
      ASSERT_OK(prunex_recv(comm, &go, sizeof go, 0, 1, &call));
      for (int i = 0; i < kMany; ++i) {
        ASSERT_OK(prunex_recv(comm, &got, sizeof got, 0, 0, nullptr));
        ASSERT_EQ(got, i);
      }
      ASSERT_OK(prunex_request_wait(later));
    }
  });
}

TEST(MessageSize, AnotherSizeLosesNothing) {
  for (const size_t n : {size_t{100}, size_t{100'000}}) {
    run_c_ranks({0, 1}, [&](prunex_comm_t comm, int rank) {
      const Bytes want = content(0, 1, n, 9);
      if (rank == 0) {
        ASSERT_OK(prunex_send(comm, want.data(), n, 1, 4, nullptr));
      } else {
        Bytes in(n + 1, 0xEE);
        const std::string size = std::to_string(n);
        EXPECT_FAILS(prunex_recv(comm, in.data(), n + 1, 0, 4, nullptr), PRUNEX_ERROR_MISMATCH,
                     size + " bytes with tag 4");
        EXPECT_FAILS(prunex_recv(comm, in.data(), n - 1, 0, 4, nullptr), PRUNEX_ERROR_MISMATCH,
                     size + " bytes with tag 4");
        EXPECT_EQ(in, Bytes(n + 1, 0xEE));
        in.resize(n);
        ASSERT_OK(prunex_recv(comm, in.data(), n, 0, 4, nullptr));
        EXPECT_EQ(in, want);
      }
      ASSERT_OK(prunex_barrier(comm));
    });
  }
}

TEST(MessageArguments, Refusals) {
  run_c_ranks({0, 0}, [](prunex_comm_t comm, int rank) {
    Bytes a(10);
    prunex_call_t call = PRUNEX_CALL_INIT;
    call.scope = PRUNEX_SCOPE_NODE;
    EXPECT_FAILS(prunex_send(comm, a.data(), 1, 1 - rank, 0, &call), PRUNEX_ERROR_UNSUPPORTED,
                 "prunex_send over scope NODE");
    EXPECT_FAILS(prunex_recv(comm, a.data(), 1, 1 - rank, 0, &call), PRUNEX_ERROR_UNSUPPORTED,
                 "prunex_recv over scope NODE");
    EXPECT_FAILS(prunex_send(comm, a.data(), 1, 2, 0, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT,
                 "peer 2");
    EXPECT_FAILS(prunex_recv(comm, a.data(), 1, -1, 0, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT,
                 "peer -1");
    EXPECT_FAILS(prunex_recv(comm, a.data(), 1, rank, 0, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT,
                 "this rank itself");
    EXPECT_FAILS(prunex_send(comm, nullptr, 1, 1 - rank, 0, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT,
                 "buffer is NULL");
  });
}

TEST(MessageStatistics, CountWhatCrossesNodes) {
  run_c_ranks({0, 0, 1}, [](prunex_comm_t comm, int rank) {
    constexpr size_t kSize = 500'000;
    Bytes data(kSize);
    if (rank == 0) {
      ASSERT_OK(prunex_send(comm, data.data(), kSize, 1, 0, nullptr));
      prunex_stats_t s = stats_of(comm);
      EXPECT_EQ(s.calls, 1u);
      EXPECT_EQ(s.bytes_logical, kSize);
      EXPECT_EQ(s.bytes_wire_sent, 0u);  // inside the node
      ASSERT_OK(prunex_send(comm, data.data(), kSize, 2, 0, nullptr));
      s = stats_of(comm);
      EXPECT_GE(s.bytes_wire_sent, kSize);
      EXPECT_LE(s.bytes_wire_sent, kSize + 4096);
      EXPECT_EQ(s.bytes_dense, kSize);
    } else {
      ASSERT_OK(prunex_recv(comm, data.data(), kSize, 0, 0, nullptr));
      const prunex_stats_t s = stats_of(comm);
      EXPECT_EQ(s.calls_dense, 1u);
      EXPECT_EQ(s.bytes_wire_received >= kSize, rank == 2);
    }
  });
}

// A peer that is done and closes at once: what it sent is there.
TEST(MessageClose, WhatWasSentBeforeItCanBeReceived) {
  for (int round = 0; round < 10; ++round) {
    std::atomic<bool> closed{false};
    run_c_ranks({0, 1}, [&](prunex_comm_t comm, int rank) {
      int value = 42;
      if (rank == 0) {
        for (int i = 0; i < 20; ++i) {
          ASSERT_OK(prunex_send(comm, &value, sizeof value, 1, 0, nullptr));
        }
        ASSERT_OK(prunex_barrier(comm));
        closed = true;
      } else {
        ASSERT_OK(prunex_barrier(comm));
        while (!closed) {
          std::this_thread::yield();
        }
        for (int i = 0; i < 20; ++i) {
          value = 0;
          ASSERT_OK(prunex_recv(comm, &value, sizeof value, 0, 0, nullptr));
          ASSERT_EQ(value, 42);
        }
      }
    });
  }
}

}  // namespace
}  // namespace prunex::test
