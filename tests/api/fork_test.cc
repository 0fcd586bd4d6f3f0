// SPDX-License-Identifier: Apache-2.0
// A forked child has its parent's sockets and shared memory, and must not speak for it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "prunex/prunex.h"

namespace {

TEST(Fork, a_child_cannot_use_its_parents_communicator_nor_end_it) {
  prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
  config.rank = 0;
  config.size = 1;
  prunex_comm_t comm = 0;
  ASSERT_EQ(prunex_comm_create(&config, &comm), PRUNEX_SUCCESS) << prunex_last_error();
  const pid_t child = ::fork();
  if (child == 0) {
    float x = 0;
    uint8_t keep = 0;
    prunex_agree_t agree = PRUNEX_AGREE_INIT;
    agree.keep = 1;
    const bool refused =
        prunex_all_reduce(comm, &x, &x, 1, PRUNEX_FLOAT32, PRUNEX_SUM, 0, nullptr) ==
            PRUNEX_ERROR_INVALID_ARGUMENT &&
        std::strstr(prunex_last_error(), "forked") != nullptr &&
        prunex_agree_mask(comm, &x, 1, &agree, &keep) == PRUNEX_ERROR_INVALID_ARGUMENT;
    const bool let_go = prunex_comm_destroy(comm) == PRUNEX_SUCCESS;
#ifdef PRUNEX_SANITIZED_THREAD  // it cannot follow threads that begin after a fork
    ::_exit(refused && let_go ? 0 : 1);
#endif
    // One of its own works.
    prunex_comm_t own = 0;
    x = 3;
    const bool works = prunex_comm_create(&config, &own) == PRUNEX_SUCCESS &&
                       prunex_all_reduce(own, &x, &x, 1, PRUNEX_FLOAT32, PRUNEX_SUM, 0, nullptr) ==
                           PRUNEX_SUCCESS &&
                       x == 3 && prunex_comm_destroy(own) == PRUNEX_SUCCESS;
    ::_exit(refused && let_go && works ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  float x = 5;
  EXPECT_EQ(prunex_all_reduce(comm, &x, &x, 1, PRUNEX_FLOAT32, PRUNEX_SUM, 0, nullptr),
            PRUNEX_SUCCESS);
  EXPECT_EQ(x, 5);
  EXPECT_EQ(prunex_comm_destroy(comm), PRUNEX_SUCCESS);
}

}  // namespace
