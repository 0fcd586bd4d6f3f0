// SPDX-License-Identifier: Apache-2.0
// Rule 1 where several parameters share a buffer, and where scopes differ.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/collective/cluster.h"
#include "tests/collective/float_call.h"

namespace prunex::test {
namespace {

using collective::Comm;
using collective::Contract;
using collective::Scope;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint64_t kCount = 30'000;  // of each piece

std::shared_ptr<const CompiledMask> quarter() {
  static const auto mask = mask_of(kCount, [](uint64_t i) { return i % 4 == 0; });
  return mask;
}

bool dropped(uint64_t i) { return i % 4 != 0; }

// Three masked parameters and a dense one, unaligned: a bucket.
MaskedPtr bucket() {
  return layout_of({{3, nullptr, Contract::lossless, "bias"},
                    {kCount, quarter(), Contract::lossless, "a.weight"},
                    {kCount, quarter(), Contract::project, "b.weight"},
                    {kCount, quarter(), Contract::sampled, "c.weight"}});
}

enum Which : uint64_t { kA = 3, kB = 3 + kCount, kC = 3 + 2 * kCount, kAll = 3 + 3 * kCount };

std::vector<float> bucket_data(float junk_in_b) {
  std::vector<float> data(kAll, 1);
  for (uint64_t i = 0; i < kCount; ++i) {
    if (dropped(i)) {
      data[kA + i] = data[kC + i] = 0;
      data[kB + i] = junk_in_b;
    }
  }
  return data;
}

TEST(Bucket, OnlyTheOffenderGoesDense) {
  const LogCapture log;
  run_ranks({0, 0, 1}, [](Comm& comm, int rank) {
    uint64_t sent = 0;
    for (int round = 0; round < 3; ++round) {
      std::vector<float> in = bucket_data(kNan), out(kAll, 7);
      if (rank == 2) {
        in[kA + 7] = 5;
      }
      const uint64_t before = comm.stats().bytes_sent;
      must(comm, float_call(in, out, bucket()));
      sent = comm.stats().bytes_sent - before;
      for (uint64_t i = 0; i < kAll; ++i) {
        const bool keeps = i < kA || !dropped((i - kA) % kCount);
        const float want = i == kA + 7 ? 5 : keeps ? 3 : 0;
        ASSERT_EQ(bits_of(out[i]), bits_of(want)) << "round " << round << " element " << i;
      }
    }
    EXPECT_EQ(comm.stats().violations, 1u);
    // a.weight whole, a quarter of the others; two nodes send each other everything once.
    const uint64_t want =
        comm.world().nodes[comm.rank() == 2 ? 1 : 0].leaders[0].rank == comm.rank()
            ? 4 * (3 + kCount + kCount / 2)
            : 0;
    EXPECT_GE(sent, want);
    EXPECT_LE(sent, want + 4096);
  });
  const auto warnings = log.warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("'a.weight'"), std::string::npos) << warnings[0];
}

// What project drops is counted once per call, also when the call has to be made again.
TEST(Bucket, ProjectedNonZerosAreCountedOncePerCall) {
  run_ranks({0, 1}, [](Comm& comm, int rank) {
    std::vector<float> in = bucket_data(2), out(kAll);
    in[kA + 1] = 5;
    must(comm, float_call(in, out, bucket()));
    EXPECT_EQ(comm.stats().violations, 1u);
    EXPECT_EQ(comm.stats().dropped_nonzero, kCount / 4 * 3) << "rank " << rank;
  });
}

TEST(Bucket, OneOffenderOfTwoIsWarnedAboutByName) {
  const LogCapture log;
  run_ranks({0, 1}, [](Comm& comm, int rank) {
    std::vector<float> in = bucket_data(0), out(kAll);
    in[rank == 0 ? kA + 1 : kC + 2] = 5;
    must(comm, float_call(in, out, bucket()));
    EXPECT_EQ(out[kA + 1], 5);
    EXPECT_EQ(out[kC + 2], 5);
    EXPECT_EQ(comm.stats().violations, 1u);
  });
  const auto warnings = log.warnings();
  ASSERT_EQ(warnings.size(), 2u);  // one per parameter
  EXPECT_NE((warnings[0] + warnings[1]).find("'a.weight'"), std::string::npos);
  EXPECT_NE((warnings[0] + warnings[1]).find("'c.weight'"), std::string::npos);
}

TEST(Leaders, OtherRanksBuffersAreNotLookedAt) {
  const LogCapture log;
  run_ranks({0, 0, 1, 1}, [](Comm& comm, int rank) {
    const MaskedPtr masked = striped(kCount, 1, 4, Contract::lossless);
    std::vector<float> in(kCount, rank % 2 == 0 ? 0.0f : kNan), out(kCount, 7);
    for (uint64_t i = 0; i < kCount && rank % 2 == 0; i += 4) {
      in[i] = 2;
    }
    collective::CallSpec spec = float_call(in, out, masked, Op::avg, Scope::leaders);
    must(comm, spec);
    for (uint64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(bits_of(out[i]), bits_of(dropped(i) ? 0.0f : 2.0f));
    }
    if (rank % 2 == 1) {
      spec.send = nullptr;
      must(comm, spec);
    } else {
      must(comm, spec);
    }
    EXPECT_EQ(out[0], 2);
    EXPECT_EQ(comm.stats().violations, 0u);
  });
  EXPECT_TRUE(log.warnings().empty());
}

// Ranks of one node find a broken promise among themselves; calls of the whole world go on as if
// nothing had been, on the other nodes as well.
TEST(Scopes, AnOffenceInsideOneNodeStaysThere) {
  const LogCapture log;
  run_ranks({0, 0, 1, 1}, [](Comm& comm, int rank) {
    const MaskedPtr masked = striped(kCount, 1, 4, Contract::lossless);
    std::vector<float> in(kCount, 0), out(kCount, 7);
    in[1] = rank == 1 ? 5.0f : 0.0f;
    must(comm, float_call(in, out, masked, Op::sum, Scope::node));
    EXPECT_EQ(out[1], rank < 2 ? 5.0f : 0.0f);
    in[1] = 0;
    for (int round = 0; round < 2; ++round) {
      in[0] = 1;
      must(comm, float_call(in, out, masked));
      EXPECT_EQ(out[0], 4);
    }
    EXPECT_EQ(comm.stats().mismatches, 0u);
    // What this node has learned holds for its own calls.
    must(comm, float_call(in, out, masked, Op::sum, Scope::node));
    EXPECT_EQ(comm.stats().violations, rank < 2 ? 1u : 0u);
  });
  EXPECT_EQ(log.warnings().size(), 1u);
}

// Nodes may hold different masks in calls among themselves.
TEST(Scopes, NodesMayDifferInTheirOwnCalls) {
  run_ranks({0, 0, 1}, [](Comm& comm, int rank) {
    const MaskedPtr mine = striped(kCount, rank < 2 ? 1 : 2, 4, Contract::sampled);
    const MaskedPtr common = striped(kCount, 1, 4, Contract::sampled);
    std::vector<float> data(kCount, 0);
    for (int call = 0; call < 7; ++call) {
      must(comm, float_call(data, data, mine, Op::sum, Scope::node));
    }
    for (int call = 0; call < 12; ++call) {
      must(comm, float_call(data, data, common));
    }
    EXPECT_EQ(comm.stats().mismatches, 0u);
  });
}

}  // namespace
}  // namespace prunex::test
