// SPDX-License-Identifier: Apache-2.0
// The pinned memory that messages of device memory share: as long as a connection needs, whatever
// is registered; and who has none waits, allocating nothing.
#include <gtest/gtest.h>

#include <memory>

#include "tests/allocated/allocated.h"
#include "tests/device/staged_mask.h"

namespace prunex::test {
namespace {

class StagedRoom : public StagedKernels {
 protected:
  using StagedKernels::StagedKernels;

  // What NCCL's progress thread calls, at both ends: it must not allocate.
  void ask_all(std::vector<Message>& all, int rounds) {
    const size_t before = allocations();
    for (int i = 0; i < rounds; ++i) {
      for (Message& m : all) {
        const bool receives = m.receiving != nullptr || receive(m);
        const bool sends = m.sending != nullptr || send(m);
        (void)m.test();
        if (!receives || !sends) {
          break;  // asked again in the next round
        }
      }
    }
    if (counts()) {
      EXPECT_EQ(allocations(), before) << "the progress thread allocated";
    }
  }
  // The fake RDMA device's own allocations cannot be told from others here; that RDMA has none of
  // its own is tests/transport/verbs_quiet_test.cc's matter.
  static bool counts() { return std::getenv("FAKE_IBVERBS") == nullptr; }
  static bool are_done(const std::vector<Message>& all) {
    return std::all_of(all.begin(), all.end(),
                       [](const Message& m) { return m.sent != 0 && m.received != 0; });
  }
  // All of them, however long it takes.
  void ask_until_done(std::vector<Message>& all) {
    wait_for([&] {
      ask_all(all, 1);
      return are_done(all);
    });
    for (const Message& m : all) {
      EXPECT_EQ(m.size, static_cast<int>(m.bytes));
    }
  }
  void fill_up_and_finish(const std::vector<Bytes>& data, const std::vector<size_t>& places) {
    std::vector<Message> all;
    for (size_t i = 0; i < data.size(); ++i) {
      std::copy(data[i].begin(), data[i].end(), from_.at(places[i]));
      all.push_back({places[i], places[i], data[i].size(), data[i].size()});
    }
    const Seen before;
    hold_copies(true);
    ask_all(all, 300);
    EXPECT_FALSE(are_done(all));
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const Message& m) {
      return m.receiving == nullptr;
    })) << "there was room for everything: this tests nothing";
    hold_copies(false);
    ask_until_done(all);
    for (size_t i = 0; i < data.size(); ++i) {
      EXPECT_TRUE(to_.holds(data[i], places[i])) << "message " << i;
    }
    expect_nothing_made(before);
  }
};

TEST_F(StagedRoom, full_of_all_kinds_of_messages) {
#ifndef PRUNEX_SANITIZED
  ASSERT_TRUE(counts_allocations());
#endif
  connect();
  Rng rng(1);
  constexpr size_t kEach = 200'000;
  std::vector<std::unique_ptr<StagedMask>> masks;
  std::vector<Bytes> data;
  std::vector<size_t> places;
  for (uint32_t i = 0; i < 20; ++i) {
    const size_t place = i * kEach;
    if (i % 3 == 0) {
      masks.push_back(
          std::make_unique<StagedMask>(from_.at(place), PRUNEX_FLOAT32, 4, 200, 250, 0.5, rng));
      data.push_back(masks.back()->data(0, kEach, i));
    } else {
      data.push_back(pattern(kEach - i, i, i % 3 == 1));
    }
    places.push_back(place);
  }
  data[3][5] = std::byte{9};  // one breaks its mask's promise, which is warned of once
  exchange(data[3], places[3], places[3]);
  fill_up_and_finish(data, places);
}

TEST_F(StagedRoom, full_without_a_plan) {
  connect();
  Rng rng(2);
  constexpr size_t kEach = 200'000;
  std::vector<std::unique_ptr<StagedMask>> masks;
  std::vector<Bytes> data;
  std::vector<size_t> places;
  for (uint32_t i = 0; i < 20; ++i) {
    fail_next_plan();
    masks.push_back(
        std::make_unique<StagedMask>(from_.at(i * kEach), PRUNEX_FLOAT32, 4, 200, 250, 0.5, rng));
    data.push_back(masks.back()->data(0, kEach, i));
    places.push_back(i * kEach);
  }
  fill_up_and_finish(data, places);
}

class StagedRoomTwoDevices : public StagedRoom {
 protected:
  StagedRoomTwoDevices() : StagedRoom(1) {}
};

// The receiver's host expands, one frame at a time.
TEST_F(StagedRoomTwoDevices, full_at_a_receiver_without_plans) {
  connect();
  Rng rng(3);
  constexpr size_t kEach = 1'200'000;  // two frames
  std::vector<std::unique_ptr<StagedMask>> masks;
  std::vector<Bytes> data;
  std::vector<size_t> places;
  for (uint32_t i = 0; i < 12; ++i) {
    const size_t place = i % 3 * kEach;
    if (i < 3) {
      masks.push_back(
          std::make_unique<StagedMask>(from_.at(place), PRUNEX_FLOAT32, 4, 300, 1000, 0.5, rng));
    }
    data.push_back(masks[i % 3]->data(0, kEach, i % 3));
    places.push_back(place);
  }
  const Seen before;
  fill_up_and_finish(data, places);
  EXPECT_EQ(fake_kernels().unpacks, before.kernels.unpacks);
  EXPECT_EQ(sent(nccl::WireKind::masked, before), 12u);
}

