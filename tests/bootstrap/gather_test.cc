// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "plugin/bootstrap/wire.h"
#include "tests/bootstrap/ranks.h"

namespace prunex::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string record_of(int rank, int round) {
  if (round % 3 == 1) {
    return "";
  }
  const size_t length =
      round % 3 == 2 ? 700'000u + static_cast<size_t>(rank) : static_cast<size_t>(rank * 7 % 5);
  return std::string(length, static_cast<char>('a' + (rank + round) % 26));
}

class Gather : public testing::TestWithParam<int> {};

TEST_P(Gather, every_rank_gets_every_record_by_rank) {
  const int size = GetParam();
  World world(size);
  run_ranks(up_to(size), [&](int rank) {
    for (int round = 0; round < 6; ++round) {
      const auto got = world[rank].all_gather(record_of(rank, round), kNeverS);
      ASSERT_TRUE(got) << got.error().text;
      ASSERT_EQ(got->size(), static_cast<size_t>(size));
      for (int from = 0; from < size; ++from) {
        EXPECT_EQ((*got)[static_cast<size_t>(from)], record_of(from, round))
            << from << " " << round;
      }
    }
  });
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_FALSE(world[rank].aborted());
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Gather, testing::Values(1, 2, 3, 4, 7, 9));

TEST(Gather, largest_record_and_one_byte_more) {
  World world(2);
  const std::string largest(wire::kMaxRecord, 'x');
  const auto refused = world[1].all_gather(largest + "y", kNeverS);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid_argument);
  EXPECT_THAT(refused.error().text, AllOf(HasSubstr("67108865"), HasSubstr("67108864")));
  run_ranks({0, 1}, [&](int rank) {
    const auto got = world[rank].all_gather(rank == 1 ? largest : "small", kNeverS);
    ASSERT_TRUE(got) << got.error().text;
    EXPECT_EQ((*got)[0], "small");
    EXPECT_TRUE((*got)[1] == largest);
  });
}

TEST(Gather, ranks_come_late_one_after_another) {
  World world(4);
  run_ranks(up_to(4), [&](int rank) {
    for (int round = 0; round < 4; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds((rank + round) % 4 * 30));
      const auto got = world[rank].all_gather(std::to_string(rank * 100 + round), kNeverS);
      ASSERT_TRUE(got) << got.error().text;
      EXPECT_EQ((*got)[3], std::to_string(300 + round));
    }
  });
}

TEST(Gather, root_relays_from_poll_and_its_fd_tells_when) {
  // An engine sleeps on the fd; the thread in all_gather is another one.
  World world(3);
  std::atomic<bool> stop{false};
  std::vector<std::thread> engines;
  for (int rank = 0; rank < 3; ++rank) {
    engines.emplace_back([&, rank] {
      while (!stop) {
        pollfd one{world[rank].poll_fd(), POLLIN, 0};
        if (::poll(&one, 1, 20) > 0) {
          world[rank].poll();
        }
        (void)world[rank].aborted();
      }
    });
  }
  run_ranks(up_to(3), [&](int rank) {
    for (int round = 0; round < 50; ++round) {
      const auto got = world[rank].all_gather(std::to_string(rank), kNeverS);
      ASSERT_TRUE(got) << got.error().text;
      EXPECT_EQ((*got)[2], "2");
    }
  });
  stop = true;
  for (std::thread& one : engines) {
    one.join();
  }
}

TEST(Gather, threads_of_one_rank_take_turns) {
  World world(2);
  run_ranks({0, 1}, [&](int rank) {
    run_ranks(up_to(4), [&](int) {
      for (int round = 0; round < 20; ++round) {
        const auto got = world[rank].all_gather(strf("r%d", rank), kNeverS);
        ASSERT_TRUE(got) << got.error().text;
        EXPECT_EQ((*got)[1], "r1");
      }
    });
  });
}

