// SPDX-License-Identifier: Apache-2.0
// What a framework that polls a communicator sees between two calls.
#include <gtest/gtest.h>

#include "tests/device/device_api.h"
#include "tests/device/standin/nccl.h"

namespace prunex::test {
namespace {

constexpr size_t kCount = 100;

// The first state that is not SUCCESS, and its text; polls for as long as a peer's loss may take.
std::pair<prunex_result_t, std::string> poll_until_error(prunex_comm_t comm) {
  for (int look = 0; look < 30'000; ++look) {
    prunex_result_t error = PRUNEX_ERROR_INTERNAL;
    EXPECT_OK(prunex_comm_get_async_error(comm, &error));
    if (error != PRUNEX_SUCCESS) {
      return {error, prunex_last_error()};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {PRUNEX_SUCCESS, "nothing in 30 s"};
}

prunex_result_t sum_on(FakeStream& stream, prunex_comm_t comm, float* at) {
  prunex_call_t call = PRUNEX_CALL_INIT;
  call.stream = static_cast<StreamLike*>(&stream);
  return prunex_all_reduce(comm, at, at, kCount, PRUNEX_FLOAT32, PRUNEX_SUM, 0, &call);
}

TEST(AsyncError, OfHostCommunicators) {
  run_c_ranks({0, 1, 1}, [](prunex_comm_t comm, int rank) {
    std::vector<float> ones(10, 1);
    ASSERT_OK(prunex_all_reduce(comm, ones.data(), ones.data(), 10, PRUNEX_FLOAT32, PRUNEX_SUM, 0,
                                nullptr));
    prunex_result_t error = PRUNEX_ERROR_INTERNAL;
    EXPECT_OK(prunex_comm_get_async_error(comm, &error));
    EXPECT_EQ(error, PRUNEX_SUCCESS);
    ASSERT_OK(prunex_barrier(comm));
    if (rank == 1) {
      EXPECT_OK(prunex_comm_abort(comm));
    }
    const auto [found, text] = poll_until_error(comm);
    EXPECT_EQ(found, PRUNEX_ERROR_PEER_LOST) << text;
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  });
  EXPECT_FAILS(prunex_comm_get_async_error(424'242, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT,
               "error");
  prunex_result_t error = PRUNEX_SUCCESS;
  EXPECT_FAILS(prunex_comm_get_async_error(424'242, &error), PRUNEX_ERROR_INVALID_HANDLE, "424242");
}

TEST_F(DeviceApi, APeerThatWentIsSeenWithoutACall) {
  run_c_ranks({0, 0, 1}, [](prunex_comm_t comm, int rank) {
    FakeStream stream;
    OnDevice buffer(kCount);
    ASSERT_OK(sum_on(stream, comm, buffer.data));
    stream.synchronize();
    if (rank == 2) {
      EXPECT_OK(prunex_comm_abort(comm));
      return;
    }
    const auto [found, text] = poll_until_error(comm);
    EXPECT_EQ(found, PRUNEX_ERROR_PEER_LOST) << text;
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
  });
}

// Nobody calls any more: only who polls can find it, and all are told.
TEST_F(DeviceApi, AnErrorOfNcclIsSeenWithoutACallByAll) {
  run_c_ranks({0, 0, 1}, [](prunex_comm_t comm, int rank) {
    FakeStream stream;
    OnDevice buffer(kCount);
    ASSERT_OK(sum_on(stream, comm, buffer.data));
    stream.synchronize();
    if (rank == 1) {
      standin_fail_async(6);
    }
    (void)sum_on(stream, comm, buffer.data);
    const auto [found, text] = poll_until_error(comm);
    EXPECT_EQ(found, PRUNEX_ERROR_SYSTEM) << text;
    EXPECT_NE(text.find("rank 1: NCCL"), std::string::npos) << text;
    standin_fail("", -1, 0);
  });
}

}  // namespace
}  // namespace prunex::test
