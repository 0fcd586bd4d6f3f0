// SPDX-License-Identifier: Apache-2.0
// Who comes, who does not, who comes twice, and how often a port can be met at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bootstrap/ranks.h"

namespace prunex::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<Opened> open_ranks(const std::vector<int>& ranks,
                               const std::function<ControlOptions(int)>& options) {
  std::vector<Opened> out(ranks.size());
  run_ranks(up_to(static_cast<int>(ranks.size())), [&](int i) {
    const auto at = static_cast<size_t>(i);
    out[at] = Control::open(options(ranks[at]));
  });
  return out;
}

TEST(Reports, D17_three_of_four_come) {
  const std::string root = free_root();
  const auto opened =
      open_ranks({0, 1, 3}, [&](int rank) { return options_at(root, rank, 4, 1.0); });
  for (const Opened& one : opened) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code, Code::timeout);
    EXPECT_EQ(one.error().rank, 2);
    EXPECT_THAT(one.error().text, AllOf(HasSubstr("rank 2 of 4"), HasSubstr(root)));
  }
}

TEST(Reports, D17_three_of_four_come_by_store) {
  MemoryStore store;
  const auto opened =
      open_ranks({0, 2, 3}, [&](int rank) { return options_with(store, rank, 4, 1.0); });
  for (const Opened& one : opened) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code, Code::timeout);
    EXPECT_EQ(one.error().rank, 1);
    EXPECT_THAT(one.error().text, HasSubstr("rank 1 of 4"));
  }
}

TEST(Meeting, the_first_deadline_ends_the_wait_of_all) {
  const std::string root = free_root();
  const auto opened = open_ranks(
      {0, 1, 3}, [&](int rank) { return options_at(root, rank, 6, rank == 3 ? 0.5 : kNeverS); });
  for (const Opened& one : opened) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().rank, 2);
    EXPECT_THAT(one.error().text, HasSubstr("ranks 2, 4, 5 of 6"));
  }
}

TEST(Meeting, rank_0_does_not_come) {
  const std::string root = free_root();
  const auto opened = open_ranks({1, 2}, [&](int rank) { return options_at(root, rank, 3, 0.5); });
  for (const Opened& one : opened) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code, Code::timeout);
    EXPECT_EQ(one.error().rank, 0);
    EXPECT_THAT(one.error().text, AllOf(HasSubstr("rank 0"), HasSubstr(root), HasSubstr("attempts"),
                                        HasSubstr("refused")));
  }
}

TEST(Meeting, rank_0_leaves_nothing_in_the_store) {
  MemoryStore store;
  const auto opened =
      open_ranks({1, 2}, [&](int rank) { return options_with(store, rank, 3, 0.3); });
  for (const Opened& one : opened) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code, Code::timeout);
    EXPECT_EQ(one.error().rank, 0);
    EXPECT_THAT(one.error().text, HasSubstr("'job/root'"));
  }
}

TEST(Meeting, any_order_of_arrival) {
  for (const int last : {0, 1, 3}) {
    const std::string root = free_root();
    run_ranks(up_to(4), [&](int rank) {
      if (rank == last) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
      const auto opened = Control::open(options_at(root, rank, 4));
      EXPECT_TRUE(opened) << opened.error().text;
    });
  }
}

TEST(Meeting, two_with_one_rank) {
  const std::string root = free_root();
  // Rank 2 is missing until the second rank 1 has been turned away.
  std::atomic<bool> turned_away{false};
  std::atomic<int> refused{0}, joined{0};
  run_ranks({0, 1, 11, 2}, [&](int who) {
    const int rank = who % 10;
    if (rank == 2) {
      while (!turned_away) {
        std::this_thread::yield();
      }
    }
    const auto opened = Control::open(options_at(root, rank, 3));
    if (opened) {
      ++joined;
      return;
    }
    ++refused;
    turned_away = true;
    EXPECT_EQ(rank, 1);
    EXPECT_EQ(opened.error().code, Code::mismatch);
    EXPECT_THAT(opened.error().text, AllOf(HasSubstr("rank 1"), HasSubstr("same rank")));
  });
  EXPECT_EQ(joined, 3);
  EXPECT_EQ(refused, 1);
}