TEST(Gather, a_rank_that_does_not_come_is_named_by_all) {
  World world(4);
  Poller engine(world[2]);  // alive, only not in the call
  std::vector<Error> errors(4);
  run_ranks({0, 1, 3}, [&](int rank) {
    // Unequal deadlines: the first that passes ends the wait of all.
    const auto got = world[rank].all_gather("x", rank == 1 ? 0.2 : kNeverS);
    ASSERT_FALSE(got);
    errors[static_cast<size_t>(rank)] = got.error();
  });
  for (const int rank : {0, 1, 3}) {
    const Error& error = errors[static_cast<size_t>(rank)];
    EXPECT_EQ(error.code, Code::timeout) << error.text;
    EXPECT_EQ(error.rank, 2);
    EXPECT_THAT(error.text, HasSubstr("rank 2 of 4"));
    EXPECT_EQ(error.text, errors[0].text);
  }
  // Dead from then on, with the same story, for the late one too.
  const auto late = world[2].all_gather("x", kNeverS);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().text, errors[0].text);
}

TEST(Gather, several_missing_ranks_are_all_named) {
  World world(5);
  const auto got = world[0].all_gather("x", 0.05);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().rank, 1);
  EXPECT_THAT(got.error().text, HasSubstr("ranks 1, 2, 3, 4 of 5"));
}

TEST(Gather, rank_0_is_the_late_one_while_its_engine_relays) {
  World world(3);
  Poller engine(world[0]);
  run_ranks({1, 2}, [&](int rank) {
    const auto got = world[rank].all_gather("x", rank == 1 ? 0.2 : kNeverS);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Code::timeout);
    EXPECT_EQ(got.error().rank, 0) << got.error().text;
  });
}

TEST(Gather, rank_0_that_does_not_move_at_all_is_named) {
  World world(3);
  run_ranks({1, 2}, [&](int rank) {
    const auto got = world[rank].all_gather("x", 0.1);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Code::timeout);
    EXPECT_EQ(got.error().rank, 0) << got.error().text;
    EXPECT_THAT(got.error().text, HasSubstr("rank 0"));
  });
}

TEST(Closing, is_no_death) {
  World world(3);
  Poller engine(world[0]), other(world[1]);
  world.ranks[2].reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(world[0].aborted());
  EXPECT_FALSE(world[1].aborted());
}

TEST(Closing, a_closed_rank_that_is_needed_again_is_named) {
  World world(4);
  world.ranks[2].reset();
  run_ranks({0, 1, 3}, [&](int rank) {
    const auto got = world[rank].all_gather("x", kNeverS);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Code::peer_lost);
    EXPECT_EQ(got.error().rank, 2);
    EXPECT_THAT(got.error().text, HasSubstr("rank 2 has closed"));
  });
}

TEST(Closing, a_rank_that_closes_while_others_wait_is_named) {
  World world(3);
  run_ranks(up_to(3), [&](int rank) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world.ranks[1].reset();
      return;
    }
    const auto got = world[rank].all_gather("x", kNeverS);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().rank, 1) << got.error().text;
  });
}

TEST(Closing, rank_0_closed) {
  World world(3);
  world.ranks[0].reset();
  run_ranks({1, 2}, [&](int rank) {
    const auto got = world[rank].all_gather("x", kNeverS);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Code::peer_lost);
    EXPECT_EQ(got.error().rank, 0);
    EXPECT_THAT(got.error().text, HasSubstr("rank 0 has closed"));
    const Verdict verdict = world[rank].abort({2, Code::internal, "other"});
    EXPECT_EQ(verdict.culprit, 0);
  });
}

TEST(Closing, what_was_gathered_still_arrives_after_everybody_closed) {
  for (int round = 0; round < 10; ++round) {
    World world(4);
    run_ranks(up_to(4), [&](int rank) {
      if (rank == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      const auto got = world[rank].all_gather(std::string(500'000, char('0' + rank)), kNeverS);
      world.ranks[static_cast<size_t>(rank)].reset();
      ASSERT_TRUE(got) << rank << ": " << got.error().text;
      EXPECT_EQ((*got)[3], std::string(500'000, '3'));
    });
  }
}

}  // namespace
}  // namespace prunex::test
