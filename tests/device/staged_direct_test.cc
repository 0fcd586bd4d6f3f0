// SPDX-License-Identifier: Apache-2.0
// Where network and device can do it (dmabuf), what is sent as it is goes from the device's own
// memory: over the fake RDMA device, whose memory is the host's.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

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

// Where what the network wrote is sure to be seen, it writes to the device's memory itself.
TEST_F(StagedDirect, raw_messages_arrive_where_they_belong) {
  allow_dmabuf(true);
  uint32_t seed = 1;
  for (const auto how : {cuda::RemoteWrites::flushed, cuda::RemoteWrites::ordered}) {
    see_remote_writes(how);
    connect();
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{100}, size_t{4095},
                               size_t{70'000}, (size_t{1} << 20) - 3, size_t{3} << 20}) {
      for (const size_t at : {size_t{0}, 7 * bytes % 513 + 1}) {
        const Seen before;
        exchange(pattern(bytes, seed++), at, 3 * at, bytes + at % 2 * 4096);
        EXPECT_EQ(direct(), before.totals.direct.messages + (bytes > 0 ? 2 : 0)) << bytes;
        EXPECT_EQ(nccl::all_totals().staged.messages, before.totals.staged.messages);
        expect_nothing_made(before);
      }
    }
    many_in_flight(3);
    disconnect();
  }
}

// To a receive that nobody copies from comes what was packed, too.
TEST_F(StagedDirect, packed_and_raw_by_turns) {
  allow_dmabuf(true);
  see_remote_writes(cuda::RemoteWrites::flushed);
  connect();
  Rng rng(2);
  StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 300, 1000, 0.5, rng);
  for (uint32_t i = 0; i < 10; ++i) {
    const Seen before;
    exchange(mask.data(0, mask.bytes(), i), 0, 12);
    exchange(pattern(200'000 + i, i, true), size_t{2} << 20, i);
    exchange(pattern(90'000 + i, i), size_t{2} << 20, i);
    expect_ways(before, 3, 2, 0);
    EXPECT_EQ(direct(), before.totals.direct.messages + 2);
    expect_nothing_made(before);
  }
}

TEST_F(StagedDirect, nothing_makes_remote_writes_seen) {
  allow_dmabuf(true);
  see_remote_writes(cuda::RemoteWrites::never);
  connect();
  const Seen before;
  exchange(pattern(3000, 1), 5, 6);
  EXPECT_EQ(direct(), before.totals.direct.messages + 1) << "the sender's";
  expect_ways(before, 0, 0, 1);
}

class StagedFlush : public StagedDirect {
 protected:
  // The answer; what it took is in flushes().
  int flush(int bytes, void* mr) {
    void *place = to_.at(), *request = this;
    const int status = net().iflush(recv_, 1, &place, &bytes, &mr, &request);
    EXPECT_EQ(request, nullptr) << "done at once";
    return status;
  }
  static int flushes() { return fake_counts().flushes; }
};

TEST_F(StagedFlush, flushes_what_the_network_wrote) {
  allow_dmabuf(true);
  see_remote_writes(cuda::RemoteWrites::flushed);
  connect();
  const Seen before;
  exchange(pattern(3000, 1), 5, 6);
  EXPECT_EQ(flushes(), before.counts.flushes) << "NCCL knows when to";
  EXPECT_EQ(flush(3000, to_mr_), nccl::kSuccess);
  EXPECT_EQ(flushes(), before.counts.flushes + 1);
  EXPECT_EQ(flush(0, to_mr_), nccl::kSuccess);
  EXPECT_EQ(flush(10, nullptr), nccl::kSuccess);
  EXPECT_EQ(flushes(), before.counts.flushes + 1) << "nothing arrived there";
  expect_nothing_made(before);
}

TEST_F(StagedFlush, what_was_copied_or_is_ordered_needs_none) {
  allow_dmabuf(true);
  for (const auto how : {cuda::RemoteWrites::never, cuda::RemoteWrites::ordered}) {
    see_remote_writes(how);
    connect();
    const Seen before;
    exchange(pattern(3000, 1), 5, 6);
    EXPECT_EQ(flush(3000, to_mr_), nccl::kSuccess);
    EXPECT_EQ(flushes(), before.counts.flushes);
    disconnect();
  }
}

TEST_F(StagedFlush, an_error_of_it_ends_the_connection) {
  allow_dmabuf(true);
  see_remote_writes(cuda::RemoteWrites::flushed);
  connect();
  fail_calls(FakeCall::flush, 700);
  EXPECT_NE(flush(3000, to_mr_), nccl::kSuccess);
  fail_calls(FakeCall::flush, 0);
  EXPECT_NE(flush(3000, to_mr_), nccl::kSuccess) << "for ever";
  void* place = to_.at();
  void* request = nullptr;
  const size_t bytes = 100;
  EXPECT_NE(net().irecv(recv_, 1, &place, &bytes, nullptr, &to_mr_, &request), nccl::kSuccess);
}

// The buffers go while messages are under way: as when NCCL aborts.
TEST_F(StagedDirect, buffers_go_before_their_messages) {
  allow_dmabuf(true);
  see_remote_writes(cuda::RemoteWrites::ordered);
  for (const bool held : {false, true}) {
    connect();
    hold_copies(held);
    void* const receiving = irecv(0, 200'000);
    void* const sending = isend(0, 200'000);
    ASSERT_TRUE(receiving != nullptr && sending != nullptr);
    int done = 0;
    (void)net().test(sending, &done, nullptr);
    (void)net().test(receiving, &done, nullptr);
    std::thread lets_go([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      hold_copies(false);
    });
    disconnect();
    lets_go.join();
  }
}

}  // namespace
}  // namespace prunex::test
