// SPDX-License-Identifier: Apache-2.0
// Public reports about sparse and hierarchical all-reduces, as tests of what is right.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/collective/cluster.h"
#include "tests/collective/float_call.h"
#include "tests/collective/random_call.h"

namespace prunex::test {
namespace {

using collective::Comm;
using collective::Contract;
using collective::Scope;

TEST(Reports, E2_counts_that_differ_are_an_error_on_both_within_ten_seconds) {
  ClusterOptions options;
  options.timeout_s = 10;
  run_ranks(
      {0, 1},
      [](Comm& comm, int rank) {
        std::vector<float> data(rank == 0 ? 409'600 : 409'598, 1);
        const auto result = comm.all_reduce(float_call(data, data));
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code, Code::mismatch);
        EXPECT_NE(result.error().text.find("409600"), std::string::npos) << result.error().text;
        EXPECT_NE(result.error().text.find("409598"), std::string::npos) << result.error().text;
      },
      options);
}

// Nothing of one call is taken for a part of another, however the ranks drift apart.
void back_to_back(const std::vector<int>& node_of, int calls, bool requests) {
  constexpr uint64_t kCount = 2000;
  std::vector<MaskedPtr> masks;
  for (uint64_t keep = 1; keep <= 5; ++keep) {
    masks.push_back(striped(kCount, keep, 7, Contract::lossless));
    masks.push_back(striped(kCount * keep, keep, 9, Contract::project));
  }
  masks.push_back(nullptr);
  run_ranks(node_of, [&](Comm& comm, int rank) {
    Random drift(static_cast<uint64_t>(rank)), common(3);
    std::vector<float> data(kCount * 5);
    for (int call = 0; call < calls; ++call) {
      const size_t which = common() % masks.size();
      const uint64_t count = masks[which] != nullptr ? masks[which]->layout.count : 1 + which % 40;
      const uint64_t keep = masks[which] != nullptr ? which / 2 + 1 : 1;
      const uint64_t of = masks[which] == nullptr ? 1 : which % 2 == 0 ? 7 : 9;
      data.assign(count, 0);
      for (uint64_t i = 0; i < count; ++i) {
        data[i] = i % of < keep ? static_cast<float>((call + rank) % 100) : 0;
      }
      const auto spec = float_call(data, data, masks[which]);
      const auto result = requests ? comm.submit(spec)->wait() : comm.all_reduce(spec);
      ASSERT_TRUE(result) << result.error().text;
      float want = 0;
      for (size_t r = 0; r < node_of.size(); ++r) {
        want += static_cast<float>((call + static_cast<int>(r)) % 100);
      }
      for (uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(data[i], i % of < keep ? want : 0) << "call " << call << " element " << i;
      }
      if (drift() % 64 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(drift() % 2000));
      }
    }
    EXPECT_EQ(comm.stats().calls, static_cast<uint64_t>(calls));
  });
}

TEST(Reports, E3_thousand_calls_with_changing_masks_and_drifting_ranks) {
  back_to_back({0, 1}, 1000, false);
  back_to_back({0, 0, 1}, 300, true);
}

