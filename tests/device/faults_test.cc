// SPDX-License-Identifier: Apache-2.0
// What goes wrong on one rank is an error on all, that names it, and never a hang.
#include <gtest/gtest.h>

#include <barrier>
#include <condition_variable>
#include <mutex>

#include "tests/device/device_world.h"

namespace prunex::test {
namespace {

using collective::Contract;

constexpr size_t kCount = 1000;
const std::vector<int> kWorld = {0, 0, 1, 1};

// Every rank makes calls until one fails; `prepare` runs before the call number `when`.
std::vector<Error> fail_at(int when, const std::function<void(const DeviceRank&)>& prepare,
                           Contract contract, const DeviceWorld& world = {}) {
  std::vector<Error> errors(kWorld.size());
  run_device_ranks(
      kWorld,
      [&](const DeviceRank& r) {
        const MaskedPtr masked = striped(kCount, 1, 2, contract);
        for (int call = 0; call < when + 200; ++call) {
          if (call == when) {
            prepare(r);
          }
          DeviceBuffer buffer(striped_values(r.rank, kCount, 1, 2));
          if (auto result = r.sum(buffer, masked, kCount); !result) {
            errors[static_cast<size_t>(r.rank)] = result.error();
            break;
          }
        }
        standin_fail("", -1, 0);
        DeviceBuffer buffer(striped_values(r.rank, kCount, 1, 2));
        const auto after = r.sum(buffer, masked, kCount);
        EXPECT_FALSE(after) << "rank " << r.rank << ": the communicator is over";
      },
      world);
  return errors;
}

void expect_all_name(const std::vector<Error>& errors, const std::string& word) {
  for (size_t r = 0; r < errors.size(); ++r) {
    EXPECT_NE(errors[r].text.find(word), std::string::npos)
        << "rank " << r << ": " << errors[r].text;
  }
}

struct Case {
  const char* function;
  int rank, call;
  int rails = 1;
};

class NcclFails : public testing::TestWithParam<Case> {};

TEST_P(NcclFails, EverybodyIsTold) {
  const Case& c = GetParam();
  for (const Contract contract : {Contract::project, Contract::lossless}) {
    const auto errors = fail_at(c.call,
                                [&](const DeviceRank& r) {
                                  if (r.rank == c.rank) {
                                    standin_fail(c.function, 0, 6);
                                  }
                                },
                                contract, {c.rails});
    expect_all_name(errors, strf("rank %d: NCCL", c.rank));
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, NcclFails,
                         testing::Values(Case{"CommInitRankConfig", 1, 0}, Case{"CommSplit", 2, 0},
                                         Case{"Reduce", 1, 1}, Case{"AllReduce", 2, 2},
                                         Case{"Broadcast", 3, 1}, Case{"ReduceScatter", 0, 1, 2},
                                         Case{"AllGather", 1, 1, 2}, Case{"GroupEnd", 0, 1}),
                         [](const auto& c) { return std::string(c.param.function); });

TEST(DeviceFaults, AnErrorThatComesLater) {
  for (const Contract contract : {Contract::project, Contract::lossless}) {
    const auto errors = fail_at(
        1,
        [](const DeviceRank& r) {
          if (r.rank == 3) {
            standin_fail_async(6);
          }
        },
        contract);
    expect_all_name(errors, "rank 3: NCCL");
  }
}

TEST(DeviceFaults, APlanThatOneRankCannotMake) {
  const auto errors = fail_at(
      0,
      [](const DeviceRank& r) {
        if (r.rank == 1) {
          fail_next_plan();
        }
      },
      Contract::project);
  expect_all_name(errors, "out of memory");
}

TEST(DeviceFaults, IdentitiesThatOneRankCannotMakeAreUnsupportedForAll) {
  run_device_ranks(kWorld, [&](const DeviceRank& r) {
    if (r.rank == 0) {
      standin_fail("GetUniqueId", 0, 2);
    }
    DeviceBuffer buffer(values_of(r.rank, kCount));
    const auto result = r.sum(buffer, nullptr, kCount);
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().text.find("ncclGetUniqueId"), std::string::npos)
        << result.error().text;
    const auto again = r.sum(buffer, nullptr, kCount);
    EXPECT_TRUE(again) << again.error().text;  // nothing was begun
  });
}

// Each is a thread of NCCL's that listens until ranks come to it.
TEST(DeviceFaults, IdentitiesThatNobodyUsedAreGivenAgain) {
  run_device_ranks({0, 0, 1}, [&](const DeviceRank& r) {
    device::Cliques cliques(r.comm.world(), r.rank);
    for (const bool node_only : {false, true}) {
      const std::string first = cliques.offer(node_only);
      EXPECT_EQ(cliques.offer(node_only), first);
    }
    DeviceBuffer buffer(values_of(r.rank, kCount));
    EXPECT_TRUE(r.sum(buffer, nullptr, kCount));
  });
}

TEST(DeviceFaults, ARankThatDoesNotCallIsNamedAtTheDeadline) {
  std::mutex mutex;
  std::condition_variable changed;
  int finished = 0;
  run_device_ranks(
      kWorld,
      [&](const DeviceRank& r) {
        const MaskedPtr masked = striped(kCount, 1, 2, Contract::project);
        DeviceBuffer buffer(striped_values(r.rank, kCount, 1, 2));
        ASSERT_TRUE(r.sum(buffer, masked, kCount));
        if (r.rank == 2) {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return finished == 3; });
          return;
        }
        (void)r.sum(buffer, masked, kCount);  // its stream ends when the communicator does
        const auto next = r.sum(buffer, masked, kCount);
        {
          const std::lock_guard lock(mutex);
          ++finished;
          changed.notify_all();
        }
        ASSERT_FALSE(next);
        EXPECT_EQ(next.error().rank, 2) << next.error().text;
        EXPECT_NE(next.error().text.find("rank 2"), std::string::npos) << next.error().text;
      },
      {1, true, true, 2});
}

TEST(DeviceFaults, ARankThatLeavesIsNamed) {
  std::barrier together(3);
  run_device_ranks(kWorld, [&](const DeviceRank& r) {
    const MaskedPtr masked = striped(kCount, 1, 2, Contract::project);
    DeviceBuffer buffer(striped_values(r.rank, kCount, 1, 2));
    ASSERT_TRUE(r.sum(buffer, masked, kCount));
    if (r.rank == 1) {
      return;
    }
    Result<> next;
    for (int call = 0; next && call < 1000; ++call) {  // enqueued, before the news came
      next = r.sum(buffer, masked, kCount);
    }
    ASSERT_FALSE(next);
    EXPECT_EQ(next.error().rank, 1) << next.error().text;
    together.arrive_and_wait();  // who leaves early is lost, too
  });
}

TEST(DeviceFaults, AnotherDeviceIsRefused) {
  run_device_ranks({0}, [&](const DeviceRank& r) {
    DeviceBuffer buffer(values_of(0, 10));
    collective::CallSpec spec;
    spec.send = spec.recv = buffer.data();
    spec.count = 10;
    const auto result = r.device.all_reduce(spec, 3, r.handle());
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().text.find("device 3"), std::string::npos);
    EXPECT_TRUE(r.call(spec));
    r.stream.synchronize();
  });
}

}  // namespace
}  // namespace prunex::test
