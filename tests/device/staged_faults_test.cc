// SPDX-License-Identifier: Apache-2.0
// Messages of device memory when something is missing or fails, and the pinned memory they share.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "plugin/nccl/net/staging_ring.h"
#include "tests/device/staged_mask.h"

namespace prunex::test {
namespace {

using nccl::StagingRing;

// Without a plan what the mask drops leaves as blocks of zeros, or not at all.
TEST_F(StagedKernels, no_memory_for_a_plan) {
  connect();
  Rng rng(11);
  fail_next_plan();
  StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 128, 256, 0.5, rng);
  const Seen before;
  exchange(mask.data(0, mask.bytes(), 1), 0, 0);
  EXPECT_EQ(sent(nccl::WireKind::masked, before), 0u);
  EXPECT_EQ(sent(nccl::WireKind::zero_block, before), 1u) << "rows of 8 blocks";
  expect_ways(before, 1, 1, 0);
  expect_nothing_made(before);
  exchange(pattern(mask.bytes(), 1), 0, 0);
  EXPECT_EQ(mask.violations(), 0u) << "nobody looked";
}

class StagedTwoDevices : public StagedKernels {
 protected:
  StagedTwoDevices() : StagedKernels(1) {}
};

// The receiver's device has no plan of a mask that is registered for another device's tensor.
TEST_F(StagedTwoDevices, a_receiver_without_the_plan) {
  connect();
  Rng rng(12);
  StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 300, 1000, 0.5, rng);
  const Seen before;
  exchange(mask.data(0, mask.bytes(), 1), 0, 12);
  expect_ways(before, 1, 0, 1);
  EXPECT_GT(fake_kernels().packs, before.kernels.packs);
  EXPECT_EQ(fake_kernels().unpacks, before.kernels.unpacks);
  exchange(pattern(100'000, 3, true), size_t{2} << 20, 7);  // zero blocks need none
  EXPECT_EQ(fake_kernels().block_unpacks, before.kernels.block_unpacks + 1);
}

class StagedErrors : public StagedKernels {
 protected:
  // Asks both ends until the one whose calls fail says so, or both are done; its last answer.
  int ask_both(FakeCall call, bool receiver, Message& m) {
    int status = nccl::kSuccess;
    wait_for([&] {
      for (const bool receiving : {false, true}) {
        int& done = receiving ? m.received : m.sent;
        void* const request = receiving ? m.receiving : m.sending;
        fail_calls(call, receiving == receiver ? 700 : 0);
        const int answer =
            done != 0 ? nccl::kSuccess : net().test(request, &done, receiving ? &m.size : nullptr);
        fail_calls(call, 0);
        if (receiving == receiver) {
          status = answer;
        } else {
          EXPECT_EQ(answer, nccl::kSuccess);
        }
      }
      return status != nccl::kSuccess || (m.sent != 0 && m.received != 0) || HasFailure();
    });
    return status;
  }
  void fails_at(FakeCall call, bool receiver, bool masked) {
    connect();
    Rng rng(13);
    StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 128, 256, 0.5, rng);
    const Bytes data = masked ? mask.data(0, mask.bytes(), 1) : pattern(mask.bytes(), 1, true);
    const size_t from = masked ? 0 : size_t{1} << 20;
    std::copy(data.begin(), data.end(), from_.at(from));
    Message m{from, 0, data.size(), data.size()};
    ASSERT_TRUE(receive(m));
    hold_copies(true);
    fail_calls(call, receiver ? 0 : 700);
    int status = net().isend(send_, from_.at(from), data.size(), 0, from_mr_, &m.sending);
    fail_calls(call, 0);
    hold_copies(false);
    status = status == nccl::kSuccess ? ask_both(call, receiver, m) : status;
    const bool called = !masked || call != FakeCall::copy;  // masks take kernels alone
    EXPECT_EQ(status != nccl::kSuccess, called);
    int done = 0;
    void* const request = receiver ? m.receiving : m.sending;
    EXPECT_TRUE(!called || request == nullptr ||
                net().test(request, &done, nullptr) != nccl::kSuccess)
        << "for ever";
    disconnect();
  }
};

// Every call that may fail on the data path, at either end: an error for ever, never a hang.
TEST_F(StagedErrors, errors_of_the_device_end_the_connection) {
  for (const FakeCall call :
       {FakeCall::launch, FakeCall::copy, FakeCall::event_record, FakeCall::event_done}) {
    for (const bool receiver : {false, true}) {
      for (const bool masked : {false, true}) {
        fails_at(call, receiver, masked);
        ASSERT_FALSE(HasFailure())
            << "call " << static_cast<int>(call) << (receiver ? ", receiver" : ", sender")
            << (masked ? ", masked" : ", blocks");
      }
    }
  }
}

TEST_F(StagedKernels, registering_fails_cleanly) {
  connect();
  const DeviceBuffer more(100'000);
  void* mr = nullptr;
  for (const FakeCall call : {FakeCall::allocate, FakeCall::allocate_pinned}) {
    disconnect();
    fail_calls(call, 2);
    ASSERT_NO_FATAL_FAILURE(join());
    EXPECT_NE(net().reg_mr(send_, more.at(), more.size(), nccl::kPtrCuda, &mr), nccl::kSuccess);
    EXPECT_EQ(mr, nullptr);
    fail_calls(call, 0);
    ASSERT_EQ(net().reg_mr(send_, from_.at(), from_.size(), nccl::kPtrCuda, &from_mr_),
              nccl::kSuccess)
        << "it works once there is memory";
    ASSERT_EQ(net().reg_mr(recv_, to_.at(), to_.size(), nccl::kPtrCuda, &to_mr_), nccl::kSuccess);
    exchange(pattern(50'000, 1, true), 0, 0);
  }
}

// A trainer registers masks while NCCL's thread moves messages.
TEST_F(StagedKernels, masks_registered_by_another_thread) {
  connect();
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    Rng rng(14);
    while (!stop) {
      StagedMask mask(from_.at(size_t{3} << 20), PRUNEX_FLOAT32, 4, 64, 256, 0.5, rng);
      mask.update(0.5, rng);
    }
  });
  Rng rng(15);
  StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 128, 256, 0.5, rng);
  for (uint32_t i = 0; i < 100; ++i) {
    exchange(mask.data(0, mask.bytes(), i), 0, 0);
  }
  stop = true;
  trainer.join();
}

TEST(StagingRing, pieces_never_overlap_and_room_comes_back) {
  Rng rng(16);
  StagingRing ring(100'000);
  struct Taken {
    size_t at, bytes;
  };
  std::vector<Taken> taken;
  int refused = 0;
  for (int step = 0; step < 200'000; ++step) {
    if (below(rng, 2) == 0) {
      const size_t bytes = 1 + below(rng, below(rng, 20) == 0 ? 99'000 : 9000);
      const auto at = ring.take(bytes);
      if (!at) {
        ++refused;
        continue;
      }
      ASSERT_EQ(*at % StagingRing::kAlign, 0u);
      ASSERT_LE(*at + bytes, ring.bytes());
      for (const Taken& other : taken) {
        ASSERT_TRUE(*at + bytes <= other.at || other.at + other.bytes <= *at) << "step " << step;
      }
      taken.push_back({*at, bytes});
    } else if (!taken.empty()) {
      const size_t which = below(rng, 4) == 0 ? below(rng, taken.size()) : 0;
      ring.give(taken[which].at);
      taken.erase(taken.begin() + static_cast<ptrdiff_t>(which));
    }
  }
  EXPECT_GT(refused, 1000);
  for (const Taken& left : taken) {
    ring.give(left.at);
  }
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.take(ring.bytes()), 0u) << "all of it, when nothing is taken";
  EXPECT_FALSE(ring.take(1));
}

}  // namespace
}  // namespace prunex::test
