// SPDX-License-Identifier: Apache-2.0
// Where network and device can do it (dmabuf), what is sent as it is goes from the device's own
// memory: over the fake RDMA device, whose memory is the host's.
#include <gtest/gtest.h>

#include "tests/device/staged_mask.h"

namespace prunex::test {
namespace {

using StagedDirect = StagedKernels;

uint64_t direct() { return nccl::all_totals().direct.messages; }

TEST_F(StagedDirect, raw_messages_are_sent_from_where_they_are) {
  allow_dmabuf(true);
  connect();
  uint32_t seed = 1;
  for (const size_t bytes :
       {size_t{1}, size_t{100}, size_t{4095}, size_t{70'000}, (size_t{1} << 20) - 3}) {
    const Seen before;
    exchange(pattern(bytes, seed++), 3 * bytes % 1001, 7 * bytes % 513);
    EXPECT_EQ(direct(), before.totals.direct.messages + 1) << bytes;
    expect_ways(before, bytes < 4096 ? 0 : 1, 0, 1);  // looked at; copied at the receiver
    expect_nothing_made(before);
  }
}

TEST_F(StagedDirect, what_gets_smaller_is_packed) {
  allow_dmabuf(true);
  connect();
  Rng rng(1);
  StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 300, 1000, 0.5, rng);
  const Bytes good = mask.data(0, mask.bytes(), 1);
  const Seen before;
  exchange(good, 0, 12);
  exchange(pattern(200'000, 3, true), size_t{2} << 20, 7);
  expect_ways(before, 2, 2, 0);
  EXPECT_EQ(direct(), before.totals.direct.messages);
  Bytes bad = good;
  for (size_t i = 0; i < mask.bytes() / 4; ++i) {
    bad[i * 4] = std::byte{1};
  }
  exchange(bad, 0, 12);
  EXPECT_EQ(direct(), before.totals.direct.messages + 1) << "the mask's promise is broken";
}

// The kernel's DMA engine is not asked whether it can: registering tells.
TEST_F(StagedDirect, a_device_that_exports_nothing) {
  connect();
  const Seen before;
  exchange(pattern(70'000, 1), 0, 0);
  EXPECT_EQ(direct(), before.totals.direct.messages);
  expect_ways(before, 1, 0, 2);
}

TEST_F(StagedDirect, many_in_flight_arrive_in_order) {
  allow_dmabuf(true);
  connect();
  many_in_flight(5);
}

}  // namespace
}  // namespace prunex::test
