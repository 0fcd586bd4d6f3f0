// SPDX-License-Identifier: Apache-2.0
// Two ends of a connection that moves device memory, over the stand-in for the CUDA library.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/device/backend.h"
#include "plugin/nccl/net_calls.h"
#include "plugin/nccl/stats.h"
#include "prunex/prunex.h"
#include "tests/device/fake_cuda.h"

namespace prunex::test {

using Bytes = std::vector<std::byte>;
inline const nccl::NetCalls& net() { return nccl::net_calls(); }

inline Bytes pattern(size_t bytes, uint32_t seed, bool sparse = false) {
  Bytes out(bytes);
  uint32_t x = seed * 2654435761U + 1;
  for (size_t i = 0; i < bytes; ++i) {
    x = x * 1664525 + 1013904223;
    out[i] = sparse && (i / 256) % 2 == 1 ? std::byte{0} : static_cast<std::byte>(x >> 24 | 1);
  }
  return out;
}

inline void wait_for(const std::function<bool()>& done) {
  const Deadline deadline = Deadline::after(60);
  while (!done()) {
    ASSERT_FALSE(deadline.passed()) << "nothing happened for a minute";
  }
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes, int device = 0)
      : data_(on_device(bytes, device)), bytes_(bytes) {
    std::memset(data_, 0xEE, bytes);
  }
  ~DeviceBuffer() { free_device_memory(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  [[nodiscard]] std::byte* at(size_t offset = 0) const { return data_ + offset; }
  [[nodiscard]] size_t size() const { return bytes_; }
  [[nodiscard]] bool holds(const Bytes& what, size_t offset) const {
    return std::equal(what.begin(), what.end(), data_ + offset);
  }

 private:
  static std::byte* on_device(size_t bytes, int device) {
    int before = 0;
    (void)fake_cuda().get_device(&before);
    (void)fake_cuda().set_device(device);
    std::byte* const memory = device_memory(bytes);
    (void)fake_cuda().set_device(before);
    return memory;
  }
  std::byte* data_;
  size_t bytes_;
};

class StagedNet : public testing::Test {
 protected:
  static constexpr size_t kRoom = size_t{4} << 20;
  explicit StagedNet(int recv_device = 0) : to_(kRoom, recv_device) {}

  void SetUp() override {
    ::setenv("PRUNEX_STAGED_GPU", "1", 1);
    ::setenv("NCCL_PROTO", "simple", 1);
    ::setenv("PRUNEX_SOCKET_IFNAME", "lo", 1);
    device::replace_backend(&fake_cuda(), nullptr);
    before_ = fake_counts();
  }
  void TearDown() override {
    hold_copies(false);
    allow_dmabuf(false);
    see_remote_writes(cuda::RemoteWrites::never);
    for (size_t call = 0; call < kFakeCalls; ++call) {
      fail_calls(static_cast<FakeCall>(call), 0);
    }
    if (send_ != nullptr) {
      disconnect();
    }
    EXPECT_EQ(fake_counts().allocations, before_.allocations) << "something was left behind";
    device::replace_backend(nullptr, nullptr);
    ::unsetenv("PRUNEX_STAGED_GPU");
    ::unsetenv("NCCL_PROTO");
  }

  // Both ends, with nothing registered.
  void join() {
    ASSERT_EQ(net().init(&ctx_, 1, -1, nullptr), nccl::kSuccess);
    std::byte handle[nccl::kHandleBytes] = {};
    ASSERT_EQ(net().listen(ctx_, 0, handle, &listen_), nccl::kSuccess);
    wait_for([&] {
      EXPECT_TRUE(send_ != nullptr || net().connect(ctx_, 0, handle, &send_) == nccl::kSuccess);
      EXPECT_TRUE(recv_ != nullptr || net().accept(listen_, &recv_) == nccl::kSuccess);
      return (send_ != nullptr && recv_ != nullptr) || HasFailure();  // told once
    });
    ASSERT_TRUE(send_ != nullptr && recv_ != nullptr);
  }
  void connect(int send_type = nccl::kPtrCuda, int recv_type = nccl::kPtrCuda) {
    ASSERT_NO_FATAL_FAILURE(join());
    ASSERT_EQ(net().reg_mr(send_, from_.at(), from_.size(), send_type, &from_mr_), nccl::kSuccess);
    ASSERT_EQ(net().reg_mr(recv_, to_.at(), to_.size(), recv_type, &to_mr_), nccl::kSuccess);
  }
  void disconnect() {
    EXPECT_EQ(net().dereg_mr(send_, from_mr_), nccl::kSuccess);
    EXPECT_EQ(net().dereg_mr(recv_, to_mr_), nccl::kSuccess);
    EXPECT_EQ(net().close_send(send_), nccl::kSuccess);
    EXPECT_EQ(net().close_recv(recv_), nccl::kSuccess);
    EXPECT_EQ(net().close_listen(listen_), nccl::kSuccess);
    EXPECT_EQ(net().finalize(ctx_), nccl::kSuccess);
    send_ = recv_ = nullptr;
  }

  void* isend(size_t offset, size_t bytes) {
    void* request = nullptr;
    EXPECT_EQ(net().isend(send_, from_.at(offset), bytes, 0, from_mr_, &request), nccl::kSuccess);
    return request;
  }
  void* irecv(size_t offset, size_t bytes) {
    void *request = nullptr, *place = to_.at(offset);
    int tag = 0;
    EXPECT_EQ(net().irecv(recv_, 1, &place, &bytes, &tag, &to_mr_, &request), nccl::kSuccess);
    return request;
  }
  // While nothing is written to the receiver's memory. Both are asked: some networks need both.
  void sent_but_not_received(void* sending, void* receiving) {
    int sent = 0, received = 0;
    wait_for([&] {
      EXPECT_EQ(net().test(receiving, &received, nullptr), nccl::kSuccess);
      EXPECT_EQ(received, 0) << "done before it is there";
      EXPECT_TRUE(sent != 0 || net().test(sending, &sent, nullptr) == nccl::kSuccess);
      return sent != 0 || HasFailure();
    });
    for (int i = 0; i < 1000 && !HasFailure(); ++i) {
      ASSERT_EQ(net().test(receiving, &received, nullptr), nccl::kSuccess);
      ASSERT_EQ(received, 0) << "done before it is there";
      ASSERT_EQ(*to_.at(), std::byte{0xEE});
    }
  }
  // The received size.
  int finish(void* sending, void* receiving) {
    int sent = 0, received = 0, size = -1;
    wait_for([&] {
      EXPECT_TRUE(sent != 0 || net().test(sending, &sent, nullptr) == nccl::kSuccess);
      EXPECT_TRUE(received != 0 || net().test(receiving, &received, &size) == nccl::kSuccess);
      return sent != 0 && received != 0;
    });
    return size;
  }
  void exchange(const Bytes& data, size_t from, size_t to, size_t room = 0) {
    std::copy(data.begin(), data.end(), static_cast<std::byte*>(from_.at(from)));
    std::memset(to_.at(), 0xEE, to_.size());
    void* const receiving = irecv(to, std::max(room, data.size()));
    ASSERT_NE(receiving, nullptr);
    ASSERT_EQ(finish(isend(from, data.size()), receiving), static_cast<int>(data.size()));
    EXPECT_TRUE(to_.holds(data, to)) << data.size() << " bytes";
    EXPECT_EQ(*to_.at(to + data.size()), std::byte{0xEE}) << "written behind the message";
  }
  struct Message {
    size_t from, to, bytes, room;
    void *sending = nullptr, *receiving = nullptr;
    int sent = 0, received = 0, size = -1;
    // false: nothing happened.
    bool test() {
      const int before = sent + received;
      if (sending != nullptr && sent == 0) {
        EXPECT_EQ(net().test(sending, &sent, nullptr), nccl::kSuccess);
      }
      if (receiving != nullptr && received == 0) {
        EXPECT_EQ(net().test(receiving, &received, &size), nccl::kSuccess);
      }
      return sent + received > before;
    }
  };
  // As NCCL does it: as many under way as are taken, the others asked for again. How many receives
  // were not taken at first.
  size_t exchange_all(std::vector<Message> all) {
    size_t receives = 0, sends = 0, refused = 0;
    const void* refused_one = nullptr;
    const Deadline deadline = Deadline::after(60);
    const auto is_done = [](const Message& m) { return m.sent != 0 && m.received != 0; };
    while (!std::all_of(all.begin(), all.end(), is_done) && !testing::Test::HasFailure()) {
      while (receives < all.size() && receive(all[receives])) {
        ++receives;
      }
      if (receives < all.size() && refused_one != &all[receives]) {
        refused_one = &all[receives];
        ++refused;
      }
      while (sends < all.size() && send(all[sends])) {
        ++sends;
      }
      for (Message& m : all) {
        (void)m.test();
      }
      if (deadline.passed()) {
        ADD_FAILURE() << sends << " sends and " << receives << " receives were taken in a minute";
      }
    }
    for (const Message& m : all) {
      EXPECT_EQ(m.size, static_cast<int>(m.bytes));
    }
    return refused;
  }
  bool receive(Message& m) { return (m.receiving = irecv(m.to, m.room)) != nullptr; }
  bool send(Message& m) { return (m.sending = isend(m.from, m.bytes)) != nullptr; }

  // Rounds of as many messages as may be under way, long and short, dense and not.
  void many_in_flight(uint32_t rounds) {
    constexpr size_t kEach = 100'000;
    for (uint32_t round = 0; round < rounds; ++round) {
      std::vector<Bytes> data;
      std::vector<Message> all;
      for (uint32_t i = 0; i < nccl::kMaxRequests; ++i) {
        data.push_back(pattern(i % 3 == 0 ? 64 : kEach, round * 100 + i, i % 2 == 0));
        std::copy(data[i].begin(), data[i].end(), from_.at(i * kEach));
        all.push_back({i * kEach, i * kEach, data[i].size(), kEach});
      }
      (void)exchange_all(all);
      for (size_t i = 0; i < data.size(); ++i) {
        ASSERT_TRUE(to_.holds(data[i], i * kEach)) << "message " << i;
      }
    }
  }

  FakeCounts before_;
  DeviceBuffer from_{kRoom}, to_;
  void *ctx_ = nullptr, *listen_ = nullptr, *send_ = nullptr, *recv_ = nullptr;
  void *from_mr_ = nullptr, *to_mr_ = nullptr;
};

}  // namespace prunex::test
