// SPDX-License-Identifier: Apache-2.0
// Rule 1: what lossless, project and sampled masks promise, and what happens to values that should
// not be there.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plugin/collective/recovery_records.h"
#include "tests/collective/cluster.h"
#include "tests/collective/float_call.h"

namespace prunex::test {
namespace {

using collective::Comm;
using collective::Contract;
using collective::Scope;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();
const std::vector<int> kTwoByTwo = {0, 0, 1, 1};

// Chunks enough that results of the first could be written before the last was looked at.
constexpr uint64_t kMany = 400'003;

bool kept(uint64_t i) { return i % 5 < 2; }

MaskedPtr fifth(Contract contract, uint64_t count = kMany) {
  return striped(count, 2, 5, contract);
}

std::vector<float> ones(uint64_t count, float dropped = 0) {
  std::vector<float> data(count);
  for (uint64_t i = 0; i < count; ++i) {
    data[i] = kept(i) ? 1 : dropped;
  }
  return data;
}

// R10: what is dropped is written, whatever the output held.
TEST(Lossless, DroppedPlacesAreWrittenPlusZero) {
  run_ranks(kTwoByTwo, [](Comm& comm, int) {
    const std::vector<float> in = ones(kMany, -0.0f);
    std::vector<float> out(kMany, 7);
    must(comm, float_call(in, out, fifth(Contract::lossless)));
    for (uint64_t i = 0; i < kMany; ++i) {
      ASSERT_EQ(bits_of(out[i]), bits_of(kept(i) ? 4.0f : 0.0f)) << i;
    }
    EXPECT_EQ(comm.stats().calls_compact, 1u);
    EXPECT_EQ(comm.stats().violations, 0u);
  });
}

TEST(Lossless, ZerosOfEitherSignAreSilent) {
  const LogCapture log;
  run_ranks({0, 1}, [](Comm& comm, int rank) {
    std::vector<float> data = ones(10'000, rank == 0 ? -0.0f : 0.0f);
    for (int round = 0; round < 3; ++round) {
      must(comm, float_call(data, data, fifth(Contract::lossless, data.size())));
    }
  });
  EXPECT_TRUE(log.warnings().empty());
}

struct Offence {
  const char* name;
  float value;
  int rank;
  uint64_t at;  // dropped
  bool in_place;
};

class LosslessOffence : public ::testing::TestWithParam<Offence> {};

// The dense sum everywhere, one warning that names parameter, rank and element, and no more
// attempts until the mask changes.
TEST_P(LosslessOffence, GivesTheDenseSumOnceWarned) {
  const Offence& o = GetParam();
  ASSERT_FALSE(kept(o.at));
  const LogCapture log;
  run_ranks({0, 0, 1}, [&](Comm& comm, int rank) {
    const MaskedPtr masked = fifth(Contract::lossless);
    for (int round = 0; round < 3; ++round) {
      std::vector<float> in = ones(kMany), out(o.in_place ? 0 : kMany, 9);
      if (rank == o.rank) {
        in[o.at] = o.value;
      }
      must(comm, float_call(in, o.in_place ? in : out, masked));
      const std::vector<float>& got = o.in_place ? in : out;
      for (uint64_t i = 0; i < kMany; ++i) {
        const float want = kept(i) ? 3.0f : i == o.at ? o.value : 0.0f;
        ASSERT_TRUE(got[i] == want || (std::isnan(got[i]) && std::isnan(want)))
            << "element " << i << " is " << got[i];
      }
    }
    EXPECT_EQ(comm.stats().violations, 1u);
    EXPECT_EQ(comm.stats().calls_dense, 3u);  // the first one went dense as well
    // Another mask: compact again.
    std::vector<float> data(kMany, 0);
    must(comm, float_call(data, data, striped(kMany, 1, 3, Contract::lossless)));
    EXPECT_EQ(comm.stats().calls_compact, 1u);
  });
  const auto warnings = log.warnings();
  ASSERT_EQ(warnings.size(), 1u) << warnings[1];
  EXPECT_NE(warnings[0].find("'weight'"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("rank " + std::to_string(o.rank)), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find(std::to_string(o.at)), std::string::npos) << warnings[0];
}

TEST(Lossless, ViolationsAreToldInWords) {
  using Told = collective::Offence;
  EXPECT_EQ(describe(Told{0, 5, 1, 0, 0.25}),
            "1 non-zero dropped element, at element 5 of the buffer, with 0.25 of the energy");
  EXPECT_EQ(describe(Told{0, 5, 3, 0, 0.25}),
            "3 non-zero dropped elements, the first at element 5 of the buffer, with 0.25 of the "
            "energy");
  EXPECT_EQ(describe(Told{0, 7, 1, 1, 0}),
            "1 dropped element that is not finite, at element 7 of the buffer");
  EXPECT_EQ(describe(Told{0, 7, 2, 2, 0}),
            "2 dropped elements that are not finite, the first at element 7 of the buffer");
  EXPECT_EQ(describe(Told{0, 7, 2, 1, 0.5}),
            "2 non-zero dropped elements (1 of them not finite), the first at element 7 of the "
            "buffer, with 0.5 of the finite energy");
}

INSTANTIATE_TEST_SUITE_P(Values, LosslessOffence,
                         ::testing::Values(Offence{"first_element", 5, 0, 2, true},
                                           Offence{"last_element", -5, 2, kMany - 1, true},
                                           Offence{"not_a_leader", 5, 1, 200'002, false},
                                           Offence{"nan", kNan, 1, 399'999, true},
                                           Offence{"inf", kInf, 0, 4, false},
                                           Offence{"minus_inf", -kInf, 2, 100'003, true},
                                           Offence{"denormal", kTiny, 2, 300'004, false}),
                         [](const auto& p) { return std::string(p.param.name); });

// The mask changed twice: that the bits are the old ones again does not make it the broken promise.
TEST(Lossless, AChangedMaskIsTriedAgain) {
  run_ranks({0, 1}, [](Comm& comm, int rank) {
    std::vector<float> data = ones(10'000, rank == 0 ? 1.0f : 0.0f);
    must(comm, float_call(data, data, fifth(Contract::lossless, data.size())));
    ASSERT_EQ(comm.stats().violations, 1u);
    std::vector<float> zeros(data.size(), 0);
    must(comm, float_call(zeros, zeros, fifth(Contract::lossless, data.size())));
    EXPECT_EQ(comm.stats().calls_compact, 0u);
    must(comm, float_call(zeros, zeros, striped(data.size(), 1, 5, Contract::lossless)));
    EXPECT_EQ(comm.stats().calls_compact, 1u);
    must(comm, float_call(zeros, zeros, fifth(Contract::lossless, data.size())));
    EXPECT_EQ(comm.stats().calls_compact, 2u);
  });
}

class ProjectOp : public ::testing::TestWithParam<Op> {};

// Selection, not multiplication: nothing from a dropped place reaches anybody, also in calls that
// are not worth compacting or have another operation than a sum.
TEST_P(ProjectOp, NothingDroppedReachesAnybody) {
  const LogCapture log;
  run_ranks({0, 1, 1}, [](Comm& comm, int rank) {
    uint64_t nonzero = 0;
    for (const uint64_t count : {uint64_t{3}, uint64_t{100}, uint64_t{20'000}}) {
      for (const uint64_t keep : std::initializer_list<uint64_t>{0, 1, 99, 100}) {
        const MaskedPtr masked = striped(count, keep, 100, Contract::project);
        constexpr float kJunk[] = {kNan, kInf, -kInf, 3, -0.0f};
        std::vector<float> in(count), out(count, 7);
        for (uint64_t i = 0; i < count; ++i) {
          const bool dropped = i % 100 >= keep;
          in[i] = dropped ? kJunk[(i + static_cast<uint64_t>(rank)) % 5] : 1;
          nonzero += dropped && !(std::fabs(in[i]) <= 0) ? 1 : 0;
        }
        must(comm, float_call(in, out, masked, GetParam()));
        const float want = GetParam() == Op::sum ? 3 : 1;
        for (uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(bits_of(out[i]), bits_of(i % 100 < keep ? want : 0.0f))
              << "count " << count << " keep " << keep << " element " << i;
        }
      }
    }
    EXPECT_EQ(comm.stats().dropped_nonzero, nonzero);
    EXPECT_EQ(comm.stats().violations, 0u);
  });
  EXPECT_TRUE(log.warnings().empty());
}

INSTANTIATE_TEST_SUITE_P(Ops, ProjectOp,
                         ::testing::Values(Op::sum, Op::avg, Op::max, Op::min, Op::prod),
                         [](const auto& p) { return std::string(name_of(p.param)); });

// Offends in every call from the `begin`-th on. Returns the call that noticed.
int noticed_at(int begin) {
  std::atomic<int> noticed{-1};
  run_ranks({0, 1}, [&](Comm& comm, int rank) {
    const MaskedPtr masked = fifth(Contract::sampled, 5000);
    for (int call = 0; call < begin + 80 && comm.stats().violations == 0; ++call) {
      std::vector<float> data = ones(5000);
      if (call >= begin && rank == 1) {
        data[3] = 5;
      }
      must(comm, float_call(data, data, masked));
      const bool seen = comm.stats().violations > 0;
      ASSERT_EQ(bits_of(data[3]), bits_of(seen ? 5.0f : 0.0f)) << "call " << call;
      if (seen) {
        noticed = call;
      }
    }
  });
  return noticed;
}

TEST(Sampled, EveryOneOfTheFirstTenCallsIsChecked) {
  for (const int call : {0, 5, 9}) {
    EXPECT_EQ(noticed_at(call), call);
  }
}

TEST(Sampled, OneCallInSixtyFourIsCheckedLater) {
  const int noticed = noticed_at(10);
  EXPECT_GT(noticed, 10) << "checked without need";
  EXPECT_LT(noticed, 10 + 64);
}

TEST(Values, NanInAKeptPlaceReachesEverybodyAsOneNan) {
  run_ranks({0, 0, 1}, [](Comm& comm, int rank) {
    for (const Op op : {Op::sum, Op::avg, Op::max, Op::min, Op::prod}) {
      for (const Contract contract : {Contract::lossless, Contract::project}) {
        std::vector<float> in = ones(20'000), out(20'000);
        in[5] = rank == 1 ? std::bit_cast<float>(0xFFC12345u) : 2;  // a NaN with sign and payload
        in[6] = rank == 0 ? kInf : rank == 2 ? -kInf : 1;           // the sum makes one
        must(comm, float_call(in, out, fifth(contract, in.size()), op));
        EXPECT_EQ(bits_of(out[5]), kCanonicalNan) << name_of(op);
        const float six = op == Op::max ? kInf : op == Op::min || op == Op::prod ? -kInf : kNan;
        EXPECT_EQ(bits_of(out[6]), std::isnan(six) ? kCanonicalNan : bits_of(six)) << name_of(op);
        EXPECT_EQ(out[10], op == Op::sum ? 3.0f : 1.0f);
      }
    }
  });
}

TEST(Values, MinusZeroIsBelowZero) {
  run_ranks({0, 0, 1}, [](Comm& comm, int rank) {
    for (int turn = 0; turn < 3; ++turn) {
      const std::vector<float> in(1000, rank == turn ? -0.0f : 0.0f);
      std::vector<float> out(1000, 1);
      must(comm, float_call(in, out, nullptr, Op::min));
      EXPECT_EQ(bits_of(out[0]), bits_of(-0.0f));
      must(comm, float_call(in, out, nullptr, Op::max));
      EXPECT_EQ(bits_of(out[0]), bits_of(0.0f));
    }
  });
}

}  // namespace
}  // namespace prunex::test
