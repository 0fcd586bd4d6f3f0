// SPDX-License-Identifier: Apache-2.0
// Waiting for a request for a time, and giving a communicator up.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/api/api_world.h"

namespace prunex::test {
namespace {

prunex_result_t start_sum(prunex_comm_t comm, std::vector<float>& data, prunex_request_t* request) {
  prunex_call_t call = PRUNEX_CALL_INIT;
  call.request = request;
  return prunex_all_reduce(comm, data.data(), data.data(), data.size(), PRUNEX_FLOAT32, PRUNEX_SUM,
                           0, &call);
}

TEST(WaitFor, ReturnsEmptyHandedAndGoesOn) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    std::vector<float> data(1000, 1);
    prunex_request_t request = 0;
    if (rank == 1) {  // comes once rank 0 has waited in vain
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    ASSERT_OK(start_sum(comm, data, &request));
    int done = 7;
    EXPECT_FAILS(prunex_request_wait_for(request, 1, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT,
                 "done");
    if (rank == 0) {
      EXPECT_OK(prunex_request_wait_for(request, 0, &done));
      EXPECT_EQ(done, 0);
      EXPECT_EQ(data, std::vector<float>(1000, 1));  // untouched so far
    }
    do {
      ASSERT_OK(prunex_request_wait_for(request, 20, &done));
    } while (done == 0);
    EXPECT_EQ(data, std::vector<float>(1000, 2));
    EXPECT_FAILS(prunex_request_wait_for(request, 20, &done), PRUNEX_ERROR_INVALID_HANDLE,
                 std::to_string(request));
    EXPECT_EQ(done, 0);
  });
}

TEST(WaitFor, GivesTheCallsResult) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    std::vector<float> uneven(rank == 0 ? 100 : 101, 1);
    prunex_request_t request = 0;
    ASSERT_OK(start_sum(comm, uneven, &request));
    int done = 0;
    prunex_result_t result = PRUNEX_SUCCESS;
    while (done == 0) {
      result = prunex_request_wait_for(request, 1000, &done);
    }
    EXPECT_EQ(result, PRUNEX_ERROR_MISMATCH);
    EXPECT_NE(std::string(prunex_last_error()).find("101"), std::string::npos);
  });
}

TEST(Abort, EndsCallsUnderWayOnAllRanks) {
  run_c_ranks({0, 0, 1, 1}, [](prunex_comm_t comm, int rank) {
    std::vector<float> data(1000, 1);
    prunex_request_t request = 0;
    if (rank == 3) {  // never makes the call the others wait in
      EXPECT_OK(prunex_comm_abort(comm));
    } else {
      ASSERT_OK(start_sum(comm, data, &request));
      EXPECT_FAILS(prunex_request_wait(request), PRUNEX_ERROR_PEER_LOST, "rank 3");
    }
    // "has aborted" or "was lost", on rank 3 as well: all tell one story, and the one whom rank 3's
    // abort woke may be heard before it.
    EXPECT_FAILS(start_sum(comm, data, &request) == PRUNEX_SUCCESS ? prunex_request_wait(request)
                                                                   : PRUNEX_SUCCESS,
                 PRUNEX_ERROR_PEER_LOST, "rank 3");
  });
}

TEST(Abort, OwnCallUnderWayEndsAndDestroyDoesNotWait) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    if (rank == 0) {
      std::vector<float> data(1000, 1);
      prunex_request_t request = 0;
      ASSERT_OK(start_sum(comm, data, &request));  // rank 1 never comes
      int done = 7;
      EXPECT_OK(prunex_request_wait_for(request, 50, &done));
      EXPECT_EQ(done, 0);
      EXPECT_OK(prunex_comm_abort(comm));
      EXPECT_FAILS(prunex_request_wait(request), PRUNEX_ERROR_PEER_LOST, "rank 0 has aborted");
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  EXPECT_FAILS(prunex_comm_abort(424'242), PRUNEX_ERROR_INVALID_HANDLE, "424242");
}

TEST(Abort, AloneToo) {
  run_c_ranks({0}, [](prunex_comm_t comm, int) {
    EXPECT_OK(prunex_comm_abort(comm));
    EXPECT_OK(prunex_comm_abort(comm));
  });
}

}  // namespace
}  // namespace prunex::test