TEST(Meeting, unequal_world_sizes_name_both) {
  const std::string root = free_root();
  const auto opened =
      open_ranks({0, 1, 2}, [&](int rank) { return options_at(root, rank, rank == 2 ? 4 : 3); });
  for (const Opened& one : opened) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code, Code::mismatch);
    EXPECT_THAT(one.error().text,
                AllOf(HasSubstr("rank 2 has world size 4"), HasSubstr("rank 0 has world size 3")));
  }
}

TEST(Meeting, unequal_world_sizes_by_store) {
  MemoryStore store;
  const auto opened =
      open_ranks({0, 1}, [&](int rank) { return options_with(store, rank, rank == 1 ? 5 : 2); });
  for (const Opened& one : opened) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code, Code::mismatch);
    EXPECT_THAT(one.error().text, AllOf(HasSubstr("5"), HasSubstr("2")));
  }
}

TEST(Meeting, a_leftover_of_a_larger_job_does_not_stop_the_smaller) {
  const std::string root = free_root();
  std::atomic<bool> refused{false};
  run_ranks({0, 1, 5}, [&](int rank) {
    if (rank == 1) {
      while (!refused) {
        std::this_thread::yield();
      }
    }
    const auto opened = Control::open(options_at(root, rank, rank == 5 ? 6 : 2));
    EXPECT_EQ(bool(opened), rank != 5);
    refused = refused || rank == 5;
  });
}

TEST(Meeting, a_leftover_with_our_rank_does_not_stop_the_real_one) {
  const std::string root = free_root();
  std::atomic<bool> refused{false};
  run_ranks({0, 1, 11}, [&](int who) {
    const int rank = who % 10;
    if (who == 1) {
      while (!refused) {
        std::this_thread::yield();
      }
    }
    const auto opened = Control::open(options_at(root, rank, who == 11 ? 6 : 2));
    EXPECT_EQ(bool(opened), who != 11);
    refused = refused || who == 11;
  });
}

TEST(Reports, C17_fixed_port_fifty_times) {
  const std::string root = free_root();
  for (int round = 0; round < 50; ++round) {
    run_ranks(up_to(3), [&](int rank) {
      auto opened = Control::open(options_at(root, rank, 3));
      ASSERT_TRUE(opened) << round << ": " << opened.error().text;
      const auto got = (*opened)->all_gather(std::to_string(round), kNeverS);
      ASSERT_TRUE(got) << round << ": " << got.error().text;
      EXPECT_EQ((*got)[2], std::to_string(round));
    });
  }
}

TEST(Meeting, next_communicator_while_the_first_lives) {
  const std::string root = free_root();
  run_ranks(up_to(3), [&](int rank) {
    std::vector<std::unique_ptr<Control>> alive;
    for (int i = 0; i < 10; ++i) {  // nothing keeps the ranks in step but the meetings themselves
      auto opened = Control::open(options_at(root, rank, 3));
      ASSERT_TRUE(opened) << i << ": " << opened.error().text;
      alive.push_back(std::move(*opened));
    }
    for (int i = 0; i < 10; ++i) {
      const auto got = alive[static_cast<size_t>(i)]->all_gather(std::to_string(i), kNeverS);
      ASSERT_TRUE(got) << got.error().text;
      EXPECT_EQ((*got)[static_cast<size_t>((rank + 1) % 3)], std::to_string(i));
    }
  });
}

TEST(Meeting, named_communicators_at_once_on_one_port) {
  const std::string root = free_root();
  run_ranks(up_to(3 * 4), [&](int thread) {
    const int rank = thread % 3;
    const std::string name = "comm" + std::to_string(thread / 3);
    auto opened = Control::open(options_at(root, rank, 3, kNeverS, name));
    ASSERT_TRUE(opened) << name << ": " << opened.error().text;
    const auto got = (*opened)->all_gather(name, kNeverS);
    ASSERT_TRUE(got) << got.error().text;
    for (const std::string& one : *got) {
      EXPECT_EQ(one, name);
    }
  });
}

