// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bootstrap/ranks.h"

namespace prunex::test {
namespace {

TEST(Abort, everybody_hears_the_finding_of_one) {
  for (const int reporter : {0, 1, 3}) {
    World world(4);
    std::vector<std::unique_ptr<Poller>> engines;
    for (int rank = 0; rank < 4; ++rank) {
      engines.push_back(std::make_unique<Poller>(world[rank]));
    }
    const Verdict said = world[reporter].abort({2, Code::peer_lost, "rank 2: connection reset"});
    EXPECT_EQ(said.culprit, 2);
    for (int rank = 0; rank < 4; ++rank) {
      while (!world[rank].aborted()) {
        std::this_thread::yield();
      }
      EXPECT_EQ(world[rank].aborted()->culprit, 2);
      EXPECT_EQ(world[rank].aborted()->code, Code::peer_lost);
      EXPECT_EQ(world[rank].aborted()->text, "rank 2: connection reset");
    }
  }
}

TEST(Abort, ends_a_gather_that_waits) {
  World world(3);
  run_ranks(up_to(3), [&](int rank) {
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world[2].abort({2, Code::memory, "out of memory on rank 2"});
      return;
    }
    const auto got = world[rank].all_gather("x", kNeverS);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Code::memory);
    EXPECT_EQ(got.error().rank, 2);
    EXPECT_EQ(got.error().text, "out of memory on rank 2");
  });
}

TEST(Abort, concurrent_findings_make_one_verdict) {
  for (int round = 0; round < 20; ++round) {
    constexpr int kSize = 5;
    World world(kSize);
    std::vector<Verdict> said(kSize * 2);
    std::vector<std::unique_ptr<Poller>> engines;
    for (int rank = 0; rank < kSize; ++rank) {
      engines.push_back(std::make_unique<Poller>(world[rank]));
    }
    run_ranks(up_to(kSize * 2), [&](int thread) {  // two threads of each rank
      const int rank = thread % kSize;
      said[static_cast<size_t>(thread)] = world[rank].abort(
          {(rank + 1) % kSize, Code::peer_lost, "found by " + std::to_string(thread)});
    });
    for (const Verdict& one : said) {
      EXPECT_EQ(one.text, said[0].text);
      EXPECT_EQ(one.culprit, said[0].culprit);
    }
  }
}

TEST(Abort, is_final) {
  World world(3);
  Poller engine(world[0]);
  const Verdict first = world[1].abort({2, Code::peer_lost, "first"});
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(world[rank].abort({0, Code::timeout, "second"}).text, first.text);
    for (int again = 0; again < 3; ++again) {
      const auto got = world[rank].all_gather("x", kNeverS);
      ASSERT_FALSE(got);
      EXPECT_EQ(got.error().text, "first");
      EXPECT_EQ(got.error().rank, 2);
    }
  }
}

TEST(Abort, a_round_that_completes_after_the_verdict_succeeds_nowhere) {
  World world(2);
  const Verdict verdict = world[0].abort({1, Code::internal, "over"});
  for (int again = 0; again < 3; ++again) {
    run_ranks({0, 1}, [&](int rank) {
      const auto got = world[rank].all_gather("x", kNeverS);
      ASSERT_FALSE(got);
      EXPECT_EQ(got.error().text, verdict.text);
    });
  }
}

TEST(Abort, own_finding_when_rank_0_does_not_answer) {
  World world(2);  // nobody polls for rank 0
  const Verdict said = world[1].abort({0, Code::timeout, "mine"});
  EXPECT_EQ(said.text, "mine");
  EXPECT_EQ(world[1].aborted()->text, "mine");
  EXPECT_EQ(world[1].all_gather("x", kNeverS).error().text, "mine");
}

TEST(Abort, odd_findings_are_put_right) {
  World world(2);
  Poller engine(world[0]);
  const Verdict said = world[1].abort({77, Code::internal, std::string(100'000, 'x')});
  EXPECT_EQ(said.culprit, -1);
  EXPECT_LE(said.text.size(), 4096u);
  EXPECT_EQ(world[0].aborted()->text, said.text);
}

TEST(Abort, alone) {
  World world(1);
  EXPECT_EQ(world[0].abort({0, Code::internal, "me"}).text, "me");
  EXPECT_FALSE(world[0].all_gather("x", kNeverS));
}

}  // namespace
}  // namespace prunex::test