// NCCL registers pools of hundreds of megabytes on every connection.
TEST_F(StagedRoom, pinned_memory_does_not_grow_with_what_is_registered) {
  ASSERT_NO_FATAL_FAILURE(join());
  const DeviceBuffer pool(size_t{64} << 20);
  const uint64_t before = pinned_bytes();
  void *send_mr = nullptr, *recv_mr = nullptr;
  ASSERT_EQ(net().reg_mr(send_, pool.at(), pool.size(), nccl::kPtrCuda, &send_mr), nccl::kSuccess);
  ASSERT_EQ(net().reg_mr(recv_, pool.at(), pool.size(), nccl::kPtrCuda, &recv_mr), nccl::kSuccess);
  EXPECT_LE(pinned_bytes() - before, uint64_t{13} << 20) << "of both ends";
  const uint64_t with_one = pinned_bytes();
  ASSERT_EQ(net().reg_mr(send_, from_.at(), from_.size(), nccl::kPtrCuda, &from_mr_),
            nccl::kSuccess);
  ASSERT_EQ(net().reg_mr(recv_, to_.at(), to_.size(), nccl::kPtrCuda, &to_mr_), nccl::kSuccess);
  EXPECT_EQ(pinned_bytes(), with_one);
  exchange(pattern(300'000, 1), 0, 0);
  EXPECT_EQ(net().dereg_mr(send_, send_mr), nccl::kSuccess);
  EXPECT_EQ(net().dereg_mr(recv_, recv_mr), nccl::kSuccess);
}

// What could come as one message that does not fit is not registered: NCCL copies it through its
// own buffer then, which is.
TEST_F(StagedRoom, a_users_long_buffer_is_left_to_nccl) {
  connect();  // of NCCL's own length
  const DeviceBuffer tensor(kRoom + 1);
  for (void* const comm : {send_, recv_}) {
    void* mr = this;
    EXPECT_NE(net().reg_mr(comm, tensor.at(), tensor.size(), nccl::kPtrCuda, &mr), nccl::kSuccess);
    EXPECT_EQ(mr, nullptr);
    EXPECT_EQ(net().reg_mr(comm, tensor.at(), kRoom, nccl::kPtrCuda, &mr), nccl::kSuccess);
    EXPECT_EQ(net().dereg_mr(comm, mr), nccl::kSuccess);
  }
  exchange(pattern(300'000, 1), 0, 0);
}

// Of NCCL's pool come short messages; should a long one come, it is an error that says so, and the
// connection goes on.
TEST_F(StagedRoom, a_message_that_never_fits) {
  ASSERT_NO_FATAL_FAILURE(join());
  const DeviceBuffer pool(size_t{16} << 20);
  ASSERT_EQ(net().reg_mr(send_, pool.at(), pool.size(), nccl::kPtrCuda, &from_mr_), nccl::kSuccess);
  ASSERT_EQ(net().reg_mr(recv_, pool.at(), pool.size(), nccl::kPtrCuda, &to_mr_), nccl::kSuccess);
  void *request = this, *place = pool.at();
  const size_t bytes = kRoom + 1;
  EXPECT_NE(net().isend(send_, pool.at(), bytes, 0, from_mr_, &request), nccl::kSuccess);
  EXPECT_EQ(request, nullptr);
  request = this;
  EXPECT_NE(net().irecv(recv_, 1, &place, &bytes, nullptr, &to_mr_, &request), nccl::kSuccess);
  EXPECT_EQ(request, nullptr);
  const Bytes data = pattern(kRoom, 3);
  std::copy(data.begin(), data.end(), pool.at());
  void* second = pool.at(size_t{8} << 20);
  ASSERT_EQ(net().irecv(recv_, 1, &second, &kRoom, nullptr, &to_mr_, &place), nccl::kSuccess);
  ASSERT_EQ(net().isend(send_, pool.at(), kRoom, 0, from_mr_, &request), nccl::kSuccess);
  ASSERT_EQ(finish(request, place), static_cast<int>(kRoom));
  EXPECT_TRUE(pool.holds(data, size_t{8} << 20));
}

TEST_F(StagedRoom, a_buffer_that_goes_before_its_message) {
  connect();
  hold_copies(true);
  void* const receiving = irecv(0, 100'000);
  std::vector<void*> sends;
  for (int i = 0; i < 3; ++i) {
    sends.push_back(isend(0, 100'000));
    ASSERT_NE(sends.back(), nullptr);
  }
  hold_copies(false);
  EXPECT_EQ(net().dereg_mr(send_, from_mr_), nccl::kSuccess);
  int done = 0;
  EXPECT_NE(net().test(sends.back(), &done, nullptr), nccl::kSuccess) << "its bytes may be others'";
  EXPECT_NE(net().test(sends.back(), &done, nullptr), nccl::kSuccess) << "for ever";
  EXPECT_EQ(net().dereg_mr(recv_, to_mr_), nccl::kSuccess);
  ASSERT_NE(receiving, nullptr);
  EXPECT_EQ(net().close_send(send_), nccl::kSuccess);
  EXPECT_EQ(net().close_recv(recv_), nccl::kSuccess);
  EXPECT_EQ(net().close_listen(listen_), nccl::kSuccess);
  EXPECT_EQ(net().finalize(ctx_), nccl::kSuccess);
  send_ = nullptr;
}

}  // namespace
}  // namespace prunex::test
