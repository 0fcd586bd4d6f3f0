// SPDX-License-Identifier: Apache-2.0
// A GPU that the kernels were not built for: found before a connection is made, never while
// messages are under way, and training goes on through NCCL's own copies.
#include <gtest/gtest.h>

#include <string>

#include "tests/device/staged_net.h"

namespace prunex::test {
namespace {

class StagedArchitectures : public StagedNet {
 protected:
  // Device 1 is older than all that the build is for.
  StagedArchitectures() : StagedNet(1), table_(fake_cuda()) {
    table_.archs = "90";
    table_.device_facts = [](int device, cuda::DeviceFacts* out) {
      const int error = fake_cuda().device_facts(device, out);
      out->arch = device == 1 ? 80 : 90;
      return error;
    };
  }
  void SetUp() override {
    StagedNet::SetUp();
    device::replace_backend(&table_, nullptr);
  }
  void TearDown() override {
    (void)fake_cuda().set_device(0);
    StagedNet::TearDown();
  }
  cuda::Table table_;
};

void expect_words(const std::string& said, const std::vector<const char*>& words) {
  for (const char* word : words) {
    EXPECT_NE(said.find(word), std::string::npos) << word << ": " << said;
  }
}

TEST_F(StagedArchitectures, on_it_nccl_copies_itself) {
  (void)fake_cuda().set_device(1);
  testing::internal::CaptureStderr();
  void* ctx = nullptr;
  ASSERT_EQ(net().init(&ctx, 1, -1, nullptr), nccl::kSuccess);
  expect_words(testing::internal::GetCapturedStderr(),
               {"PRUNEX_STAGED_GPU=1", "GPU 1", "sm_80", "sm_90", "--all-archs"});
  nccl::NetProperties properties;
  EXPECT_EQ(net().properties(0, &properties), nccl::kSuccess);
  EXPECT_EQ(properties.ptr_support, nccl::kPtrHost);
  EXPECT_EQ(net().finalize(ctx), nccl::kSuccess);
}

TEST_F(StagedArchitectures, another_devices_memory_is_refused_when_it_is_registered) {
  ASSERT_NO_FATAL_FAILURE(join());
  nccl::NetProperties properties;
  EXPECT_EQ(net().properties(0, &properties), nccl::kSuccess);
  EXPECT_EQ(properties.ptr_support, nccl::kPtrHost | nccl::kPtrCuda);
  testing::internal::CaptureStderr();
  EXPECT_NE(net().reg_mr(recv_, to_.at(), to_.size(), nccl::kPtrCuda, &to_mr_), nccl::kSuccess);
  expect_words(testing::internal::GetCapturedStderr(), {"GPU 1", "sm_80", "-Dnvcc_archs=80"});
  EXPECT_EQ(to_mr_, nullptr);
  // As host memory, which NCCL has then copied to: the connection is whole.
  Bytes host(to_.size());
  ASSERT_EQ(net().reg_mr(recv_, host.data(), host.size(), nccl::kPtrHost, &to_mr_), nccl::kSuccess);
  ASSERT_EQ(net().reg_mr(send_, from_.at(), from_.size(), nccl::kPtrCuda, &from_mr_),
            nccl::kSuccess);
}

}  // namespace
}  // namespace prunex::test