TEST(Meeting, again_after_a_failed_one) {
  const std::string root = free_root();
  const auto failed = open_ranks({0, 1}, [&](int rank) { return options_at(root, rank, 3, 0.4); });
  EXPECT_FALSE(failed[0]);
  EXPECT_FALSE(failed[1]);
  const auto opened = open_ranks(up_to(3), [&](int rank) { return options_at(root, rank, 3); });
  for (const Opened& one : opened) {
    EXPECT_TRUE(one) << one.error().text;
  }
}

TEST(Meeting, store_entries_of_earlier_communicators_are_overcome) {
  MemoryStore store;
  // One of this very name whose port is closed again, and one that was never anybody's.
  store.put("job/root",
            "prunex1 00000000000000000000000000000000 127.0.0.1:" + std::to_string(free_port()));
  for (int i = 0; i < 5; ++i) {
    run_ranks(up_to(3), [&](int rank) {
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      auto opened = Control::open(options_with(store, rank, 3));
      ASSERT_TRUE(opened) << opened.error().text;
      EXPECT_TRUE((*opened)->all_gather("x", kNeverS));
    });
  }
}

TEST(Meeting, names_keep_communicators_on_one_store_apart) {
  MemoryStore store;
  run_ranks(up_to(6), [&](int thread) {
    const std::string name = thread < 3 ? "a" : "b";
    auto opened = Control::open(options_with(store, thread % 3, 3, kNeverS, name));
    ASSERT_TRUE(opened) << opened.error().text;
    EXPECT_EQ((*(*opened)->all_gather(name, kNeverS))[0], name);
  });
}

TEST(Meeting, what_cannot_be_opened_says_so_at_once) {
  const auto error = [](ControlOptions options) {
    const auto opened = Control::open(options);
    EXPECT_FALSE(opened);
    return opened ? Error{} : opened.error();
  };
  EXPECT_EQ(error(options_at("127.0.0.1:1", -1, 4)).code, Code::invalid_argument);
  EXPECT_THAT(error(options_at("127.0.0.1:1", 4, 4)).text, HasSubstr("rank 4 of 4"));
  EXPECT_EQ(error(options_at("127.0.0.1:1", 0, 0)).code, Code::invalid_argument);
  EXPECT_THAT(error(options_at("", 0, 2)).text, HasSubstr("PRUNEX_ROOT"));
  EXPECT_THAT(error(options_at("nowhere", 1, 2)).text, HasSubstr("PRUNEX_ROOT='nowhere'"));
  EXPECT_EQ(error(options_at("127.0.0.1:1", 0, 2, 1, std::string(300, 'n'))).code,
            Code::invalid_argument);
  ControlOptions half = options_at("", 0, 2);
  half.store = StoreCallbacks{};
  EXPECT_EQ(error(half).code, Code::invalid_argument);
}

TEST(Meeting, store_that_fails_says_why) {
  ControlOptions options = options_at("", 0, 2);
  options.store = StoreCallbacks{
      [](std::string_view, std::string_view) -> Result<> {
        return fail(Code::system, "disk full");
      },
      [](std::string_view, double) -> Result<std::string> { return fail(Code::system, "gone"); }};
  for (const int rank : {0, 1}) {
    options.rank = rank;
    const auto opened = Control::open(options);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::system);
    EXPECT_THAT(opened.error().text, HasSubstr(rank == 0 ? "disk full" : "gone"));
  }
}

TEST(Meeting, one_rank_needs_nobody) {
  const auto opened = Control::open(options_at("", 0, 1));
  ASSERT_TRUE(opened);
  EXPECT_EQ((*opened)->all_gather("me", 1)->front(), "me");
  EXPECT_GE((*opened)->poll_fd(), 0);
  (*opened)->poll();
}

}  // namespace
}  // namespace prunex::test