TEST(Reports, E5_in_place_and_out_of_place) {
  for (const auto& node_of : {std::vector<int>{0, 0, 0}, {0, 1, 1}, {0, 1, 2}}) {
    run_ranks(node_of, [](Comm& comm, int rank) {
      for (const uint64_t count : {uint64_t{1}, uint64_t{1001}, uint64_t{150'001}}) {
        for (const MaskedPtr& masked : {MaskedPtr(), striped(count, 1, 3, Contract::lossless)}) {
          const uint64_t of = masked ? 3 : 1;
          std::vector<float> in(count), out(count, 9);
          for (uint64_t i = 0; i < count; ++i) {
            in[i] = i % of == 0 ? static_cast<float>(rank + 1) : 0;
          }
          const std::vector<float> before = in;
          must(comm, float_call(in, out, masked));
          EXPECT_EQ(in, before) << "the source changed";
          must(comm, float_call(in, in, masked));
          EXPECT_EQ(in, out);
          EXPECT_EQ(out[0], 6);
        }
      }
    });
  }
}

// dtype x op x layout x density, n = 1000, world [1,2]. What cannot be compacted is dense, and is
// counted as dense.
TEST(Reports, E22_matrix_of_types_operations_layouts_and_densities) {
  Random random(22);
  std::vector<RandomCall> calls;
  std::vector<bool> compact;
  for (int type = 0; type < kNumDTypes; ++type) {
    for (int op = 0; op < kNumOps; ++op) {
      for (const double density : {0.0, 0.3, 0.5, 1.0}) {
        for (const Contract contract : {Contract::lossless, Contract::project}) {
          RandomCall call;
          call.type = static_cast<DType>(type);
          call.op = static_cast<Op>(op);
          call.count = 1000;
          call.in_place = random() % 2 == 0;
          call.layout = random_mask(random, call.count, density, contract);
          fill_inputs(call, random, 3);
          const bool additive = call.op == Op::sum || call.op == Op::avg;
          compact.push_back(additive && density < 1 && size_of(call.type) > 2);
          calls.push_back(std::move(call));
        }
      }
    }
  }
  run_ranks({0, 1, 1}, [&](Comm& comm, int) {
    for (size_t c = 0; c < calls.size(); ++c) {
      const auto before = comm.stats();
      uint64_t digest = 0;
      ASSERT_EQ(perform(comm, calls[c], &digest), "") << calls[c].text();
      const auto after = comm.stats();
      if (compact[c]) {
        EXPECT_EQ(after.calls_compact, before.calls_compact + 1) << calls[c].text();
      } else if (calls[c].layout.masked->contracts[0] == Contract::lossless) {
        EXPECT_EQ(after.calls_dense, before.calls_dense + 1) << calls[c].text();
      }
    }
    EXPECT_EQ(comm.stats().violations, 0u);
  });
}

// Several requests under way, the mask changing with each: every call keeps the one it began with.
TEST(Requests, EachKeepsItsMask) {
  constexpr uint64_t kCount = 60'000;
  run_ranks({0, 0, 1}, [](Comm& comm, int) {
    std::vector<std::vector<float>> data(8, std::vector<float>(kCount));
    std::vector<std::shared_ptr<collective::Request>> requests;
    for (uint64_t r = 0; r < data.size(); ++r) {
      for (uint64_t i = 0; i < kCount; ++i) {
        data[r][i] = i % 10 < r + 1 ? 1 : 0;
      }
      requests.push_back(comm.submit(
          float_call(data[r], data[r], striped(kCount, r + 1, 10, Contract::lossless))));
    }
    for (uint64_t r = data.size(); r-- > 0;) {
      ASSERT_TRUE(requests[r]->wait());
      EXPECT_TRUE(requests[r]->done());
      for (uint64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(data[r][i], i % 10 < r + 1 ? 3 : 0) << "request " << r << " element " << i;
      }
    }
    EXPECT_EQ(comm.stats().calls_compact, data.size());
  });
}

// A blocking call waits its turn behind requests.
TEST(Requests, OrderIsThatOfTheCalls) {
  run_ranks({0, 1}, [](Comm& comm, int rank) {
    std::vector<float> a(30'000, 1), b(10, static_cast<float>(rank));
    auto request = comm.submit(float_call(a, a));
    must(comm, float_call(b, b));
    ASSERT_TRUE(request->wait());
    EXPECT_EQ(a[29'999], 2);
    EXPECT_EQ(b[9], 1);
  });
}

// R14: several communicators in one process know nothing of each other.
TEST(Communicators, TwoInOneProcessAtOnce) {
  run_ranks({0, 0, 1}, [](Comm& first, int rank) {
    static MemoryStore store;
    collective::CommOptions o;
    o.config.rank = 2 - rank;  // another order, other nodes
    o.config.size = 3;
    o.config.node_id = rank == 1 ? "x" : "y";
    o.config.socket_ifname = "lo";
    o.config.timeout_s = 60;
    o.name = "second";
    o.store = store.callbacks();
    auto second = Comm::create(o);
    ASSERT_TRUE(second) << second.error().text;
    for (int round = 0; round < 5; ++round) {
      std::vector<float> a(50'000, 1), b(20'000, static_cast<float>(rank));
      const MaskedPtr masked = striped(b.size(), 1, 2, Contract::project);
      auto one = first.submit(float_call(a, a));
      auto two = (*second)->submit(float_call(b, b, masked));
      ASSERT_TRUE(two->wait());
      ASSERT_TRUE(one->wait());
      EXPECT_EQ(a, std::vector<float>(a.size(), 3));
      EXPECT_EQ(b[0], 3);
      EXPECT_EQ(b[1], 0);
    }
    EXPECT_EQ(first.stats().calls, 5u);
    EXPECT_EQ((*second)->stats().calls, 5u);
  });
}

}  // namespace
}  // namespace prunex::test
