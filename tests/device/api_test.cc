// SPDX-License-Identifier: Apache-2.0
// Device buffers through prunex.h.
#include <gtest/gtest.h>

#include "tests/device/device_api.h"

namespace prunex::test {
namespace {

TEST_F(DeviceApi, ALayoutCompactsOnTheCallersStream) {
  constexpr size_t kCount = 3000;
  VectorMask mask(keep_of(kCount, 1, 3), PRUNEX_PROJECT);
  prunex_mask_t handle = 0;
  ASSERT_OK(prunex_register_mask(nullptr, &mask.tensor, &mask.desc, &handle));
  const prunex_segment_t segment = {0, kCount, handle};
  prunex_layout_t layout = 0;
  ASSERT_OK(prunex_layout_create(&segment, 1, kCount, &layout));
  run_c_ranks({0, 0, 1}, [&](prunex_comm_t comm, int rank) {
    FakeStream stream;
    OnDevice buffer(kCount);
    prunex_call_t call = PRUNEX_CALL_INIT;
    call.stream = static_cast<StreamLike*>(&stream);
    for (int i = 0; i < 3; ++i) {
      std::fill_n(buffer.data, kCount, static_cast<float>(rank + 1));
      prunex_request_t request = 0;
      call.request = i == 2 ? &request : nullptr;
      ASSERT_OK(prunex_all_reduce(comm, buffer.data, buffer.data, kCount, PRUNEX_FLOAT32,
                                  PRUNEX_SUM, layout, &call));
      if (i == 2) {
        int done = 0;
        EXPECT_OK(prunex_request_test(request, &done));
        EXPECT_EQ(done, 1);
      }
      stream.synchronize();
      for (size_t k = 0; k < kCount; ++k) {
        ASSERT_EQ(buffer.data[k], k % 3 == 0 ? 6.0f : 0.0f) << k;
      }
    }
  });
  EXPECT_OK(prunex_layout_destroy(layout));
  EXPECT_OK(prunex_unregister_mask(handle));
}

TEST_F(DeviceApi, AMaskIsFoundByItsDeviceAddress) {
  constexpr size_t kCount = 3000;
  run_c_ranks({0, 1}, [&](prunex_comm_t comm, int rank) {
    OnDevice buffer(kCount);
    VectorMask mask(keep_of(kCount, 1, 3), PRUNEX_PROJECT);
    prunex_mask_t handle = 0;
    ASSERT_OK(prunex_register_mask(buffer.data, &mask.tensor, &mask.desc, &handle));
    FakeStream stream;
    prunex_call_t call = PRUNEX_CALL_INIT;
    call.stream = static_cast<StreamLike*>(&stream);
    std::fill_n(buffer.data, kCount, static_cast<float>(rank + 1));
    ASSERT_OK(prunex_all_reduce(comm, buffer.data, buffer.data, kCount, PRUNEX_FLOAT32, PRUNEX_AVG,
                                0, &call));
    stream.synchronize();
    EXPECT_EQ(buffer.data[0], 1.5f);
    EXPECT_EQ(buffer.data[1], 0.0f);
    EXPECT_OK(prunex_unregister_mask(handle));
  });
}

TEST_F(DeviceApi, ReadyWhereThereAreBothLibraries) { EXPECT_OK(prunex_device_ready()); }

TEST(DeviceReady, SaysWhatIsMissing) {
  if (prunex_device_ready() == PRUNEX_SUCCESS) {
    GTEST_SKIP() << "nothing is missing here";
  }
  EXPECT_FAILS(prunex_device_ready(), PRUNEX_ERROR_UNSUPPORTED, "CUDA");
}

TEST_F(DeviceApi, BuffersInTwoPlacesAndStreamsOfHostBuffersAreRefused) {
  run_c_ranks({0}, [&](prunex_comm_t comm, int) {
    OnDevice buffer(10);
    std::vector<float> host(10);
    EXPECT_FAILS(prunex_all_reduce(comm, host.data(), buffer.data, 10, PRUNEX_FLOAT32, PRUNEX_SUM,
                                   0, nullptr),
                 PRUNEX_ERROR_INVALID_ARGUMENT, "host memory");
    FakeStream stream;
    prunex_call_t call = PRUNEX_CALL_INIT;
    call.stream = static_cast<StreamLike*>(&stream);
    EXPECT_FAILS(
        prunex_all_reduce(comm, host.data(), host.data(), 10, PRUNEX_FLOAT32, PRUNEX_SUM, 0, &call),
        PRUNEX_ERROR_INVALID_ARGUMENT, "stream");
  });
}

}  // namespace
}  // namespace prunex::test
