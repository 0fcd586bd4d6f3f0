// SPDX-License-Identifier: Apache-2.0
// Device memory through the plugin's network: the Net table as NCCL drives it, over the stand-in
// for the CUDA library.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/device/staged_net.h"

namespace prunex::test {
namespace {

TEST_F(StagedNet, claims_device_pointers_only_when_asked) {
  for (const char* const staged : {"0", "1"}) {
    ::setenv("PRUNEX_STAGED_GPU", staged, 1);
    ASSERT_EQ(net().init(&ctx_, 1, -1, nullptr), nccl::kSuccess);
    nccl::NetProperties p{};
    ASSERT_EQ(net().properties(0, &p), nccl::kSuccess);
    EXPECT_EQ(p.ptr_support, staged[0] == '1' ? nccl::kPtrHost | nccl::kPtrCuda : nccl::kPtrHost);
    EXPECT_EQ(net().finalize(ctx_), nccl::kSuccess);
  }
}

TEST_F(StagedNet, starts_with_the_simple_protocol_only) {
  for (const char* const proto : {"", "LL", "LL128", "^LL", "LL,Simple", "Simple,LL128"}) {
    ::setenv("NCCL_PROTO", proto, 1);
    EXPECT_NE(net().init(&ctx_, 1, -1, nullptr), nccl::kSuccess) << proto;
  }
  ::setenv("NCCL_PROTO", "SIMPLE", 1);
  ASSERT_EQ(net().init(&ctx_, 1, -1, nullptr), nccl::kSuccess);
  EXPECT_EQ(net().finalize(ctx_), nccl::kSuccess);
}

TEST_F(StagedNet, messages_of_all_sizes_at_any_place) {
  connect();
  uint32_t seed = 1;
  for (const bool sparse : {false, true}) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{65537},
                               size_t{524288}, (size_t{1} << 20) + 3, size_t{3} << 20}) {
      exchange(pattern(bytes, seed++, sparse), 3 * bytes % 1001, 7 * bytes % 513);
      exchange(pattern(bytes, seed++, sparse), 0, 64, bytes + 4096);
    }
  }
}

TEST_F(StagedNet, one_end_may_be_host_memory) {
  connect(nccl::kPtrCuda, nccl::kPtrHost);
  exchange(pattern(100000, 1), 5, 9);
  exchange(pattern(100000, 2, true), 5, 9);
  disconnect();
  connect(nccl::kPtrHost, nccl::kPtrCuda);
  exchange(pattern(100000, 3), 5, 9);
  exchange(pattern(100000, 4, true), 5, 9);
}

TEST_F(StagedNet, many_in_flight_arrive_in_order) {
  connect();
  many_in_flight(10);
}

TEST_F(StagedNet, done_is_after_the_copy_and_nobody_waits_for_it) {
  connect();
  const Bytes data = pattern(50000, 1);
  std::memcpy(from_.at(), data.data(), data.size());
  hold_copies(true);
  void *const receiving = irecv(0, data.size()), *const sending = isend(0, data.size());
  int sent = 0, received = 0;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(net().test(sending, &sent, nullptr), nccl::kSuccess);
    ASSERT_EQ(net().test(receiving, &received, nullptr), nccl::kSuccess);
    ASSERT_TRUE(sent == 0 && received == 0) << "not even copied to the host";
  }
  hold_copies_to(to_.at(), to_.size());
  sent_but_not_received(sending, receiving);
  hold_copies(false);
  wait_for(
      [&] { return net().test(receiving, &received, nullptr) != nccl::kSuccess || received != 0; });
  EXPECT_TRUE(to_.holds(data, 0));
}

TEST_F(StagedNet, traffic_allocates_and_synchronises_nothing) {
  connect();
  const FakeCounts before = fake_counts();
  for (uint32_t i = 0; i < 100; ++i) {
    exchange(pattern(70000, i, i % 2 == 0), i, 2 * i);
  }
  EXPECT_EQ(fake_counts().made, before.made);
  EXPECT_EQ(fake_counts().waits, before.waits);
}

TEST_F(StagedNet, a_mask_is_found_by_the_device_address) {
  connect();
  constexpr int64_t kRows = 64, kColumns = 1024;
  const int64_t sizes[] = {kRows, kColumns};
  prunex_tensor_t tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = PRUNEX_FLOAT32;
  tensor.ndim = 2;
  tensor.sizes = sizes;
  std::vector<uint8_t> rows(kRows);
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r] = r % 4 == 0 ? 1 : 0;
  }
  prunex_mask_desc_t desc{};
  desc.struct_size = sizeof desc;
  desc.kind = PRUNEX_MASK_DIMS;
  desc.declared_kept = -1;
  desc.keep[0] = rows.data();
  desc.keep_len[0] = rows.size();
  prunex_mask_t mask = 0;
  ASSERT_EQ(prunex_register_mask(from_.at(), &tensor, &desc, &mask), PRUNEX_SUCCESS)
      << prunex_last_error();
  Bytes data = pattern(kRows * kColumns * 4, 1);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r] == 0) {
      std::memset(data.data() + r * kColumns * 4, 0, kColumns * 4);
    }
  }
  const auto masked = [] { return nccl::all_totals().sent[2]; };
  const auto before = masked();
  exchange(data, 0, 0);
  EXPECT_EQ(masked().messages, before.messages + 1);
  EXPECT_LT(masked().wire - before.wire, data.size() / 3) << "three quarters are dropped";
  data[kColumns * 4] = std::byte{1};  // the mask's promise is broken: all bytes arrive as they are
  exchange(data, 0, 0);
  EXPECT_EQ(masked().messages, before.messages + 1);
  EXPECT_EQ(prunex_unregister_mask(mask), PRUNEX_SUCCESS);
}

TEST_F(StagedNet, what_is_not_registered_is_refused) {
  connect();
  void *mr = nullptr, *request = nullptr;
  Bytes host(100);
  EXPECT_NE(net().reg_mr(send_, host.data(), host.size(), nccl::kPtrCuda, &mr), nccl::kSuccess);
  EXPECT_NE(net().isend(send_, from_.at(kRoom - 10), 11, 0, from_mr_, &request), nccl::kSuccess);
  const DeviceBuffer other(100);
  EXPECT_NE(net().isend(send_, other.at(), 10, 0, from_mr_, &request), nccl::kSuccess);
  exchange(pattern(1000, 1), 0, 0);  // nothing happened
}

TEST_F(StagedNet, an_error_of_the_device_ends_the_connection) {
  connect();
  hold_copies(true);
  void* const sending = isend(0, 1000);
  fail_calls(FakeCall::event_done, 700);
  int sent = 0;
  EXPECT_NE(net().test(sending, &sent, nullptr), nccl::kSuccess);
  EXPECT_EQ(sent, 0);
  EXPECT_NE(net().test(sending, &sent, nullptr), nccl::kSuccess) << "for ever";
}

}  // namespace
}  // namespace prunex::test
