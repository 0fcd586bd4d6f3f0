// SPDX-License-Identifier: Apache-2.0
// Messages of device memory as they come: any length, place and content, some of host memory, while
// the device is now fast, now slow; and ends that go away in the middle of it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/device/staged_mask.h"

namespace prunex::test {
namespace {

// Stops and lets go what the device does, now and then.
class Unsteady {
 public:
  Unsteady() : thread_([this] { run(); }) {}
  ~Unsteady() {
    stop_ = true;
    thread_.join();
    hold_copies(false);
  }
  Unsteady(const Unsteady&) = delete;
  Unsteady& operator=(const Unsteady&) = delete;

 private:
  void run() {
    for (uint32_t i = 0; !stop_; ++i) {
      hold_copies(i % 2 == 0);
      std::this_thread::sleep_for(std::chrono::microseconds(i % 7 * 100));
    }
  }
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class StagedTraffic : public StagedKernels {
 protected:
  static size_t random_size(Rng& rng) {
    constexpr size_t kEdges[] = {0, 1, 63, 64, 127, 128, 4095, 4096, 4097, 65536, 65537, 131072};
    switch (below(rng, 4)) {
      case 0:
        return kEdges[below(rng, 12)];
      case 1:
        return below(rng, 5000);
      case 2:
        return below(rng, 200'000);
      default:
        return below(rng, 20) == 0 ? below(rng, size_t{2} << 20) : below(rng, 50'000);
    }
  }
  // As many as the buffers hold, each in a place of its own.
  void batch(Rng& rng, const StagedMask& mask) {
    std::vector<Message> all;
    std::vector<Bytes> data;
    size_t from = mask.bytes() + 13, to = 0;
    while (all.size() < 60) {
      const size_t bytes = random_size(rng), room = bytes + below(rng, 3) * 100;
      const bool masked = below(rng, 4) == 0 && bytes <= mask.bytes();
      const size_t place = masked ? below(rng, (mask.bytes() - bytes) / 4 + 1) * 4 : from;
      if (to + room + 1 > to_.size() || from + bytes > from_.size()) {
        break;
      }
      const auto seed = static_cast<uint32_t>(below(rng, 1000));
      data.push_back(masked ? masked_data(mask, place, bytes)
                            : pattern(bytes, seed, seed % 2 == 0));
      std::copy(data.back().begin(), data.back().end(), from_.at(place));
      all.push_back({place, to, bytes, room});
      to += room + 1 + below(rng, 30);
      from += masked ? 0 : bytes + below(rng, 30);
    }
    std::memset(to_.at(), 0xEE, to_.size());
    (void)exchange_all(all);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(to_.holds(data[i], all[i].to)) << "message " << i << " of " << all[i].bytes;
      ASSERT_EQ(*to_.at(all[i].to + all[i].bytes), std::byte{0xEE}) << "written behind " << i;
    }
  }
  // What lies in the tensor by now: messages of one batch overlap there.
  Bytes masked_data(const StagedMask& mask, size_t offset, size_t bytes) {
    if (!tensor_is_there_) {
      const Bytes all = mask.data(0, mask.bytes(), 77);
      std::copy(all.begin(), all.end(), from_.at());
      tensor_is_there_ = true;
    }
    return Bytes(from_.at(offset), from_.at(offset + bytes));
  }
  bool tensor_is_there_ = false;
};

TEST_F(StagedTraffic, anything_at_any_speed) {
  Rng rng(1);
  for (const bool dmabuf : {false, true}) {
    for (const auto seen : {cuda::RemoteWrites::never, cuda::RemoteWrites::flushed}) {
      allow_dmabuf(dmabuf);
      see_remote_writes(seen);
      connect();
      StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 500, 200, 0.5, rng);
      tensor_is_there_ = false;
      const Unsteady unsteady;
      for (int round = 0; round < 12 && !HasFatalFailure(); ++round) {
        batch(rng, mask);
      }
      ASSERT_FALSE(HasFailure()) << "dmabuf " << dmabuf;
      disconnect();
    }
  }
}

TEST_F(StagedTraffic, one_end_of_host_memory_at_any_speed) {
  Rng rng(2);
  for (const bool host_sends : {false, true}) {
    connect(host_sends ? nccl::kPtrHost : nccl::kPtrCuda,
            host_sends ? nccl::kPtrCuda : nccl::kPtrHost);
    StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 500, 200, 0.5, rng);
    tensor_is_there_ = false;
    const Unsteady unsteady;
    for (int round = 0; round < 10 && !HasFatalFailure(); ++round) {
      batch(rng, mask);
    }
    ASSERT_FALSE(HasFailure()) << "host sends " << host_sends;
    disconnect();
  }
}

class StagedEnds : public StagedTraffic {
 protected:
  // Of both kinds of messages, with kernels that do not end yet.
  std::vector<Message> begin_some() {
    hold_copies(true);
    std::vector<Message> all;
    for (uint32_t i = 0; i < 6; ++i) {
      const Bytes data = pattern(100'000, i, i % 2 == 0);
      std::copy(data.begin(), data.end(), from_.at(i * 100'000));
      all.push_back({i * 100'000, i * 100'000, data.size(), data.size()});
      EXPECT_TRUE(receive(all.back()) && send(all.back()));
      (void)all.back().test();
    }
    return all;
  }
  static std::thread let_go_soon() {
    return std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      hold_copies(false);
    });
  }
};

// NCCL aborts while a kernel packs or expands: closing waits for the kernels, and for nothing else.
TEST_F(StagedEnds, close_under_way) {
  for (const bool sender_first : {false, true}) {
    connect();
    (void)begin_some();
    std::thread soon = let_go_soon();
    if (sender_first) {
      EXPECT_EQ(net().close_send(send_), nccl::kSuccess);
      EXPECT_EQ(net().close_recv(recv_), nccl::kSuccess);
    } else {
      EXPECT_EQ(net().close_recv(recv_), nccl::kSuccess);
      EXPECT_EQ(net().close_send(send_), nccl::kSuccess);
    }
    soon.join();
    EXPECT_EQ(net().dereg_mr(send_, from_mr_), nccl::kSuccess) << "the buffers later";
    EXPECT_EQ(net().dereg_mr(recv_, to_mr_), nccl::kSuccess);
    EXPECT_EQ(net().close_listen(listen_), nccl::kSuccess);
    EXPECT_EQ(net().finalize(ctx_), nccl::kSuccess);
    send_ = recv_ = nullptr;
  }
}

// The peer goes with messages half way: an error, and what is done before it is there.
TEST_F(StagedEnds, the_sender_is_gone) {
  connect();
  std::vector<Message> all = begin_some();
  std::thread soon = let_go_soon();
  soon.join();
  EXPECT_EQ(net().dereg_mr(send_, from_mr_), nccl::kSuccess);
  EXPECT_EQ(net().close_send(send_), nccl::kSuccess);
  int status = nccl::kSuccess;
  wait_for([&] {
    status = nccl::kSuccess;
    for (Message& m : all) {
      if (m.received == 0 && status == nccl::kSuccess) {
        status = net().test(m.receiving, &m.received, &m.size);
      }
    }
    return status != nccl::kSuccess || std::all_of(all.begin(), all.end(), [](const Message& m) {
             return m.received != 0;  // all were on their way
           });
  });
  for (const Message& m : all) {
    if (m.received != 0) {
      EXPECT_TRUE(to_.holds(Bytes(from_.at(m.from), from_.at(m.from + m.bytes)), m.to));
    }
  }
  EXPECT_EQ(net().dereg_mr(recv_, to_mr_), nccl::kSuccess);
  EXPECT_EQ(net().close_recv(recv_), nccl::kSuccess);
  EXPECT_EQ(net().close_listen(listen_), nccl::kSuccess);
  EXPECT_EQ(net().finalize(ctx_), nccl::kSuccess);
  send_ = recv_ = nullptr;
}

}  // namespace
}  // namespace prunex::test
